"""How `brokerd consume` prints records: a format in kcat's letters, or one JSON object per line. Does no I/O.

Formats of keys and values alone are built from whole columns; all others, record by record, for people and small tools.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from brokerd.client.consumer.fetched import LOG_APPEND_TIME, FetchedBatch
from brokerd.errors import ConfigError
from brokerd.record.schema import KEY, TIMESTAMP, VALUE

Printer: TypeAlias = "Callable[[FetchedBatch], bytes | pa.Buffer]"
Topics: TypeAlias = Mapping[bytes, str]  # names by topic id; those of others are printed as nothing
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_TOKEN = re.compile(r"%(.)|([^%]+)", re.DOTALL)
LETTERS = {
    "s": "value",
    "S": "size of the value in bytes (-1: null)",
    "k": "key",
    "K": "size of the key in bytes (-1: null)",
    "h": "headers, as name=value,name=value",
    "t": "topic",
    "p": "partition",
    "o": "offset",
    "T": "timestamp, ms since 1970",
    "%": "a percent sign",
}


def format_printer(template: str, topics: Topics, *, null: bytes = b"") -> Printer:
    """Prints records in a format such as "%o %k: %s", with `null` for null keys and values. Raises ConfigError naming an unknown
    letter."""
    tokens = _tokens(template)
    if all(kind in ("text", "s", "k") for kind, _ in tokens):
        return lambda batch: _columns_joined(batch, tokens, null)
    return lambda batch: b"".join(_row(tokens, _name(topics, batch), null, batch, record) for record in _rows(batch))


def json_printer(topics: Topics) -> Printer:
    """Prints one JSON object per line, in the form that json_records.py reads. Bytes that are not UTF-8 text go to `key_base64`
    and `value_base64`; a timestamp is in ms, with a fraction if it has one."""

    def lines(batch: FetchedBatch) -> bytes:
        kind = _TIMESTAMP_TYPES[batch.timestamp_type == LOG_APPEND_TIME]
        begin = {"topic": _name(topics, batch), "partition": batch.tp.partition}
        return b"".join(_json_line(begin, kind, record) for record in _rows(batch))

    return lines


def _tokens(template: str) -> list[tuple[str, bytes]]:
    """The format as ("text", bytes) and (letter, b"")."""
    tokens: list[tuple[str, bytes]] = []
    at = 0
    while at < len(template):
        found = _TOKEN.match(template, at)
        if found is None:
            raise ConfigError("the format ends with a single '%': write '%%' for a percent sign")
        letter, text = found.groups()
        if letter is not None and letter not in LETTERS:
            raise ConfigError(f"unknown letter '%{letter}' in the format: choose from {', '.join('%' + one for one in LETTERS)}")
        tokens.append(("text", b"%" if letter == "%" else text.encode()) if letter in (None, "%") else (letter, b""))
        at = found.end()
    return tokens


def _columns_joined(batch: FetchedBatch, tokens: Sequence[tuple[str, bytes]], null: bytes) -> pa.Buffer | bytes:
    columns = {"k": KEY.name, "s": VALUE.name}
    parts = [
        pa.scalar(text, pa.large_binary())
        if kind == "text"
        else pc.fill_null(batch.arrow_batch.column(columns[kind]), null).cast(pa.large_binary())
        for kind, text in tokens
    ]
    if not any(kind != "text" for kind, _ in tokens):
        return b"".join(text for _, text in tokens) * batch.record_count
    joined = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    offsets = joined.buffers()[1]
    first, end = (int.from_bytes(offsets.slice(8 * (joined.offset + row), 8), "little") for row in (0, len(joined)))
    return joined.buffers()[2].slice(first, end - first)


def _rows(batch: FetchedBatch) -> Sequence[dict[str, Any]]:
    timestamps = batch.arrow_batch.column(TIMESTAMP.name).cast(pa.int64())
    plain = batch.arrow_batch.drop_columns([TIMESTAMP.name]).append_column(TIMESTAMP.name, timestamps)
    return plain.append_column("offset", batch.offsets).to_pylist()  # type: ignore[no-any-return]


def _row(tokens: Sequence[tuple[str, bytes]], topic: str, null: bytes, batch: FetchedBatch, record: dict[str, Any]) -> bytes:
    return b"".join(text if kind == "text" else _letter(kind, topic, null, batch.tp.partition, record) for kind, text in tokens)


def _letter(kind: str, topic: str, null: bytes, partition: int, record: dict[str, Any]) -> bytes:
    key: bytes | None = record["key"]
    value: bytes | None = record["value"]
    if kind == "s":
        return null if value is None else value
    if kind == "k":
        return null if key is None else key
    if kind == "h":
        return b",".join(
            header["key"].encode() + b"=" + (null if header["value"] is None else header["value"])
            for header in record["headers"] or ()
        )
    numbers = {
        "S": -1 if value is None else len(value),
        "K": -1 if key is None else len(key),
        "p": partition,
        "o": record["offset"],
        "T": _timestamp_ms(record),
    }
    return topic.encode() if kind == "t" else str(numbers[kind]).encode()


def _timestamp_ms(record: dict[str, Any]) -> int:
    timestamp_us: int | None = record["timestamp"]
    return -1 if timestamp_us is None else timestamp_us // 1_000


def _exact_ms(record: dict[str, Any]) -> str:
    """The time as a JSON number, to the microsecond: a float would round those of a distant future."""
    ms = _timestamp_ms(record)
    rest_us = 0 if record["timestamp"] is None else record["timestamp"] - ms * 1_000
    return f"{ms}.{rest_us:03}".rstrip("0") if rest_us else str(ms)


def _json_line(begin: dict[str, Any], timestamp_type: str, record: dict[str, Any]) -> bytes:
    rest = {"timestamp_type": timestamp_type, **_text_or_base64("key", record["key"]), **_text_or_base64("value", record["value"])}
    if record["headers"] is not None:
        rest["headers"] = [{"key": header["key"], **_text_or_base64("value", header["value"])} for header in record["headers"]]
    before = json.dumps({**begin, "offset": record["offset"]}, ensure_ascii=False)
    after = json.dumps(rest, ensure_ascii=False)
    return f'{before[:-1]}, "timestamp": {_exact_ms(record)}, {after[1:]}\n'.encode()


def _name(topics: Topics, batch: FetchedBatch) -> str:
    return topics.get(batch.tp.topic_id, "")


def _text_or_base64(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
