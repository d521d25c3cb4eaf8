"""Hostile inputs. Each depends on seed, kind and number alone, so that any one can be reproduced. No broker here."""

from __future__ import annotations

import copy
import random
import ssl
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from brokerd.ids import TopicIdPartition
from brokerd.record.header import BatchHeader
from tests.support.hostile_messages import HOSTILE_NAMES, changed_bytes, edges
from tests.support.records import HEADER_BYTES, header_of, reseal

_DEPTH_MAX = 3
_HEADER_EDGES = (
    0,
    1,
    -1,
    2,
    7,
    8,
    11,
    13,
    31,
    255,
    2**15 - 1,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    -(2**63),
    -(2**31),
)
# Header bits that a test may set freely; the CRCs and batch_length are recomputed.
_HEADER_BITS = {
    "magic": (8, False),
    "header_words": (8, False),
    "stamp_flags": (16, False),
    "base_offset": (64, True),
    "append_timestamp": (64, True),
    "leader_epoch": (32, True),
    "producer_id": (64, True),
    "base_sequence": (32, True),
    "producer_epoch": (16, True),
    "attributes": (16, False),
    "last_offset_delta": (32, True),
    "record_count": (32, True),
    "base_timestamp": (64, True),
    "max_timestamp": (64, True),
    "schema_id": (32, True),
    "uncompressed_bytes": (32, False),
    "leader_epoch_id": (32, False),
    "clock_ahead_s": (32, True),
}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def rng_of(seed: int, kind: str, number: int) -> random.Random:
    """The random generator of one input."""
    return random.Random(f"{seed} {kind} {number}")


def spoilt_batch(rng: random.Random, batches: list[bytes]) -> bytes:
    """A valid batch with bytes flipped, cut off, spliced with another's, doubled or replaced. Its CRCs are not recomputed."""
    data = rng.choice(batches)
    match rng.randrange(5):
        case 0:
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 2, 8))):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:
            return data[: rng.randrange(len(data))]
        case 2:
            other = rng.choice(batches)
            return data[: rng.randrange(len(data))] + other[rng.randrange(len(other)) :]
        case 3:
            return changed_bytes(rng, data)
        case _:
            at = rng.randrange(len(data))
            return data[:at] + rng.randbytes(rng.choice((1, 8, 96))) + data[at:]


def odd_header(rng: random.Random, good: pa.Buffer, tp: TopicIdPartition) -> pa.Buffer:
    """A valid batch with header fields at boundary values, and correct CRCs."""
    header: BatchHeader = header_of(good)
    for name in rng.sample(list(_HEADER_BITS), rng.choice((1, 1, 2, 4))):
        changed: dict[str, Any] = {name: _fitted(rng.choice(_HEADER_EDGES) + rng.choice((0, 0, 0, 1, -1)), *_HEADER_BITS[name])}
        header = header._replace(**changed)
    return reseal(header, good.to_pybytes()[HEADER_BYTES:], tp)


def _fitted(value: int, bits: int, is_signed: bool) -> int:
    value %= 2**bits
    return value - 2**bits if is_signed and value >= 2 ** (bits - 1) else value


def boundary_messages(right: Message) -> Iterator[Message]:
    """A valid message with each field, nested ones included, at each of its boundary values: one field at a time."""
    for path in _paths(type(right)):
        for value in (None,) if path[-1].message_type is not None else edges(path[-1]):
            message = copy.deepcopy(right)
            target: Any = message
            for field in path[:-1]:
                child = getattr(target, field.name)
                if field.is_repeated:
                    target = child[0] if len(child) else child.add()
                else:
                    child.SetInParent()
                    target = child
            _put(target, path[-1], value)
            yield message


def _paths(kind: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for field in kind.DESCRIPTOR.fields:
        yield (*above, field)
        if field.message_type is not None and not field.message_type.GetOptions().map_entry and len(above) < _DEPTH_MAX:
            yield from _paths(GetMessageClass(field.message_type), (*above, field))


def _put(target: Any, field: Any, value: Any) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        for name in ("retention.ms", "segment.bytes", "max.message.bytes", *HOSTILE_NAMES):
            getattr(target, field.name)[name] = "9" * 30
    elif field.is_repeated:
        entries = getattr(target, field.name)
        if value is None:
            for _ in range(3_000):
                entries.add()
        else:
            del entries[:]
            entries.extend([value] * 3)
    elif value is None:
        getattr(target, field.name).SetInParent()
    else:
        setattr(target, field.name, value)


def http2_request(path: str, message: bytes) -> bytes:
    """A complete gRPC request as raw HTTP/2 bytes: preface, settings, headers, one data frame."""
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return PREFACE + frame(4, 0, 0, b"") + frame(1, 4, 1, headers_block(path)) + frame(0, 1, 1, body)


def headers_block(path: str) -> bytes:
    """The headers of a gRPC call, uncompressed."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers")]
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in [*headers, ("content-type", "application/grpc")]
    )


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    outgoing = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a response")


def port_bytes(rng: random.Random, path: str, message: bytes, hello: bytes) -> tuple[str, bytes]:
    """Bytes for the port from a client that knows only the port, and the name of their kind."""
    match rng.randrange(6):
        case 0:
            return "random", rng.choice((b"", PREFACE)) + rng.randbytes(rng.choice((0, 1, 9, 30, 3_000)))
        case 1:
            line = rng.choice((b"GET", b"POST", b"CONNECT", b"\x16\x03", b"OPTIONS")) + b" /" + rng.randbytes(rng.randrange(40))
            return "http/1", line + rng.choice(
                (b" HTTP/1.1\r\nHost: x\r\n\r\n", b" HTTP/1.0\r\nContent-Length: 99999999999\r\n\r\n")
            )
        case 2:
            return "tls", changed_bytes(rng, hello) if rng.random() < 0.5 else hello[: rng.randrange(len(hello) + 1)]
        case 3:
            request = http2_request(path, message)
            return "http/2 cut", request[: rng.randrange(len(request))]
        case 4:
            return "http/2 changed", changed_bytes(rng, http2_request(path, message))
        case _:
            frames = b"".join(
                frame(
                    rng.randrange(12),
                    rng.randrange(256),
                    rng.choice((0, 1, 3, 2**31 - 1)),
                    rng.randbytes(rng.choice((0, 4, 8, 50))),
                )
                for _ in range(rng.randrange(1, 20))
            )
            return "http/2 frames", http2_request(path, message) + frames
