"""The source's columns, those of Spark's Kafka source, as Spark and Arrow types.

Spark compares Arrow schemas exactly, so both are kept side by side. A user's own `.schema(...)` may omit columns, the only column
pruning that Spark offers a Python source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from brokerd.errors import ConfigError
from brokerd.record.schema import HEADERS, SCHEMA_0

_HEADERS_DDL = "array<struct<key:string,value:binary>>"

_SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    HEADERS.name: _HEADERS_DDL,
}
_ARROW_TYPES = {
    **{column.name: column.type for column in SCHEMA_0.columns},
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestampType": pa.int32(),
}


class SourceColumn(NamedTuple):
    """A requested column."""

    name: str
    spark_type: str  # Spark's simpleString
    is_nullable: bool


def column_names(*, include_headers: bool) -> tuple[str, ...]:
    """All column names, in order; headers only with `include_headers`."""
    return tuple(name for name in _SPARK_TYPES if include_headers or name != HEADERS.name)


def spark_ddl(*, include_headers: bool) -> str:
    """The schema as Spark's DDL."""
    return ", ".join(f"{name} {_SPARK_TYPES[name]}" for name in column_names(include_headers=include_headers))


def arrow_schema(columns: Sequence[SourceColumn]) -> pa.Schema:
    """The Arrow schema that Spark expects for the requested columns. Raises ConfigError for an unknown or repeated column or a
    wrong type, which only a user's own .schema(...) can cause."""
    for column in columns:
        if [other.name for other in columns].count(column.name) > 1:
            raise ConfigError(f"column '{column.name}' stands twice in .schema(...): name it once")
        if column.name not in _SPARK_TYPES:
            raise ConfigError(f"column '{column.name}' in .schema(...) is not one of the source's: {_listed(_SPARK_TYPES)}")
        if column.spark_type != _SPARK_TYPES[column.name]:
            raise ConfigError(
                f"column '{column.name}' in .schema(...) is {column.spark_type}, but the source's is {_SPARK_TYPES[column.name]}; "
                "cast it in the query"
            )
    return pa.schema([pa.field(one.name, _ARROW_TYPES[one.name], nullable=one.is_nullable) for one in columns])


def all_columns(*, include_headers: bool) -> list[SourceColumn]:
    """All columns of the source, nullable, for readers that use Arrow types."""
    return [SourceColumn(name, _SPARK_TYPES[name], True) for name in column_names(include_headers=include_headers)]


def columns_of(schema: pa.Schema) -> list[SourceColumn]:
    """The columns of an Arrow schema. Raises ConfigError for a wrong type; `arrow_schema` refuses unknown columns."""
    for field in schema:
        if field.name in _ARROW_TYPES and not field.type.equals(_ARROW_TYPES[field.name]):
            raise ConfigError(
                f"column '{field.name}' is {field.type}, but the source's is {_ARROW_TYPES[field.name]}: cast it in the query"
            )
    return [SourceColumn(field.name, _SPARK_TYPES.get(field.name, ""), field.nullable) for field in schema]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
