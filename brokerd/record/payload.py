"""Converts columns to payload bytes and back. A payload is one Arrow IPC encapsulated record batch message, without a schema.

schema.py defines the columns; `schema_id` in the batch header selects the schema. Compression is Arrow's own, so a reader decodes
uncompressed columns without copying.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import pyarrow as pa

from brokerd.errors import CorruptMessageError
from brokerd.record.arrow_metadata import read_arrow_metadata, uncompressed_lengths
from brokerd.record.schema import SCHEMA_0, Schema, known_schema

_WRITE_OPTIONS = {
    "lz4": pa.ipc.IpcWriteOptions(compression="lz4"),
    "zstd": pa.ipc.IpcWriteOptions(compression="zstd"),
}


class Payload(NamedTuple):
    """Encoded records, and the fields of the batch header that describe them."""

    data: pa.Buffer
    crc: int
    record_count: int
    uncompressed_bytes: int
    schema_id: int = SCHEMA_0.id


def encode_payload(arrow_batch: pa.RecordBatch, compression: str = "none", schema: Schema = SCHEMA_0) -> Payload:
    """Encodes at least one row with the columns of `schema` or of its sparse form. `compression`: none, lz4 or zstd."""
    if compression == "none":
        data = arrow_batch.serialize()
    else:
        stream_of = schema if arrow_batch.num_columns == len(schema.columns) else schema.sparse
        sink = pa.BufferOutputStream()
        writer = pa.ipc.new_stream(sink, stream_of.arrow, options=_WRITE_OPTIONS[compression])
        writer.write_batch(arrow_batch)
        written = sink.tell() - stream_of.message.size
        data = sink.getvalue().slice(stream_of.message.size, written)
    view = memoryview(data)
    uncompressed = sum(uncompressed_lengths(read_arrow_metadata(view), view))
    return Payload(data, payload_crc(data), arrow_batch.num_rows, uncompressed, schema.id)


def payload_crc(data: pa.Buffer) -> int:
    """CRC32C of a payload, a pa.Buffer or bytes (google-crc32c takes no memoryview)."""
    crc: int = google_crc32c.value(data)
    return crc


def decode_timestamps(data: pa.Buffer, *, schema_id: int, record_count: int, uncompressed_bytes: int) -> pa.Array:
    """Decodes the timestamp column alone, and allocates little more than its size. Raises CorruptMessageError,
    UnsupportedVersionError.
    """
    schema = known_schema(schema_id)
    view = memoryview(data)
    metadata = schema.check(view, record_count=record_count, uncompressed_bytes=uncompressed_bytes)
    schema.check_timestamps(view, metadata, record_count=record_count)
    stream = pa.py_buffer(schema.message.to_pybytes() + data.to_pybytes())
    try:
        with pa.ipc.open_stream(stream, options=schema.timestamp_alone) as reader:
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
    """Decodes a payload into columns; copies only what is compressed. Validates it fully, so that a hostile payload cannot crash
    the process, and allocates at most `max_uncompressed_bytes`. Raises CorruptMessageError, UnsupportedVersionError.
    """
    schema = known_schema(schema_id, is_sparse=is_sparse)
    if uncompressed_bytes > max_uncompressed_bytes:
        raise CorruptMessageError(
            f"the batch takes {uncompressed_bytes} bytes uncompressed, more than max.decompressed.bytes "
            f"({max_uncompressed_bytes}): raise it to read the batch"
        )
    schema.check(memoryview(data), record_count=record_count, uncompressed_bytes=uncompressed_bytes)
    try:
        arrow_batch = pa.ipc.read_record_batch(data, schema.arrow)
        arrow_batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptMessageError(f"the Arrow payload is malformed: {error}") from None
    return arrow_batch
