"""Reads control batches: which members' transactions they commit or abort."""

from __future__ import annotations

import pyarrow as pa

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.partition.producer_state import Marker
from brokerd.record.batch import RecordBatch
from brokerd.record.control import decode_control
from brokerd.record.header import BatchHeader
from brokerd.storage.files import File


def marker_of(batch: RecordBatch) -> Marker | None:
    """The marker in a control batch; None for other batches. Raises CorruptMessageError, UnsupportedVersionError."""
    if not batch.header.is_control:
        return None
    record = decode_control(batch)
    return Marker(tuple(record.committed_producer_ids), tuple(record.aborted_producer_ids))


def read_marker(file: File, position: int, header: BatchHeader) -> Marker | None:
    """The marker in a batch of a file; None if it is not a control batch, or cannot be read. Raises OSError."""
    if not header.is_control:
        return None
    try:
        return marker_of(RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position)))))
    except (CorruptMessageError, UnsupportedVersionError):
        return None
