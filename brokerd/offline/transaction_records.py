"""Entries of the transaction log, and the batches of any log, as the doctor reads them. Read-only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from brokerd.datadir.own_entries import values_of
from brokerd.datadir.topic_store import TRANSACTION_STATE
from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import BatchHeader, crc_seed
from brokerd.storage.damage import holes_end, is_covered, read_holes
from brokerd.storage.files import File, Files
from brokerd.storage.names import LOG_SUFFIX, offset_file, parse_offset_file
from brokerd.storage.segment_walk import whole_batches
from brokerd.transaction.records import decode
from brokerd.wire.v1.transaction_log_pb2 import TransactionLogRecord


def is_transaction_log(tp: TopicIdPartition | None) -> bool:
    """True if the partition is the transaction log."""
    return tp is not None and tp.topic_id == TRANSACTION_STATE.id


def read_records(files: Files, tp: TopicIdPartition, log_start_offset: int) -> list[TransactionLogRecord | None]:
    """All records of the transaction log that can be read, oldest first, and None where others are lost, as a start reads them.
    Raises OSError, DataDirectoryError.
    """
    holes = read_holes(files, tp.directory_name, crc_seed(tp))
    lost = [hole for hole in holes if not hole.is_taken_out]
    records: list[TransactionLogRecord | None] = []
    expected = log_start_offset
    for file, position, header in batches_of(files, tp):
        if header.next_offset <= expected or is_covered(holes, header.base_offset, header.next_offset):
            continue
        if any(hole.first_offset < header.base_offset and expected < hole.until_offset for hole in lost):
            records.append(None)
        expected = header.next_offset
        batch = RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position))))
        with contextlib.suppress(CorruptMessageError, UnsupportedVersionError):
            records += [decode(value) for value in values_of(batch)]
    if holes_end(lost) > expected:
        records.append(None)
    return records


def batches_of(files: Files, tp: TopicIdPartition) -> Iterator[tuple[File, int, BatchHeader]]:
    """All whole batches of a partition: the open file, the position in it and the header. Payloads are not read. Raises OSError."""
    directory = tp.directory_name
    names = files.listdir(directory) if directory in files.listdir() else []
    bases = sorted(parsed[0] for parsed in map(parse_offset_file, names) if parsed is not None and parsed[1] == LOG_SUFFIX)
    for base in bases:
        file = files.open(f"{directory}/{offset_file(base, LOG_SUFFIX)}")
        try:
            for position, header in whole_batches(file, crc_seed(tp), base):
                yield file, position, header
        finally:
            file.close()
