"""Converts records to and from lines: lines of text or JSON into columns for `brokerd produce`, and records into lines, formatted
with kcat's letters or as JSON, for `brokerd consume` and `dump-log`. JSON output is valid JSON input. Does no I/O.

In a JSON object, `topic`, `offset` and `timestamp_type` describe the origin of a record; producing ignores them, and `partition`
too, unless --keep-partitions is given.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from brokerd.client.columns import LOG_APPEND_TIME, FetchedBatch
from brokerd.config.settings import INT64_MAX, unknown_setting
from brokerd.errors import ConfigError
from brokerd.record.schema import KEY, SCHEMA_0, TIMESTAMP, VALUE

_US_PER_MS = 1_000
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}
_BYTES = ("key", "key_base64", "value", "value_base64")
_FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "headers", *_BYTES)
_HEADER_FIELDS = ("key", "value", "value_base64")
_Row: TypeAlias = dict[str, Any]
_JsonRow: TypeAlias = tuple[bytes | None, bytes | None, list[dict[str, Any]] | None, int, int]
Printer: TypeAlias = "Callable[[FetchedBatch], bytes | pa.Buffer]"
Topics: TypeAlias = Mapping[bytes, str]  # names by topic id; a missing name is printed as ""
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_TOKEN = re.compile(r"%(.?)|([^%]+)", re.DOTALL)  # a letter ("" at the end of the format), or text


def unescaped(text: str) -> str:
    r"""Replaces the escapes \t, \n, \r, \0 and \\ in `text`."""
    return re.sub(r"\\[tnr0\\]", lambda found: _ESCAPES[found[0]], text)


class LineSplitter:
    """Splits chunks of bytes into whole lines; keeps an unfinished line for the next chunk."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._rest = b""  # the unfinished line

    @property
    def unfinished_bytes(self) -> int:
        """Bytes of the unfinished line so far."""
        return len(self._rest)

    def split(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes."""
        *lines, self._rest = (self._rest + chunk).split(self._delimiter)
        return lines

    def last(self) -> list[bytes]:
        """The unfinished line at the end of the input, if there is one."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def records_from_lines(
    lines: Sequence[bytes],
    *,
    key_separator: bytes | None,
    headers: Sequence[tuple[str, str]],
    null_marker: bytes | None,
    timestamp_ms: int,
) -> pa.RecordBatch:
    """Converts each line to a record, as columns of SCHEMA_0. A line without the separator has no key; a key or value that equals
    `null_marker` is null.
    """
    keys: Sequence[bytes | None] = [None] * len(lines)
    values: Sequence[bytes | None] = lines
    if key_separator is not None:
        parts = [line.partition(key_separator) for line in lines]
        keys = [key if separator else None for key, separator, _ in parts]
        values = [value if separator else key for key, separator, value in parts]
    if null_marker is not None:
        keys = [None if key == null_marker else key for key in keys]
        values = [None if value == null_marker else value for value in values]
    row = [{"key": name, "value": value.encode()} for name, value in headers] or None  # as other producers write no headers
    count = len(lines)
    return _columns(keys, values, [row] * count, [timestamp_ms * _US_PER_MS] * count)


def _columns(*columns: Sequence[Any]) -> pa.RecordBatch:
    """A record batch of SCHEMA_0 from keys, values, lists of headers and timestamps (us)."""
    return pa.record_batch(dict(zip(SCHEMA_0.names, columns, strict=True)), schema=SCHEMA_0.arrow)


class JsonRecords(NamedTuple):
    """Columns of SCHEMA_0, the partition of each record (-1: chosen by its key), and the first line that is not a record, if any:
    its index and problem; conversion stops there."""

    arrow_batch: pa.RecordBatch
    partitions: list[int]
    bad: tuple[int, str] | None


def records_from_json(
    lines: Sequence[bytes], *, headers: Sequence[tuple[str, str]], timestamp_ms: int, partition_count: int | None = None
) -> JsonRecords:
    """Converts each non-empty line to a record, adding `headers`; `timestamp_ms` is for records without a timestamp. Each record
    must name one of `partition_count` partitions; if that is None, partitions are ignored.
    """
    more = [{"key": name, "value": value.encode()} for name, value in headers]
    rows: list[_JsonRow] = []
    bad = None
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            rows.append(_json_row(_object(line), more, timestamp_ms * _US_PER_MS, partition_count))
        except ValueError as problem:
            bad = (number, str(problem))
            break
    *columns, partitions = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return JsonRecords(_columns(*columns), list(partitions), bad)


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_float=Decimal, object_pairs_hook=_distinct)
    except _RepeatedNameError:
        raise
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


