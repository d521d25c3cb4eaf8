"""Codec of the one field encoded by hand: `repeated bytes records = 15`, last in ProduceRequest and FetchResponse.

Payload bytes must not pass through protobuf (0.15 ms per MiB each way), so this module finds and writes them itself. The bytes are
identical to those of generated code (a test compares them), so any generated client is compatible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from brokerd.errors import InvalidRequestError

RECORDS_FIELD = 15
_RECORDS_TAG = RECORDS_FIELD << 3 | 2
_VARINT_MAX_BYTES = 10
_BYTE_MAX = 0x7F
# One-byte tags of length-delimited fields other than the records. Most such fields are short and are skipped at once.
_SHORT_TAGS = frozenset(number << 3 | 2 for number in range(1, RECORDS_FIELD))
_GROUP_TYPES = (3, 4)  # start and end of a group: not in our messages, but legal; its content is skipped field by field
# Largest number of top-level fields in one message: partitions, records and a few others.
MAX_FIELDS = 262_144

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer


M = TypeVar("M", bound=Message)


def join_records(head: Message, records: Iterable[Sequence[Bytes]]) -> bytes:
    """The bytes of a message: `head`, whose `records` field is empty, then its records, each given in parts that are concatenated.
    Copies the records once.
    """
    parts: list[Bytes] = [head.SerializeToString()]
    for entry in records:
        parts.append(b"\x7a" + encode_varint(sum(len(memoryview(part)) for part in entry)))
        parts.extend(entry)
    return b"".join(parts)


def split_records(message_type: type[M], data: bytes, *, max_fields: int = MAX_FIELDS) -> tuple[M, list[pa.Buffer]]:
    """A message without its `records`, and the records as slices of `data`, not copied. Raises InvalidRequestError.

    `records` that are not last, or not in canonical form (legal, though no serializer writes it), take a slower path. More than
    `max_fields` top-level fields are refused: two bytes make an empty submessage of a hundred bytes in memory.
    """
    message = message_type()
    try:
        fields = _scan(data, max_fields)
        if fields.are_plain:
            message.ParseFromString(data[: fields.records_at])
            whole = pa.py_buffer(data)
            return message, [whole.slice(at, length) for at, length in fields.records]
        message.ParseFromString(data)
        if "records" not in message.DESCRIPTOR.fields_by_name:  # a fetch request, which has no such field
            return message, []
        slow = [pa.py_buffer(entry) for entry in message.records]  # type: ignore[attr-defined]
        message.ClearField("records")
    except (DecodeError, IndexError, ValueError):
        raise InvalidRequestError(f"not a valid {message_type.DESCRIPTOR.name}: the bytes cannot be parsed") from None
    return message, slow


def check_field_count(data: bytes, max_fields: int) -> None:
    """Raises InvalidRequestError for more than `max_fields` top-level fields, and IndexError or ValueError if the bytes are not a
    message."""
    _scan(data, max_fields)


def encode_varint(value: int) -> bytes:
    """`value` (not negative) as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Fields(NamedTuple):
    """The positions of a message's records."""

    records_at: int  # of the first one, or the end
    records: list[tuple[int, int]]  # position and length of each
    are_plain: bool  # they come last, and every tag has its shortest form


def _scan(data: bytes, max_fields: int) -> _Fields:
    at = 0
    end = len(data)
    records_at = end
    records: list[tuple[int, int]] = []
    are_plain = True
    count = 0
    while at < end:
        count += 1
        if count > max_fields:
            raise InvalidRequestError(
                f"the message has more than {max_fields} fields, the most allowed: send fewer partitions at once"
            )
        if data[at] == _RECORDS_TAG:
            if not records:
                records_at = at
            length, at = read_varint(data, at + 1)
            records.append((at, length))
            at += length
            if at > end:
                raise IndexError(at)
            continue
        if not records and data[at] in _SHORT_TAGS and at + 1 < end and data[at + 1] <= _BYTE_MAX:
            at += 2 + data[at + 1]
            if at > end:
                raise IndexError(at)
            continue
        tag, at = read_varint(data, at)
        if records or tag >> 3 == RECORDS_FIELD or tag & 7 in _GROUP_TYPES:
            are_plain = False
        at = skip_field(data, at, tag & 7)
    return _Fields(records_at, records, are_plain)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at a position, and the position after it. Raises IndexError, ValueError."""
    value = 0
    for shift in range(0, 7 * _VARINT_MAX_BYTES, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("varint too long")


def skip_field(data: bytes, at: int, wire_type: int) -> int:
    """The position after the field whose content starts at `at`. Raises IndexError, ValueError."""
    if wire_type == 0:
        return read_varint(data, at)[1]
    if wire_type == 1:
        at += 8
    elif wire_type == 5:
        at += 4
    elif wire_type == 2:
        length, at = read_varint(data, at)
        at += length
    elif wire_type not in _GROUP_TYPES:
        raise ValueError(f"wire type {wire_type}")
    if at > len(data):
        raise IndexError(at)
    return at
