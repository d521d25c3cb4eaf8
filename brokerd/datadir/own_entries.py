"""Entries of the broker's own logs, as bytes; the packages groups and transaction decode them."""

from __future__ import annotations

from brokerd.record.batch import MAX_DECOMPRESSED_BYTES, RecordBatch


def values_of(batch: RecordBatch) -> list[bytes]:
    """The values of a batch's entries, one for each offset. Raises CorruptMessageError, UnsupportedVersionError."""
    values = batch.to_arrow(max_uncompressed_bytes=MAX_DECOMPRESSED_BYTES).column("value")
    return [value or b"" for value in values.to_pylist()]
