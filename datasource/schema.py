"""The source's columns: those of Spark's Kafka source, in Spark's and in Arrow's form.

Spark compares Arrow schemas exactly, so both forms are kept side by side. A user's own `.schema(...)` may omit columns, which is
the only way in which Spark lets a Python source prune.
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
    """A column that Spark asked for."""

    name: str
    spark_type: str  # Spark's simpleString
    is_nullable: bool


def column_names(*, include_headers: bool) -> tuple[str, ...]:
    """All columns, in order. Without `include_headers` there is no headers column."""
    return tuple(name for name in _SPARK_TYPES if include_headers or name != HEADERS.name)


def spark_ddl(*, include_headers: bool) -> str:
    """The schema as Spark's DDL."""
    return ", ".join(f"{name} {_SPARK_TYPES[name]}" for name in column_names(include_headers=include_headers))


def arrow_schema(columns: Sequence[SourceColumn]) -> pa.Schema:
    """The Arrow schema that Spark expects for the requested columns. Raises ConfigError for an unknown or repeated column and for a
    wrong type; all can only come from a user's own .schema(...)."""
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
    """All columns of the source, as readers see them that know Arrow's types and not Spark's."""
    return [SourceColumn(name, _SPARK_TYPES[name], True) for name in column_names(include_headers=include_headers)]


def columns_of(schema: pa.Schema) -> list[SourceColumn]:
    """The columns of an Arrow schema. Raises ConfigError for one that the source does not have, or of another type."""
    for field in schema:
        if field.name in _ARROW_TYPES and not field.type.equals(_ARROW_TYPES[field.name]):
            raise ConfigError(
                f"column '{field.name}' is {field.type}, but the source's is {_ARROW_TYPES[field.name]}: cast it in the query"
            )
    return [SourceColumn(field.name, _SPARK_TYPES.get(field.name, ""), field.nullable) for field in schema]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
