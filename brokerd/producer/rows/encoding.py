"""Pieces to the bytes of a record batch, once, when the batch closes: concatenate, compress, CRC. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from brokerd.ids import TopicIdPartition
from brokerd.producer.core.producer_batch import Piece, ProducerBatch
from brokerd.record.header import HEADER_SIZE, crc_seed, encode_header, new_header
from brokerd.record.payload import HEADERS_TYPE, KEY_VALUE_SCHEMA, TIMESTAMP_TYPE, Payload, encode_payload

_NO_HEADERS = pa.array([], HEADERS_TYPE.value_type)


class EncodedBatch(NamedTuple):
    """A batch's payload; timestamps in ms."""

    payload: Payload
    base_timestamp: int
    max_timestamp: int

    @property
    def size_bytes(self) -> int:
        """Bytes of header and payload."""
        return HEADER_SIZE + int(self.payload.data.size)


def encode_pieces(pieces: Sequence[Piece], compression: str) -> EncodedBatch:
    """All records of a batch, in order, as one payload. Records without a timestamp get their piece's."""
    key, value, headers, timestamp = _columns(pieces)
    if headers is None:
        headers = null_headers(len(value))
    arrow_batch = pa.RecordBatch.from_arrays([key, value, headers, timestamp], schema=KEY_VALUE_SCHEMA)
    payload = encode_payload(arrow_batch, compression)
    micros = timestamp.view(pa.int64()).to_numpy()
    return EncodedBatch(payload, int(micros[0]) // 1000, int(micros.max()) // 1000)


def encode_batch_header(batch: ProducerBatch, tp: TopicIdPartition) -> bytes:
    """The 96 bytes in front of the payload; they carry the batch's sequence, so they are made at each drain."""
    encoded: EncodedBatch = batch.encoded
    header = new_header(
        batch_length=encoded.payload.data.size,
        payload_crc=encoded.payload.crc,
        record_count=encoded.payload.record_count,
        base_timestamp=encoded.base_timestamp,
        max_timestamp=encoded.max_timestamp,
        uncompressed_bytes=encoded.payload.uncompressed_bytes,
        producer_id=batch.identity.producer_id,
        producer_epoch=batch.identity.epoch,
        base_sequence=batch.base_sequence,
    )
    return encode_header(header, crc_seed(tp))


def joined(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """All records, in order, as one batch of `columns.normalize` in which each has a timestamp."""
    key, value, headers, timestamp = _columns(pieces)
    columns = {"key": key, "value": value, **({} if headers is None else {"headers": headers}), "timestamp": timestamp}
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _columns(pieces: Sequence[Piece]) -> tuple[pa.Array, pa.Array, pa.Array | None, pa.Array]:
    """Key, value, headers if there are any, and timestamp."""
    batches = [piece.data for piece in pieces]
    key, value = (_joined([batch.column(i) for batch in batches]) for i in (0, 1))
    if all(batch.num_columns == 2 for batch in batches):
        micros = np.array([piece.timestamp_ms for piece in pieces], np.int64) * 1000
        repeated = np.repeat(micros, [piece.record_count for piece in pieces])
        return key, value, None, pa.array(repeated).view(TIMESTAMP_TYPE)
    has_headers = any("headers" in batch.schema.names for batch in batches)
    headers = _joined([_headers(batch) for batch in batches]) if has_headers else None
    return key, value, headers, _joined([_timestamps(piece) for piece in pieces])


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _timestamps(piece: Piece) -> pa.Array:
    if "timestamp" not in piece.data.schema.names:
        return pa.array(np.full(piece.record_count, piece.timestamp_ms * 1000, np.int64)).view(TIMESTAMP_TYPE)
    column = piece.data.column("timestamp")
    if column.null_count:
        column = column.fill_null(pa.scalar(piece.timestamp_ms * 1000, pa.int64()).cast(TIMESTAMP_TYPE))
    return column


def _headers(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("headers") if "headers" in batch.schema.names else null_headers(batch.num_rows)


def null_headers(count: int) -> pa.Array:
    """A column of nulls. Unlike `pa.nulls`, whose child arrays get offsets too, it costs 4 bytes a row and not 12."""
    zeros = pa.py_buffer(bytes(4 * count + 4))
    return pa.ListArray.from_buffers(HEADERS_TYPE, count, [zeros, zeros], children=[_NO_HEADERS])
