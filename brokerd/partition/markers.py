"""Markers: which transactions a control batch commits or aborts, and which transactions may have lost their marker to damage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from brokerd.errors import CorruptMessageError, UnsupportedVersionError
from brokerd.partition.producer_state import Marker, ProducerStates
from brokerd.record.batch import RecordBatch
from brokerd.record.control import decode_control
from brokerd.record.header import BatchHeader
from brokerd.storage.damage import DamagedRange
from brokerd.storage.files import File


def marker_of(batch: RecordBatch) -> Marker | None:
    """The marker in a control batch; None for other batches. Raises CorruptMessageError, UnsupportedVersionError."""
    if not batch.header.is_control:
        return None
    record = decode_control(batch)
    return Marker(tuple(record.committed_producer_ids), tuple(record.aborted_producer_ids))


def read_marker(file: File, position: int, header: BatchHeader) -> Marker | None:
    """The marker in a batch of a file; None if the batch is not a control batch or cannot be decoded. Raises OSError."""
    if not header.is_control:
        return None
    try:
        return marker_of(RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position)))))
    except (CorruptMessageError, UnsupportedVersionError):
        return None


class UnmarkedData(NamedTuple):
    """One member's data in one partition, in [`first_offset`, `end_offset`)."""

    producer_id: int
    first_offset: int
    end_offset: int
    is_readable: bool  # not all of it is below the log start
    lost: tuple[int, int] | None  # (from, until): the first damaged range that may have held its marker


def unmarked_data(producers: ProducerStates, damaged: Iterable[DamagedRange], log_start_offset: int) -> list[UnmarkedData]:
    """All data of open transactions in a partition, ordered by first offset.

    A marker follows all data of its member. Batches that an operator has taken out are intact, so their markers were applied.
    """
    lost = sorted((one.first_offset, one.until_offset) for one in damaged if not one.is_taken_out)
    found = []
    for producer_id, first_offset in producers.open_transactions.items():
        end_offset = producers.entries[producer_id].batches[-1].last_offset + 1
        behind = [(max(first, end_offset), until) for first, until in lost if until > max(end_offset, log_start_offset)]
        is_readable = end_offset > log_start_offset
        found.append(UnmarkedData(producer_id, first_offset, end_offset, is_readable, behind[0] if behind else None))
    return found


def with_lost_markers(found: Iterable[UnmarkedData]) -> set[int]:
    """Producer ids of the members whose marker may have been in a damaged range. `found`: the unmarked data of all partitions.

    A commit completes only once every partition with its data has a durable marker. So a partition with the member's data, no
    damage after it and no marker proves that no commit completed. Data below the log start is ignored: it proves nothing and is
    never read.
    """
    lost: set[int] = set()
    whole: set[int] = set()
    for one in found:
        if one.is_readable:
            (whole if one.lost is None else lost).add(one.producer_id)
    return lost - whole


def undecided_text(partition: str, data: UnmarkedData) -> str:
    """The message that it is unknown whether these records are committed, with the remedies."""
    first, until = data.lost or (data.end_offset, data.end_offset)
    return (
        f"{partition}: producer {data.producer_id} wrote records from offset {data.first_offset} to {data.end_offset - 1} in a "
        f"transaction, and it is unknown whether it was committed: its marker may be among the lost offsets {first} to "
        f"{until - 1}. Readers of committed records wait at offset {data.first_offset}. Restore the directory from a copy; or "
        "compare the records with their source, stop the broker, and decide: `brokerd doctor DIR --decide commit` or "
        "`--decide abort`"
    )