class _RepeatedNameError(ValueError):
    """A JSON object repeats a name."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a JSON object. Raises _RepeatedNameError for a repeated name: json would silently keep only its last value."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _RepeatedNameError(f"it has '{name}' twice")
        found[name] = value
    return found


def _json_row(document: dict[str, Any], more: list[dict[str, Any]], now_us: int, partition_count: int | None) -> _JsonRow:
    _check_names(document, _FIELDS, "field")
    if "value" not in document and "value_base64" not in document:
        raise ValueError("it has no value: use null for a tombstone")
    given = document.get("headers")
    if given is not None and not isinstance(given, list):
        raise ValueError("headers must be a list")
    key, value = _bytes(document, "key"), _bytes(document, "value")
    headers = [*map(_header, given or ()), *more] if given is not None or more else None  # None differs from an empty list
    timestamp_us = _timestamp_us(document.get("timestamp"), now_us)
    partition = -1 if partition_count is None else _partition(document.get("partition"), partition_count)
    return key, value, headers, timestamp_us, partition


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
    """Parses a timestamp in ms, with a fraction of up to three digits; absent and -1 mean now."""
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


def format_printer(template: str, topics: Topics) -> Printer:
    """Returns a printer for a format such as "%o %k: %s"; a null key or value is empty. Raises ConfigError naming an unknown
    letter."""
    tokens = _tokens(template)
    if all(kind in ("text", "s", "k") for kind, _ in tokens):
        return lambda batch: _columns_joined(batch, tokens)
    return lambda batch: b"".join(
        text if kind == "text" else LETTERS[kind](row) for row in _rows(batch, topics) for kind, text in tokens
    )


def json_printer(topics: Topics) -> Printer:
    """Returns a printer of one JSON object per line, as `records_from_json` reads it. Bytes that are not UTF-8 are in `key_base64`
    and `value_base64`; timestamps are in ms, with a fraction where needed."""
    return lambda batch: b"".join(map(_json_line, _rows(batch, topics)))


def _tokens(template: str) -> list[tuple[str, bytes]]:
    """The format as a list of ("text", bytes) and (letter, b"")."""
    tokens: list[tuple[str, bytes]] = []
    for found in _TOKEN.finditer(template):
        letter, text = found.groups()
        if letter is None:
            tokens.append(("text", text.encode()))
        elif letter == "%":
            tokens.append(("text", b"%"))
        elif letter in LETTERS:
            tokens.append((letter, b""))
        elif letter:
            known = ", ".join(f"%{one}" for one in LETTERS)
            raise ConfigError(f"unknown letter '%{letter}' in the format: choose from {known}, %%")
        else:
            raise ConfigError("the format ends with a single '%': write '%%' for a percent sign")
    return tokens


def _columns_joined(batch: FetchedBatch, tokens: Sequence[tuple[str, bytes]]) -> pa.Buffer | bytes:
    """The rows of a format that has only text, keys and values, without a Python object per record."""
    columns = {"k": KEY.name, "s": VALUE.name}
    parts = [
        pa.scalar(text, pa.large_binary())
        if kind == "text"
        else pc.fill_null(batch.arrow_batch.column(columns[kind]), b"").cast(pa.large_binary())
        for kind, text in tokens
    ]
    if all(kind == "text" for kind, _ in tokens):
        return b"".join(text for _, text in tokens) * batch.record_count
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    offsets = joined.buffers()[1]
    first, end = (int.from_bytes(offsets.slice(8 * (joined.offset + row), 8), "little") for row in (0, len(joined)))
    return joined.buffers()[2].slice(first, end - first)


def _rows(batch: FetchedBatch, topics: Topics) -> Iterator[_Row]:
    """The records as dicts with the fields of SCHEMA_0 and of their origin; `timestamp` in microseconds."""
    timestamps = batch.arrow_batch.column(TIMESTAMP.name).cast(pa.int64())
    plain = batch.arrow_batch.drop_columns([TIMESTAMP.name]).append_column(TIMESTAMP.name, timestamps)
    origin = {
        "topic": topics.get(batch.tp.topic_id, ""),
        "partition": batch.tp.partition,
        "timestamp_type": _TIMESTAMP_TYPES[batch.timestamp_type == LOG_APPEND_TIME],
    }
    return (row | origin for row in plain.append_column("offset", batch.offsets).to_pylist())


def _size(data: bytes | None) -> bytes:
    return b"-1" if data is None else b"%d" % len(data)


def _headers_text(row: _Row) -> bytes:
    return b",".join(header["key"].encode() + b"=" + (header["value"] or b"") for header in row["headers"] or ())


def _timestamp_ms(row: _Row) -> int:
    return -1 if row["timestamp"] is None else row["timestamp"] // _US_PER_MS


LETTERS: dict[str, Callable[[_Row], bytes]] = {
    "s": lambda row: row["value"] or b"",
    "S": lambda row: _size(row["value"]),
    "k": lambda row: row["key"] or b"",
    "K": lambda row: _size(row["key"]),
    "h": _headers_text,
    "t": lambda row: row["topic"].encode(),
    "p": lambda row: b"%d" % row["partition"],
    "o": lambda row: b"%d" % row["offset"],
    "T": lambda row: b"%d" % _timestamp_ms(row),
}


def _exact_ms(row: _Row) -> str:
    """The timestamp in ms as a JSON number, to the microsecond; a float would round distant times."""
    ms = _timestamp_ms(row)
    rest_us = 0 if row["timestamp"] is None else row["timestamp"] - ms * _US_PER_MS
    return f"{ms}.{rest_us:03}".rstrip("0") if rest_us else str(ms)


def _json_line(row: _Row) -> bytes:
    rest = {"timestamp_type": row["timestamp_type"], **_text_or_base64("key", row["key"]), **_text_or_base64("value", row["value"])}
    if row["headers"] is not None:
        rest["headers"] = [{"key": header["key"], **_text_or_base64("value", header["value"])} for header in row["headers"]]
    before = json.dumps({name: row[name] for name in ("topic", "partition", "offset")}, ensure_ascii=False)
    after = json.dumps(rest, ensure_ascii=False)
    return f'{before[:-1]}, "timestamp": {_exact_ms(row)}, {after[1:]}\n'.encode()


def _text_or_base64(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
