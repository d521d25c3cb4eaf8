"""Splits a batch that the broker finds too large: decodes its bytes, and cuts its columns into pieces. This is rare, so it copies:
pieces share no memory, and each is freed with its own batch.
"""

from __future__ import annotations

import pyarrow as pa

from brokerd.producer.core.producer_batch import NO_TIMESTAMP, Piece, ProducerBatch
from brokerd.producer.rows.columns import ROW_OVERHEAD_BYTES
from brokerd.record.payload import decode_payload


def split_rows(batch: ProducerBatch, size_max: int) -> list[Piece]:
    """The records of an encoded batch of two or more, in order, in at least two pieces of as many records each; if those are
    much alike, a piece has `size_max` bytes at most, uncompressed (or one record)."""
    payload = batch.encoded.payload
    rows = decode_payload(
        payload.data,
        schema_id=payload.schema_id,
        record_count=payload.record_count,
        uncompressed_bytes=payload.uncompressed_bytes,
        max_uncompressed_bytes=payload.uncompressed_bytes,
    )
    # A piece without a column has nulls in it: lists of nothing would cost their children's offsets in each.
    rows = rows.drop_columns([name for name, column in zip(rows.schema.names, rows.columns, strict=True) if _says_nothing(column)])
    count = max(2, -(-batch.uncompressed_bytes // size_max))
    rows_each = max(1, rows.num_rows // count)
    empty = rows.slice(0, 0)
    pieces = []
    for at in range(0, rows.num_rows, rows_each):
        copied = pa.concat_batches([empty, rows.slice(at, rows_each)])
        size = copied.nbytes + copied.num_rows * ROW_OVERHEAD_BYTES
        pieces.append(Piece(copied, copied.num_rows, size, NO_TIMESTAMP))
    return pieces


def _says_nothing(column: pa.Array) -> bool:
    return bool(pa.types.is_list(column.type) and column.null_count == len(column))
