"""The sparse index of one segment: offset to position, and time to position. No I/O. Derived from the log, so never trusted.

Operations: `add` at the end, `floor` by offset, `floor_by_position`, `floor_by_time`. Entries are about index.interval.bytes apart;
a search gives the position of a batch at or before the wanted one, and the reader walks headers from there. The index file is
written after a roll or at shutdown, with a summary that a reader compares with the segment.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from brokerd.storage.checksummed_file import DocumentError

_SUMMARY = struct.Struct("<IqqqqqqI")


class SegmentSummary(NamedTuple):
    """The bounds of a closed segment. Timestamps in ms, -1 if it is empty."""

    seed: int  # CRC seed of the partition: rejects an index of another log
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp: int
    first_log_time: int
    max_log_time: int


class SparseIndex:
    """Entries (offset, position, largest timestamp before that batch). Any thread may read while one appends."""

    __slots__ = ("offsets", "positions", "times")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, position: int, max_timestamp_before: int) -> None:
        """Adds the entry of a batch. Offsets, positions and times never decrease."""
        # `offsets` last: searches in other threads use its length, so they never see an incomplete entry.
        self.positions.append(position)
        self.times.append(max_timestamp_before)
        self.offsets.append(offset)

    def floor(self, offset: int) -> tuple[int, int] | None:
        """(base offset, position) of the last indexed batch that begins at or before `offset`; None: begin at the start."""
        at = bisect_right(self.offsets, offset)
        return (self.offsets[at - 1], self.positions[at - 1]) if at else None

    def floor_by_position(self, position: int) -> tuple[int, int] | None:
        """(base offset, position) of the last indexed batch that begins at or before `position`; None: begin at the start."""
        at = bisect_right(self.positions, position, 0, len(self.offsets))
        return (self.offsets[at - 1], self.positions[at - 1]) if at else None

    def floor_by_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(base offset, position) of the last indexed batch before which every timestamp is smaller than `timestamp_ms`."""
        at = bisect_left(self.times, timestamp_ms, 0, len(self.offsets))
        return (self.offsets[at - 1], self.positions[at - 1]) if at else None


def encode_index(index: SparseIndex, summary: SegmentSummary) -> bytes:
    """The body of `.index`."""
    head = _SUMMARY.pack(*summary, len(index))
    return head + index.offsets.tobytes() + index.positions.tobytes() + index.times.tobytes()


def decode_index(body: bytes) -> tuple[SparseIndex, SegmentSummary]:
    """The index and the segment's summary. Raises DocumentError."""
    summary, count = decode_summary(body)
    columns, size = body[_SUMMARY.size :], 8 * count
    if len(columns) != 3 * size:
        raise DocumentError(f"the index does not have {count} entries")
    index = SparseIndex()
    index.offsets.frombytes(columns[:size])
    index.positions.frombytes(columns[size : 2 * size])
    index.times.frombytes(columns[2 * size :])
    return index, summary


def decode_summary(body: bytes) -> tuple[SegmentSummary, int]:
    """The summary and the number of entries of an index body. Raises DocumentError."""
    if len(body) < _SUMMARY.size:
        raise DocumentError("the index is shorter than its summary")
    *summary, count = _SUMMARY.unpack_from(body)
    return SegmentSummary(*summary), count
