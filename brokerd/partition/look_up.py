"""Look-ups in one partition that read only headers: a reader's backlog in bytes, how far a number of bytes reaches, and where the
newest records begin.

Sizes are sizes on disk, which are also those of a fetch. The sparse index narrows an offset down to a few batches, so the cost of
the first two does not depend on the size of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from brokerd.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from brokerd.partition.reader import PartitionReader
from brokerd.record.header import BatchHeader
from brokerd.storage.files import File
from brokerd.storage.index import SparseIndex
from brokerd.storage.segment import Segment

_NONE = -1
_PIECE_MAX_OFFSETS = 65_536

IsWanted = Callable[[], bool]


class LookUpAbandoned(Exception):  # noqa: N818 - not a failure: the caller is gone
    """The caller no longer waits for the result."""


class LookUp(NamedTuple):
    """The log to search, and whether the caller still waits for the result."""

    reader: PartitionReader
    is_wanted: IsWanted

    def index_of(self, segment: Segment) -> SparseIndex:
        """The index of a segment, loaded if necessary."""
        return segment.loaded_index(self.reader.core.config.index_interval_bytes)

    def headers(self, file: File, segment: Segment, offset: int, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of the batches from `position` on, past damage. A wrong index entry may look like a bad batch, so
        the first time, the scan restarts at the segment's start and yields headers again. Raises OSError, LookUpAbandoned.
        """
        is_start = position == 0
        while True:
            scan = segment.scan(file, begin=(offset, position))
            for header in scan:
                if not self.is_wanted():
                    raise LookUpAbandoned
                yield scan.batch_position, header
            if scan.error is not None:
                raise scan.error
            if scan.problem is None:
                return
            if not is_start:
                is_start, offset, position = True, segment.base_offset, 0
                continue
            damaged = self.reader.register(file, segment, scan.position, scan.next_offset, scan.problem)
            if damaged.resume_segment != segment.base_offset:
                return
            offset, position = damaged.until_offset, damaged.resume_position


class Backlog(NamedTuple):
    """`size_bytes` on disk, from the batch that contains the first record; `append_timestamp` of that batch, ms, or -1."""

    size_bytes: int
    append_timestamp: int


def find_backlog(look_up: LookUp, offset: int, until_offset: int) -> Backlog:
    """See Partition.backlog. Raises OSError, LookUpAbandoned."""
    offset = max(offset, look_up.reader.core.ends.log_start_offset)
    size_bytes, append_timestamp = 0, _NONE
    for segment in look_up.reader.segments:
        if segment.next_offset <= offset or segment.base_offset >= until_offset or offset >= until_offset:
            continue
        begin, end = 0, segment.size_bytes
        if append_timestamp == _NONE:
            begin, header = batch_of(look_up, segment, max(offset, segment.base_offset))
            append_timestamp = header.append_timestamp if header is not None else _NONE
        if until_offset < segment.next_offset:
            end, _ = batch_of(look_up, segment, until_offset)
        size_bytes += max(0, end - begin)
    return Backlog(size_bytes, append_timestamp)


def batch_of(look_up: LookUp, segment: Segment, offset: int) -> tuple[int, BatchHeader | None]:
    """Position and header of the batch that contains `offset`, or of the next readable one in the segment; the segment's end and
    None if there is none. Raises OSError, LookUpAbandoned.
    """
    begin = look_up.index_of(segment).floor(offset) or (segment.base_offset, 0)
    with look_up.reader.open_files.use(segment.path) as file:
        for position, header in look_up.headers(file, segment, *begin):
            if header.next_offset > offset:
                return position, header
    return segment.size_bytes, None


class Reach(NamedTuple):
    """The end offset of the last batch that fits, and the size of the batches up to there."""

    offset: int
    size_bytes: int


class _Wanted(NamedTuple):
    """The part of a segment to measure, from the batch that contains `offset`, which begins at `position`."""

    offset: int
    position: int
    until_offset: int
    until_position: int  # a batch that ends after this does not fit


