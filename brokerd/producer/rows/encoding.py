"""Pieces to the bytes of a record batch, once, when the batch closes: concatenate, compress, CRC. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from brokerd.ids import TopicIdPartition
from brokerd.producer.core.producer_batch import Piece, ProducerBatch
from brokerd.record.header import HEADER_SIZE, Attributes, crc_seed, encode_header, new_header
from brokerd.record.payload import Payload, encode_payload
from brokerd.record.schema import SCHEMA_0, TIMESTAMP, Column, Schema


class EncodedBatch(NamedTuple):
    """A batch's payload; timestamps in ms."""

    payload: Payload
    base_timestamp: int
    max_timestamp: int

    @property
    def size_bytes(self) -> int:
        """Bytes of header and payload."""
        return HEADER_SIZE + int(self.payload.data.size)


def encode_pieces(pieces: Sequence[Piece], compression: str, schema: Schema = SCHEMA_0) -> EncodedBatch:
    """All records of a batch, in order, as one payload. Records without a timestamp get their piece's; a column that a piece
    does not have is null in it."""
    arrays = _columns(pieces, schema)
    timestamp = arrays[schema.timestamp.index]
    for column in schema.columns:
        if arrays[column.index] is None:
            arrays[column.index] = column.nulls(len(timestamp))
    payload = encode_payload(pa.RecordBatch.from_arrays(arrays, schema=schema.arrow), compression, schema)
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
        attributes=Attributes.TRANSACTIONAL if batch.is_transactional else 0,
        schema_id=encoded.payload.schema_id,
    )
    return encode_header(header, crc_seed(tp))


def joined(pieces: Sequence[Piece]) -> pa.RecordBatch:
    """All records, in order, as one batch of `columns.normalize` in which each has a timestamp."""
    arrays = zip(SCHEMA_0.names, _columns(pieces, SCHEMA_0), strict=True)
    columns = {name: array for name, array in arrays if array is not None}
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _columns(pieces: Sequence[Piece], schema: Schema) -> list[Any]:
    """The columns of all pieces; None for one that no piece has, but the timestamp, which all records get."""
    batches = [(piece.data, piece.data.schema.names) for piece in pieces]
    held = {name for _, names in batches for name in names}
    arrays = [_column(column, batches) if column.name in held else None for column in schema.columns]
    arrays[schema.timestamp.index] = _timestamps(pieces, has_own=TIMESTAMP.name in held)
    return arrays


def _column(column: Column, batches: Sequence[tuple[pa.RecordBatch, Sequence[str]]]) -> pa.Array:
    name = column.name
    # By number: pyarrow takes half as long again to find a column by its name.
    arrays = [batch.column(names.index(name)) if name in names else column.nulls(batch.num_rows) for batch, names in batches]
    return _concatenated(arrays)


def _timestamps(pieces: Sequence[Piece], *, has_own: bool) -> pa.Array:
    if has_own:
        return _concatenated([_own_timestamps(piece) for piece in pieces])
    micros = np.array([piece.timestamp_ms for piece in pieces], np.int64) * 1000
    repeated = np.repeat(micros, [piece.record_count for piece in pieces])
    return pa.Array.from_buffers(TIMESTAMP.type, len(repeated), [None, pa.py_buffer(repeated)])


def _own_timestamps(piece: Piece) -> pa.Array:
    if TIMESTAMP.name not in piece.data.schema.names:
        return pa.array(np.full(piece.record_count, piece.timestamp_ms * 1000, np.int64)).view(TIMESTAMP.type)
    column = piece.data.column(TIMESTAMP.name)
    if column.null_count:
        column = column.fill_null(pa.scalar(piece.timestamp_ms * 1000, pa.int64()).cast(TIMESTAMP.type))
    return column


def _concatenated(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
