"""Parses one JSON object per line, as `brokerd consume --json` prints it, into records: the inverse of record_format.py. Does no
I/O.

`topic`, `offset` and `timestamp_type` describe where a record came from and are ignored; so is `partition`, unless records keep
theirs.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.config.settings import INT64_MAX, unknown_setting
from brokerd.record.schema import HEADERS, KEY, SCHEMA_0, TIMESTAMP, VALUE

_US_PER_MS = 1_000
_BYTES = ("key", "key_base64", "value", "value_base64")
_FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "headers", *_BYTES)
_HEADER_FIELDS = ("key", "value", "value_base64")


class BadRow(NamedTuple):
    """A line that is not a record; `row` counts from 0."""

    row: int
    problem: str


class JsonRecords(NamedTuple):
    """Columns of SCHEMA_0, each record's partition (-1: chosen by its key), and the first line that is not a record; the records
    before that line are in the columns."""

    arrow_batch: pa.RecordBatch
    partitions: list[int]
    bad: BadRow | None


class _Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[dict[str, str | bytes | None]] | None  # None differs from an empty list
    timestamp_us: int
    partition: int


def records_from_json(
    lines: Sequence[bytes], *, headers: Sequence[tuple[str, str]], timestamp_ms: int, partition_count: int | None = None
) -> JsonRecords:
    """One record per non-empty line, with `headers` added to its own; `timestamp_ms` is for records that have none. Each record
    must name one of `partition_count` partitions; if that is None, its partition is ignored.
    """
    more = [{"key": name, "value": value.encode()} for name, value in headers]
    rows: list[_Row] = []
    bad = None
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            rows.append(_row(_object(line), more, timestamp_ms * _US_PER_MS, partition_count))
        except ValueError as problem:
            bad = BadRow(number, str(problem))
            break
    columns = [
        pa.array([row.key for row in rows], KEY.type),
        pa.array([row.value for row in rows], VALUE.type),
        pa.array([row.headers for row in rows], HEADERS.type),
        pa.array([row.timestamp_us for row in rows], TIMESTAMP.type),
    ]
    return JsonRecords(pa.record_batch(columns, schema=SCHEMA_0.arrow), [row.partition for row in rows], bad)


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_float=Decimal)
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except ValueError:
        raise ValueError("a number in it has thousands of digits") from None
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _row(document: dict[str, Any], more: list[dict[str, Any]], now_us: int, partition_count: int | None) -> _Row:
    _check_names(document, _FIELDS, "field")
    if "value" not in document and "value_base64" not in document:
        raise ValueError("it has no value: use null for a tombstone")
    given = document.get("headers")
    if given is not None and not isinstance(given, list):
        raise ValueError("headers must be a list")
    return _Row(
        key=_bytes(document, "key"),
        value=_bytes(document, "value"),
        headers=[*map(_header, given or ()), *more] if given is not None or more else None,
        timestamp_us=_timestamp_us(document.get("timestamp"), now_us),
        partition=-1 if partition_count is None else _partition(document.get("partition"), partition_count),
    )


def _header(given: Any) -> dict[str, str | bytes | None]:
    if not isinstance(given, dict) or not isinstance(given.get("key"), str):
        raise ValueError("a header must be an object with key and value")
    _check_names(given, _HEADER_FIELDS, "field of a header")
    _utf8("a header's key", given["key"])
    return {"key": given["key"], "value": _bytes(given, "value")}


def _check_names(document: Mapping[str, Any], known: Sequence[str], kind: str) -> None:
    for name in document:
        if name not in known:
            raise ValueError(unknown_setting(name, known, kind=kind).message)


def _bytes(document: Mapping[str, Any], name: str) -> bytes | None:
    encoded = f"{name}_base64"
    if name in document and encoded in document:
        raise ValueError(f"{name} and {encoded} are mutually exclusive")
    given = document.get(name, document.get(encoded))
    if given is None:
        return None
    if not isinstance(given, str):
        raise ValueError(f"{name} must be a JSON string or null; use {encoded} for bytes that are not UTF-8 text")
    if name in document:
        return _utf8(name, given)
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{encoded} is not base64") from None


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half of a surrogate pair, which is not valid text") from None


def _timestamp_us(given: Any, now_us: int) -> int:
    """ms, with a fraction down to microseconds; absent and -1 mean now."""
    if given is None or (isinstance(given, int) and given == -1):
        return now_us
    if isinstance(given, bool) or not isinstance(given, (int, Decimal)) or not 0 <= given <= INT64_MAX // _US_PER_MS:
        raise ValueError("timestamp must be a number of ms since 1970")
    return round(given * _US_PER_MS)


def _partition(given: Any, count: int) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise ValueError("it names no partition")
    if not 0 <= given < count:
        raise ValueError(f"the topic has partitions 0 to {count - 1}, not {given}")
    return given