def find_reach(look_up: LookUp, from_offset: int, until_offset: int, max_bytes: int) -> Reach:
    """See Partition.reach. Raises OSError, LookUpAbandoned."""
    offset = max(from_offset, look_up.reader.core.ends.log_start_offset)
    size_bytes = 0
    for segment in look_up.reader.segments:
        if segment.next_offset <= offset or segment.base_offset >= until_offset:
            continue
        begin = 0
        if segment.base_offset < offset:
            begin, _ = batch_of(look_up, segment, offset)
        until_position = begin + max_bytes - size_bytes
        if segment.next_offset <= until_offset and segment.size_bytes <= until_position:
            size_bytes += segment.size_bytes - begin
            continue
        wanted = _Wanted(max(offset, segment.base_offset), begin, until_offset, until_position)
        found = _reach_within(look_up, segment, wanted, needs_one=size_bytes == 0)
        if found is None:
            return Reach(wanted.offset, size_bytes)
        size_bytes += found.size_bytes
        if found.offset < min(segment.next_offset, until_offset):
            return Reach(found.offset, size_bytes)
    return Reach(until_offset, size_bytes)


def _reach_within(look_up: LookUp, segment: Segment, wanted: _Wanted, *, needs_one: bool) -> Reach | None:
    """The end of the segment's last batch that fits; with `needs_one` the first always does. None if no batch fits."""
    index = look_up.index_of(segment)
    near = min(index.floor(wanted.until_offset) or (0, 0), index.floor_by_position(wanted.until_position) or (0, 0))
    begin = near if near[1] > wanted.position else index.floor(wanted.offset) or (segment.base_offset, 0)
    found = Reach(begin[0], begin[1] - wanted.position) if begin is near else None
    with look_up.reader.open_files.use(segment.path) as file:
        for position, header in look_up.headers(file, segment, *begin):
            end = position + header.size
            if header.next_offset <= wanted.offset:
                continue
            if header.base_offset >= wanted.until_offset:
                return found
            if end > wanted.until_position and (found is not None or not needs_one):
                return found
            found = Reach(header.next_offset, end - wanted.position)
            if end > wanted.until_position:
                return found
    # The rest of the segment is unreadable: reads of it raise LogDamagedError.
    return Reach(segment.next_offset, segment.size_bytes - wanted.position)


def find_newest(look_up: LookUp, count: int, until_offset: int, aborted: AbortedTransactions) -> int:
    """See Partition.newest_offset. Raises OSError, LookUpAbandoned.

    Offset arithmetic is not enough: control batches take offsets too, and so do aborted records, which read_committed readers skip.
    So records are counted by headers, backwards from the end in growing pieces.
    """
    log_start_offset = look_up.reader.core.ends.log_start_offset
    piece, end, left = min(count, _PIECE_MAX_OFFSETS), until_offset, count
    while 0 < left < end - log_start_offset:  # otherwise no record is left to find, or the range holds too few
        begin = max(log_start_offset, end - piece)
        for first, until in reversed(list(_records(look_up, begin, end, aborted.overlapping(begin, end)))):
            if left <= until - first:
                return until - left
            left -= until - first
        piece, end = min(2 * piece, _PIECE_MAX_OFFSETS), begin
    return log_start_offset if count else until_offset


def _records(look_up: LookUp, begin: int, end: int, aborted: list[AbortedTransaction]) -> Iterator[tuple[int, int]]:
    """The offset ranges [first, until) of batches between `begin` and `end` whose records readers get."""
    for segment in look_up.reader.segments:
        if segment.next_offset <= begin or segment.base_offset >= end:
            continue
        near = look_up.index_of(segment).floor(begin) or (segment.base_offset, 0)
        with look_up.reader.open_files.use(segment.path) as file:
            for _, header in look_up.headers(file, segment, *near):
                if header.base_offset >= end:
                    return
                first, until = max(begin, header.base_offset), min(end, header.next_offset)
                is_void = header.is_transactional and any(
                    header.producer_id == one.producer_id and one.first_offset <= header.base_offset < one.marker_offset
                    for one in aborted
                )
                if first < until and not header.is_control and not is_void:
                    yield first, until
                begin = max(begin, until)
