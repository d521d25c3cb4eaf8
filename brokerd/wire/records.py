"""The one field that is encoded by hand: `repeated bytes records = 15`, last in ProduceRequest and FetchResponse.

Payload bytes must not pass through protobuf (0.15 ms a MiB each way), so they are found and written here. The bytes are
identical to what generated code makes (a test holds the two equal), and any generated client can speak them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from brokerd.errors import InvalidRequestError

RECORDS_FIELD = 15
_RECORDS_TAG = RECORDS_FIELD << 3 | 2
_VARINT_MAX_BYTES = 10

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer


M = TypeVar("M", bound=Message)


def join_records(head: Message, records: Iterable[Sequence[Bytes]]) -> bytes:
    """The bytes of a message whose `records` field is left empty in `head`; each entry is given in parts, which are
    written one after the other. One copy.
    """
    parts: list[Bytes] = [head.SerializeToString()]
    for entry in records:
        parts.append(b"\x7a" + encode_varint(sum(len(memoryview(part)) for part in entry)))
        parts.extend(entry)
    return b"".join(parts)


def split_records(message_type: type[M], data: bytes) -> tuple[M, list[pa.Buffer]]:
    """A message without its `records`, and those as slices of `data`, not copied. Raises InvalidRequestError.

    A message whose `records` are not last (no serializer writes that, but it is legal) is read the slow way.
    """
    message = message_type()
    try:
        records_at = _find_records(data)
        records = _slices(data, records_at)
        if records is None:
            message.ParseFromString(data)
            slow = [pa.py_buffer(entry) for entry in message.records]  # type: ignore[attr-defined]
            message.ClearField("records")
            return message, slow
        message.ParseFromString(data[:records_at])
    except (DecodeError, IndexError, ValueError):
        raise InvalidRequestError(f"not a {message_type.DESCRIPTOR.name}: the bytes can not be parsed") from None
    return message, records


def encode_varint(value: int) -> bytes:
    """`value` (not negative) as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _find_records(data: bytes) -> int:
    """Position of the first records tag, or the end."""
    at = 0
    end = len(data)
    while at < end:
        if data[at] == _RECORDS_TAG:
            return at
        tag, at = _varint(data, at)
        at = _skip(data, at, tag & 7)
    return end


def _slices(data: bytes, at: int) -> list[pa.Buffer] | None:
    """The records from `at` to the end, or None if something else follows them."""
    whole = pa.py_buffer(data)
    end = len(data)
    slices = []
    while at < end:
        if data[at] != _RECORDS_TAG:
            return None
        length, at = _varint(data, at + 1)
        if at + length > end:
            raise IndexError(length)
        slices.append(whole.slice(at, length))
        at += length
    return slices


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _VARINT_MAX_BYTES, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("varint too long")


def _skip(data: bytes, at: int, wire_type: int) -> int:
    if wire_type == 0:
        return _varint(data, at)[1]
    if wire_type == 1:
        at += 8
    elif wire_type == 5:
        at += 4
    elif wire_type == 2:
        length, at = _varint(data, at)
        at += length
    else:
        raise ValueError("group")
    if at > len(data):
        raise IndexError(at)
    return at
