"""Random protobuf messages full of boundary values, and random changes of bytes. Seeded; no assertions here."""

from __future__ import annotations

import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

_NEAR_POWERS = [2**bits + step for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64) for step in (-1, 0)]
_INTEGERS = (0, 1, -1, 2, -(2**31), -(2**63), *_NEAR_POWERS)
HOSTILE_NAMES = (
    "",
    ".",
    "..",
    "../escape",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "a\x00b",
    "\x00",
    "\n",
    "a" * 250,
    "a" * 100_000,
    "é",
    "ａ",  # a full-width letter, normalised to an ASCII one
    "con\u202etxt",
    "__consumer_offsets",
    "-rf",
    "~",
    "$(touch escape)",
    "%2e%2e%2f",
    "a b",
)
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def random_message(rng: random.Random, kind: type[Message], known: dict[str, list[Any]]) -> Message:
    """A message with about half of its fields set. `known` gives valid values by field name, used now and then so that some
    requests pass the first check."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if rng.random() < 0.5:
            _fill(rng, message, field, known)
    return message


def _fill(rng: random.Random, message: Message, field: Any, known: dict[str, list[Any]]) -> None:
    target = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for _ in range(rng.choice((0, 1, 3))):
            target[rng.choice(("retention.ms", "segment.bytes", *HOSTILE_NAMES))] = rng.choice(
                ("-1", "x", "1e999", "9" * 30, "\x00")
            )
    elif field.is_repeated:
        for _ in range(rng.choice((0, 1, 1, 2, 5))):
            if field.message_type is not None:
                target.add().CopyFrom(random_message(rng, GetMessageClass(field.message_type), known))
            else:
                target.append(_value(rng, field, known))
    elif field.message_type is not None:
        target.CopyFrom(random_message(rng, GetMessageClass(field.message_type), known))
    else:
        setattr(message, field.name, _value(rng, field, known))


def _value(rng: random.Random, field: Any, known: dict[str, list[Any]]) -> Any:
    expected = {FieldDescriptor.TYPE_BYTES: bytes, FieldDescriptor.TYPE_STRING: str}.get(field.type, int)
    right = [value for value in known.get(field.name, ()) if isinstance(value, expected)]  # field names recur with other types
    if right and rng.random() < 0.6:
        return rng.choice(right)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 15, 16, 17, 1_000)))
    return rng.choice(edges(field))


def edges(field: Any) -> tuple[Any, ...]:
    """Boundary values of a scalar field, at which it may be mistaken or overflow."""
    if field.enum_type is not None:
        return (*field.enum_type.values_by_number, 99, -1, 2**31 - 1, -(2**31))
    if field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type]
        return tuple(value for value in _INTEGERS if low <= value <= high)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return (False, True)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return (b"", b"\0", bytes(15), bytes(16), b"\xff" * 16, bytes(17), bytes(70_000))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return HOSTILE_NAMES
    return (0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7e308)


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    """`data` with some bytes changed, removed, repeated or added."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(4):
            case 0 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 1:
                del changed[at : at + rng.choice((1, 4, 30))]
            case 2:
                changed[at:at] = changed[at : at + rng.choice((1, 4, 30))]
            case _:
                changed[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
    return bytes(changed)
