"""Reads control batches as a partition sees them: whose transactions they end, by commit or abort."""

from __future__ import annotations

import pyarrow as pa

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.partition.core import Marker
from brokerd.record.batch import RecordBatch
from brokerd.record.control import decode_control
from brokerd.record.header import BatchHeader
from brokerd.storage.files import File


def marker_of(batch: RecordBatch, *, is_held: bool = False) -> Marker | None:
    """The marker in a control batch; None if it is no control batch. Raises CorruptMessageError, UnsupportedVersionError."""
    if not batch.header.is_control:
        return None
    record = decode_control(batch)
    return Marker((*record.committed_producer_ids, *record.aborted_producer_ids), is_held)


def read_marker(file: File, position: int, header: BatchHeader) -> tuple[int, ...]:
    """The members whose transactions a control batch in a file ends; none if it cannot be read: they stay open. Raises OSError."""
    try:
        marker = marker_of(RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position)))))
    except (CorruptMessageError, UnsupportedVersionError):
        return ()
    return tuple(marker.producer_ids) if marker is not None else ()
