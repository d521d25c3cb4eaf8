"""Converts text lines to records and back, a whole chunk at a time. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from brokerd.record.schema import HEADERS, KEY, SCHEMA_0, TIMESTAMP, VALUE

_US_PER_MS = 1_000
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}


def unescaped(text: str) -> str:
    r"""`text` with \t, \n, \r, \0 and \\ as the characters they stand for."""
    out = []
    at = 0
    while at < len(text):
        character = _ESCAPES.get(text[at : at + 2])
        out.append(character if character is not None else text[at])
        at += 1 if character is None else 2
    return "".join(out)


class LineSplitter:
    """Splits chunks of bytes into whole lines; what follows the last delimiter waits for the next chunk."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._rest: list[bytes] = []  # pieces of the unfinished line

    def split(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes."""
        *lines, rest = chunk.split(self._delimiter) if len(self._delimiter) == 1 else self._joined(chunk).split(self._delimiter)
        if lines and self._rest:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest = []
        if rest:
            self._rest.append(rest)
        return lines

    def last(self) -> list[bytes]:
        """The last line, if it did not end with a delimiter."""
        rest, self._rest = b"".join(self._rest), []
        return [rest] if rest else []

    def _joined(self, chunk: bytes) -> bytes:
        """A delimiter of several bytes may be split between chunks, so the pending bytes are searched again."""
        whole = b"".join([*self._rest, chunk])
        self._rest = []
        return whole


def records_from_lines(
    lines: Sequence[bytes],
    *,
    key_separator: bytes | None,
    headers: Sequence[tuple[str, str]],
    null_marker: bytes | None,
    timestamp_ms: int,
) -> pa.RecordBatch:
    """One record per line, as columns of SCHEMA_0. A line without the separator has no key; a key or value that
    equals `null_marker` is null.
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
    row = [{"key": name, "value": value.encode()} for name, value in headers]
    return pa.record_batch(
        [
            pa.array(keys, KEY.type),
            pa.array(values, VALUE.type),
            pa.array([row] * len(lines), HEADERS.type),
            pa.array([timestamp_ms * _US_PER_MS] * len(lines), TIMESTAMP.type),
        ],
        schema=SCHEMA_0.arrow,
    )
