"""The source's columns, those of Spark's Kafka source, as Spark and Arrow types.

Spark compares Arrow schemas exactly, so both are kept side by side. A user's own `.schema(...)` may omit columns. Spark offers a
Python source no other column pruning.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from brokerd.client.columns import CONSUMED_SCHEMA
from brokerd.errors import ConfigError
from brokerd.record.schema import HEADERS, KEY, TIMESTAMP, VALUE

_SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    HEADERS.name: "array<struct<key:string,value:binary>>",
}

_WITH_NULLS = (KEY.name, VALUE.name, TIMESTAMP.name, HEADERS.name)  # declared NOT NULL, a null would fail in Spark's JVM, unchecked


def source_schema(*, include_headers: bool) -> pa.Schema:
    """All columns in Arrow's types, nullable, in order; headers only with `include_headers`."""
    return CONSUMED_SCHEMA if include_headers else CONSUMED_SCHEMA.remove(CONSUMED_SCHEMA.get_field_index(HEADERS.name))


def spark_ddl(*, include_headers: bool) -> str:
    """All columns as Spark's DDL."""
    return ", ".join(f"{name} {_SPARK_TYPES[name]}" for name in source_schema(include_headers=include_headers).names)


def arrow_schema(columns: Iterable[tuple[str, str, bool]]) -> pa.Schema:
    """The Arrow schema that Spark expects for the requested columns: name, Spark's simpleString, whether it and all its parts are
    nullable. Raises ConfigError for no column, an unknown or repeated column, a wrong type, or NOT NULL where records may lack a
    value. Only a user's own .schema(...) can cause these errors."""
    fields: dict[str, pa.Field] = {}
    for name, spark_type, is_nullable in columns:
        if name in fields:
            raise ConfigError(f"column '{name}' is given twice in .schema(...): name it once")
        if name not in _SPARK_TYPES:
            raise ConfigError(f"column '{name}' in .schema(...) is not one of the source's: {', '.join(_SPARK_TYPES)}")
        if spark_type != _SPARK_TYPES[name]:
            raise ConfigError(
                f"column '{name}' in .schema(...) is {spark_type}, but the source's is {_SPARK_TYPES[name]}; cast it in the query"
            )
        if not is_nullable and name in _WITH_NULLS:
            raise ConfigError(
                f"column '{name}' in .schema(...) is NOT NULL, but records may lack it: leave NOT NULL out, and filter the query"
            )
        fields[name] = CONSUMED_SCHEMA.field(name).with_nullable(is_nullable)
    if not fields:  # an Arrow batch without columns has no rows that Spark could count
        raise ConfigError(".schema(...) names no column, and rows without one cannot be counted: name one, such as offset")
    return pa.schema(fields.values())


def checked_schema(schema: pa.Schema) -> pa.Schema:
    """A schema requested in Arrow's types. Raises ConfigError as `arrow_schema`."""
    for field in schema:
        if field.name in _SPARK_TYPES and not field.type.equals(CONSUMED_SCHEMA.field(field.name).type):
            raise ConfigError(
                f"column '{field.name}' is {field.type}, but the source's is {CONSUMED_SCHEMA.field(field.name).type}: cast it in "
                "the query"
            )
    return arrow_schema((field.name, _SPARK_TYPES.get(field.name, ""), field.nullable) for field in schema)
