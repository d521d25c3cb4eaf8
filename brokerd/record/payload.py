"""Columns to payload bytes and back: one Arrow IPC encapsulated record batch message, without a schema message.

`schema_id` in the batch header names the schema; 0 is the key/value schema below. Compression is Arrow's own, so a
reader turns bytes into columns without copying. Headers of batches do not live here.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.record.arrow_metadata import ArrowMetadata, read_arrow_metadata, uncompressed_lengths

HEADERS_TYPE = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
KEY_VALUE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("timestamp", TIMESTAMP_TYPE),
    ]
)
SPARSE_SCHEMA = KEY_VALUE_SCHEMA.append(pa.field("offset_delta", pa.int32()))
KEY_VALUE_SCHEMA_ID = 0

# Per schema: which nodes are top-level columns (their length is the row count), how many nodes and buffers there are.
_TOP_LEVEL_NODES = (0, 1, 2, 6)
_NODES = 7
_BUFFERS = 17
# Which buffers hold one offset per row and one more, and which a timestamp per row.
_OFFSET_BUFFERS = (1, 4, 7)
_OFFSET_BYTES = 4
_TIMESTAMP_BUFFER = 16
_TIMESTAMP_BYTES = 8
_PADDING_MAX_BYTES = 128
_TIMESTAMP_ALONE = pa.ipc.IpcReadOptions(included_fields=[KEY_VALUE_SCHEMA.get_field_index("timestamp")], use_threads=False)
_SCHEMA_MESSAGE_BYTES = KEY_VALUE_SCHEMA.serialize().size
_WRITE_OPTIONS = {
    "lz4": pa.ipc.IpcWriteOptions(compression="lz4"),
    "zstd": pa.ipc.IpcWriteOptions(compression="zstd"),
}


class Payload(NamedTuple):
    """Encoded records and what the batch header says of them."""

    data: pa.Buffer
    crc: int
    record_count: int
    uncompressed_bytes: int


def encode_payload(arrow_batch: pa.RecordBatch, compression: str = "none") -> Payload:
    """Encodes columns of KEY_VALUE_SCHEMA (at least one row). `compression`: none, lz4 or zstd."""
    if compression == "none":
        data = arrow_batch.serialize()
    else:
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, KEY_VALUE_SCHEMA, options=_WRITE_OPTIONS[compression])
        writer.write_batch(arrow_batch)
        written = sink.tell() - _SCHEMA_MESSAGE_BYTES
        data = sink.getvalue().slice(_SCHEMA_MESSAGE_BYTES, written)
    view = memoryview(data)
    uncompressed = sum(uncompressed_lengths(read_arrow_metadata(view), view))
    return Payload(data, payload_crc(data), arrow_batch.num_rows, uncompressed)


def payload_crc(data: pa.Buffer) -> int:
    """CRC32C of a payload (a pa.Buffer or bytes: memoryviews are not taken)."""
    crc: int = google_crc32c.value(data)
    return crc


def check_layout(payload: memoryview, *, record_count: int, uncompressed_bytes: int, is_sparse: bool = False) -> ArrowMetadata:
    """Sees that an Arrow payload holds `record_count` rows in the columns of schema 0 and decompresses to
    `uncompressed_bytes`. Touches no column. Raises CorruptMessageError.
    """
    metadata = read_arrow_metadata(payload)
    nodes, buffers = (_NODES + 1, _BUFFERS + 2) if is_sparse else (_NODES, _BUFFERS)
    top_level = (*_TOP_LEVEL_NODES, _NODES) if is_sparse else _TOP_LEVEL_NODES
    if len(metadata.node_lengths) != nodes or len(metadata.buffers) != buffers:
        raise CorruptMessageError(
            f"the Arrow payload has {len(metadata.node_lengths)} nodes and {len(metadata.buffers)} buffers; "
            f"schema 0 has {nodes} and {buffers}"
        )
    if metadata.rows != record_count or any(metadata.node_lengths[node] != record_count for node in top_level):
        raise CorruptMessageError(f"the header counts {record_count} records, the Arrow payload {metadata.rows} rows")
    lengths = uncompressed_lengths(metadata, payload)
    claimed = sum(lengths)
    if claimed != uncompressed_bytes:
        raise CorruptMessageError(f"uncompressed_bytes is {uncompressed_bytes}, the Arrow buffers add up to {claimed}")
    if (
        min(lengths[buffer] for buffer in _OFFSET_BUFFERS) < _OFFSET_BYTES * (record_count + 1)
        or lengths[_TIMESTAMP_BUFFER] < _TIMESTAMP_BYTES * record_count
    ):
        raise CorruptMessageError(f"the Arrow buffers are too short for {record_count} records")
    return metadata


def decode_timestamps(data: pa.Buffer, *, record_count: int, uncompressed_bytes: int) -> pa.Array:
    """The timestamp column alone: little more than it takes is allocated, whatever the other columns claim to be.
    Raises CorruptMessageError.
    """
    view = memoryview(data)
    metadata = check_layout(view, record_count=record_count, uncompressed_bytes=uncompressed_bytes)
    claimed = sum(uncompressed_lengths(metadata, view)[_TIMESTAMP_BUFFER - 1 : _TIMESTAMP_BUFFER + 1])
    if claimed > (_TIMESTAMP_BYTES + 1) * record_count + _PADDING_MAX_BYTES:
        raise CorruptMessageError(f"the Arrow payload claims {claimed} bytes for {record_count} timestamps")
    stream = pa.py_buffer(KEY_VALUE_SCHEMA.serialize().to_pybytes() + data.to_pybytes())
    try:
        with pa.ipc.open_stream(stream, options=_TIMESTAMP_ALONE) as reader:
            arrow_batch = reader.read_next_batch()
        arrow_batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptMessageError(f"the Arrow payload is malformed: {error}") from None
    return arrow_batch.column(0)


def decode_payload(
    data: pa.Buffer,
    *,
    schema_id: int,
    record_count: int,
    uncompressed_bytes: int,
    max_uncompressed_bytes: int,
    is_sparse: bool = False,
) -> pa.RecordBatch:
    """Payload bytes as columns, without copying where they are not compressed, checked so that a hostile payload
    cannot crash the process: allocates at most `max_uncompressed_bytes`. Raises CorruptMessageError, UnsupportedVersionError.
    """
    if schema_id != KEY_VALUE_SCHEMA_ID:
        raise UnsupportedVersionError(f"schema_id {schema_id} is not known; this version reads {KEY_VALUE_SCHEMA_ID}")
    if uncompressed_bytes > max_uncompressed_bytes:
        raise CorruptMessageError(
            f"the batch takes {uncompressed_bytes} bytes uncompressed, more than max.decompressed.bytes "
            f"({max_uncompressed_bytes}): raise it to read the batch"
        )
    check_layout(memoryview(data), record_count=record_count, uncompressed_bytes=uncompressed_bytes, is_sparse=is_sparse)
    try:
        arrow_batch = pa.ipc.read_record_batch(data, SPARSE_SCHEMA if is_sparse else KEY_VALUE_SCHEMA)
        arrow_batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptMessageError(f"the Arrow payload is malformed: {error}") from None
    return arrow_batch
