"""Converts rows, Arrow data and DataFrames to a table for the producer, and tables to records. Pure: no I/O.

The table has the producer's columns, and `partition`; the producer checks their contents.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.producer.arguments import to_bytes
from brokerd.record.schema import KEY, SCHEMA_0, VALUE

COLUMNS = (*SCHEMA_0.names, "partition")
# Ignored, so that rows read from a topic can be appended to another: the broker assigns these.
_GIVEN_BY_THE_BROKER = ("topic", "offset", "timestampType")
_TYPES = {column.name: column.type for column in SCHEMA_0.columns}
_US_PER_MS = 1_000
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_ROWS = "rows (values, pairs of key and value, or mappings), an Arrow table or batch, or a DataFrame"


class Record(NamedTuple):
    """A record read from a topic; the fields are columns of the Spark source."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime.datetime  # UTC
    headers: list[tuple[str, bytes | None]]


def to_table(data: object) -> pa.Table:
    """Converts the argument of `Topic.append` to a table. Raises TypeError and ValueError that name the row and field."""
    table = _arrow_of(data)
    if table is None:
        return _of_rows(data)
    table = table.drop_columns([name for name in _GIVEN_BY_THE_BROKER if name in table.column_names])
    unknown = [name for name in table.column_names if name not in COLUMNS]
    if unknown:
        raise ValueError(f"unknown column '{unknown[0]}': a record has {', '.join(COLUMNS)}; put the rest into the value")
    if "partition" in table.column_names:
        at = table.column_names.index("partition")
        kind = table.schema.field(at).type
        if not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
            raise TypeError(f"column 'partition' must be integers, not {kind}")
        table = table.set_column(at, "partition", table.column(at).cast(pa.int32()).fill_null(-1))
    return table


def _arrow_of(data: Any) -> pa.Table | None:
    """Arrow data or a DataFrame (Spark, pandas, Polars, any with the Arrow C stream interface) as a table; None for rows."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if callable(getattr(data, "toArrow", None)):
        return data.toArrow()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if type(data).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    return None


def _of_rows(data: object) -> pa.Table:
    if isinstance(data, (bytes, str, Mapping, Record)) or not isinstance(data, Iterable):
        one = " (one alone goes into a list)" if isinstance(data, (bytes, str, Mapping, Record)) else ""
        raise TypeError(f"append takes {_ROWS}{one}, not {type(data).__name__}")
    rows = [_fields(row, number) for number, row in enumerate(data)]
    columns: dict[str, Any] = {}
    for name, kind in _TYPES.items():
        if name in (KEY.name, VALUE.name) or any(row[name] is not None for row in rows):
            columns[name] = pa.array([row[name] for row in rows], kind)
    if any(row["partition"] is not None for row in rows):
        columns["partition"] = pa.array([-1 if row["partition"] is None else row["partition"] for row in rows], pa.int32())
    return pa.table(columns)


def _fields(row: Any, number: int) -> dict[str, Any]:
    """A row's fields, converted to the column types."""
    given: Mapping[str, Any]
    if row is None or isinstance(row, (bytes, str)):
        given = {"value": row}
    elif isinstance(row, Record):
        given = {name: getattr(row, name) for name in COLUMNS}
    elif isinstance(row, Mapping):
        given = row
    elif callable(getattr(row, "asDict", None)):  # Spark's Row
        given = row.asDict()
    elif isinstance(row, (tuple, list)) and len(row) == 2:
        given = {"key": row[0], "value": row[1]}
    else:
        raise TypeError(f"row {number} is {type(row).__name__}: append takes {_ROWS}")
    unknown = [name for name in given if name not in COLUMNS and name not in _GIVEN_BY_THE_BROKER]
    if unknown:
        raise ValueError(f"row {number} has an unknown field '{unknown[0]}': a record has {', '.join(COLUMNS)}")
    return {
        "key": to_bytes(given.get("key"), f"row {number}: key"),
        "value": to_bytes(given.get("value"), f"row {number}: value"),
        "headers": _headers(given.get("headers"), number),
        "timestamp": _timestamp_us(given.get("timestamp"), number),
        "partition": _partition(given.get("partition"), number),
    }


def _headers(data: object, number: int) -> list[dict[str, Any]] | None:
    if data is None:
        return None
    if not isinstance(data, (Mapping, list, tuple)):
        raise TypeError(f"row {number}: headers must be a mapping, or pairs of name and value, not {type(data).__name__}")
    return [_header(pair, number) for pair in (data.items() if isinstance(data, Mapping) else data)]


def _header(pair: object, number: int) -> dict[str, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"row {number}: a header must be a pair of name and value, not {type(pair).__name__}")
    name, value = pair
    if not isinstance(name, str):
        raise TypeError(f"row {number}: a header's name must be text, not {type(name).__name__}")
    return {"key": name, "value": to_bytes(value, f"row {number}: header '{name}'")}


def _partition(data: object, number: int) -> int | None:
    if data is None:
        return None
    if isinstance(data, bool) or not isinstance(data, Integral):  # numpy's, too
        raise TypeError(f"row {number}: partition must be an int, not {type(data).__name__}")
    partition = int(data)
    if not 0 <= partition <= INT32_MAX:
        raise ValueError(f"row {number}: partition is {partition}: give 0 to {INT32_MAX}, or none")
    return partition


def _timestamp_us(data: object, number: int) -> int | None:
    if data is None:
        return None
    if isinstance(data, datetime.datetime):
        if data.tzinfo is None:
            raise ValueError(f"row {number}: timestamp {data} has no time zone: give one, or ms since 1970")
        stamp_us = (data - _EPOCH) // datetime.timedelta(microseconds=1)
    elif isinstance(data, int) and not isinstance(data, bool):
        stamp_us = data * _US_PER_MS
    else:
        raise TypeError(f"row {number}: timestamp must be a datetime, or ms since 1970, not {type(data).__name__}")
    if not 0 <= stamp_us <= INT64_MAX:
        raise ValueError(f"row {number}: timestamp is {stamp_us // _US_PER_MS} ms since 1970: give 0 to {INT64_MAX // _US_PER_MS}")
    return stamp_us


def to_records(table: pa.Table, topic: str) -> list[Record]:
    """The rows of a table read by the client, in its order."""
    names = ("key", "value", "partition", "offset", "timestamp", "headers")
    columns = [table.column(name).to_pylist() if name != "timestamp" else _times(table) for name in names]
    return [
        Record(key, value, topic, partition, offset, timestamp, [(one["key"], one["value"]) for one in headers or ()])
        for key, value, partition, offset, timestamp, headers in zip(*columns, strict=True)
    ]


def _times(table: pa.Table) -> list[datetime.datetime]:
    """Timestamps as datetimes, without pandas or a time zone database. Raises ValueError for one after the year 9999."""
    stamps = table.column("timestamp").cast(pa.int64()).to_pylist()
    try:
        return [_EPOCH + datetime.timedelta(microseconds=one) for one in stamps]
    except OverflowError:
        raise ValueError("a timestamp after the year 9999, which no datetime holds: read the topic with arrow()") from None


def empty_table() -> pa.Table:
    """The table of a topic without records."""
    types = {**_TYPES, "partition": pa.int32(), "offset": pa.int64(), "timestampType": pa.int32()}
    return pa.table({name: pa.array([], kind) for name, kind in types.items()})
