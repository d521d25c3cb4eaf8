"""Record batches for tests: columns, whole batches, and resealing of bytes that a test has changed. No assertions here."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from brokerd.ids import TopicIdPartition
from brokerd.record.arrow_metadata import read_arrow_metadata
from brokerd.record.header import BatchHeader, crc_seed, decode_header, encode_header, new_header, stamp
from brokerd.record.schema import SCHEMA_0, encode_payload, payload_crc

TP = TopicIdPartition(bytes(range(16)), 3)
SEED = crc_seed(TP)
TIMESTAMP_MS = 1_700_000_000_000
HEADER_BYTES = 96
MAX_BYTES = 16_777_216
_VALUE_OFFSETS = 4  # index of the Arrow buffer
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

Headers = Sequence[tuple[str, bytes | None]]


def key_values(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    timestamp_ms: int = TIMESTAMP_MS,
) -> pa.RecordBatch:
    """Columns of SCHEMA_0: one row per value, one ms apart; keys and headers are null unless given."""
    count = len(values)
    rows = None if headers is None else [None if row is None else [{"key": k, "value": v} for k, v in row] for row in headers]
    return pa.record_batch(
        [
            pa.array(keys if keys is not None else [None] * count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(rows if rows is not None else [None] * count, SCHEMA_0.column("headers").type),
            pa.array([(timestamp_ms + i) * 1_000 for i in range(count)], SCHEMA_0.column("timestamp").type),
        ],
        schema=SCHEMA_0.arrow,
    )


SAMPLE = key_values(
    [b"one", b"", None, b"four" * 10],
    keys=[b"k1", None, b"k1", b""],
    headers=[[("h", b"x"), ("other", None)], None, [], [("h", b"")]],
)


def new_batch(
    arrow_batch: pa.RecordBatch = SAMPLE, compression: str = "none", tp: TopicIdPartition = TP, **fields: int
) -> pa.Buffer:
    """A whole batch as a client makes it, with correct CRCs. `fields` replace header fields."""
    payload = encode_payload(arrow_batch, compression)
    header = new_header(
        batch_length=payload.data.size,
        payload_crc=payload.crc,
        record_count=payload.record_count,
        base_timestamp=TIMESTAMP_MS,
        max_timestamp=TIMESTAMP_MS + payload.record_count - 1,
        uncompressed_bytes=payload.uncompressed_bytes,
    )
    header = header._replace(**fields)  # type: ignore[arg-type]
    return pa.py_buffer(encode_header(header, crc_seed(tp)) + payload.data.to_pybytes())


def reseal(header: BatchHeader, payload: bytes, tp: TopicIdPartition = TP) -> pa.Buffer:
    """A batch of this header and payload with correct CRCs and batch_length, as a hostile client would send."""
    sealed = header._replace(batch_length=len(payload), payload_crc=payload_crc(payload))
    return pa.py_buffer(encode_header(sealed, crc_seed(tp)) + payload)


def poisoned(data: pa.Buffer, compression: str = "none", tp: TopicIdPartition = TP) -> pa.Buffer:
    """The batch with correct CRCs but a value offset that points outside the data, or with a compressed payload that cannot be
    decompressed."""
    payload = bytearray(data.to_pybytes()[HEADER_BYTES:])
    if compression == "none":
        metadata = read_arrow_metadata(memoryview(payload))
        struct.pack_into("<i", payload, metadata.body_at + metadata.buffers[_VALUE_OFFSETS][0] + 4, 2**30)
    else:
        payload = payload.replace(_ZSTD_MAGIC, bytes(4))
    return reseal(header_of(data), bytes(payload), tp)


def stamped(head: bytes, seed: int = SEED, **fields: int) -> bytes:
    """A client's header with these fields stamped, as a leader does."""
    return stamp(head, decode_header(head)._replace(**fields), seed)  # type: ignore[arg-type]


def spoilt(data: pa.Buffer, at: int = -10) -> pa.Buffer:
    """The batch with one bit flipped: in the header if `at` is in 0-95, else in the payload."""
    changed = bytearray(data.to_pybytes())
    changed[at] ^= 1
    return pa.py_buffer(bytes(changed))


def header_of(data: pa.Buffer) -> BatchHeader:
    """The decoded header of a batch."""
    return decode_header(data.slice(0, HEADER_BYTES).to_pybytes())


def body_at(payload: bytes) -> int:
    """Where the Arrow body begins in a payload."""
    return 8 + int(struct.unpack_from("<i", payload, 4)[0])
