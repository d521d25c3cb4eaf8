"""Look-ups in one partition. Those by time are in timestamps.py; the others read only headers: a reader's backlog in bytes, how far
a number of bytes reaches, and where the newest records begin.

Sizes are sizes on disk, which are also those of a fetch. The sparse index narrows an offset down to a few batches, so the cost of
the first two does not depend on the size of the range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from brokerd.errors import StorageError
from brokerd.partition.aborted_transactions import AbortedTransaction, AbortedTransactions
from brokerd.partition.reader import IsWanted, LookUp, PartitionReader
from brokerd.partition.timestamps import OffsetAndTimestamp, find_by_timestamp
from brokerd.record.header import BatchHeader
from brokerd.storage.segment import Segment

T = TypeVar("T")
_NONE = -1
_RETRY_AFTER_MS = 200
_PIECE_MAX_OFFSETS = 65_536


class Backlog(NamedTuple):
    """`size_bytes` on disk, from the batch that contains the first record; `append_timestamp` of that batch, ms, or -1."""

    size_bytes: int
    append_timestamp: int


def find_backlog(look_up: LookUp, offset: int, until_offset: int) -> Backlog:
    """See LookUps.backlog. Raises OSError, LookUpAbandoned."""
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
    """See LookUps.reach. Raises OSError, LookUpAbandoned."""
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
    """See LookUps.newest_offset. Raises OSError, LookUpAbandoned.

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


def find_transactional(look_up: LookUp, begin: int, end: int) -> bool:
    """See LookUps.has_transactions. Raises OSError, LookUpAbandoned."""
    return any(
        header.next_offset > begin and (header.is_transactional or header.is_control) for header in _headers(look_up, begin, end)
    )


def _headers(look_up: LookUp, begin: int, end: int) -> Iterator[BatchHeader]:
    """The headers of the batches that may have offsets between `begin` and `end`."""
    for segment in look_up.reader.segments:
        if segment.next_offset <= begin or segment.base_offset >= end:
            continue
        near = look_up.index_of(segment).floor(begin) or (segment.base_offset, 0)
        with look_up.reader.open_files.use(segment.path) as file:
            for _, header in look_up.headers(file, segment, *near):
                if header.base_offset >= end:
                    return
                yield header


def _records(look_up: LookUp, begin: int, end: int, aborted: list[AbortedTransaction]) -> Iterator[tuple[int, int]]:
    """The offset ranges [first, until) of batches between `begin` and `end` whose records readers get."""
    for header in _headers(look_up, begin, end):
        first, until = max(begin, header.base_offset), min(end, header.next_offset)
        is_void = header.is_transactional and any(
            header.producer_id == one.producer_id and one.first_offset <= header.base_offset < one.marker_offset for one in aborted
        )
        if first < until and not header.is_control and not is_void:
            yield first, until
        begin = max(begin, until)


def _always() -> bool:
    return True


class LookUps:
    """The look-ups in one partition, below the high watermark or, with `is_committed`, the last stable offset. They read files:
    call them in a thread. Each raises StorageError, OffsetNotAvailableError, and LookUpAbandoned once `is_wanted` returns False.
    """

    def __init__(self, reader: PartitionReader) -> None:
        self._reader = reader
        self._core = reader.core

    def offset_for_timestamp(
        self, timestamp_ms: int, *, is_committed: bool = False, is_wanted: IsWanted = _always
    ) -> OffsetAndTimestamp | None:
        """The first record whose timestamp is at least `timestamp_ms`; None if there is none. Raises LogDamagedError if it may lie
        in a damaged range.
        """
        until = self._core.latest_offset(is_committed=is_committed)
        return self._looked_up(is_wanted, lambda look_up: find_by_timestamp(look_up, timestamp_ms, until))

    def backlog(self, offset: int, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> Backlog:
        """What a reader at `offset` has left to read."""
        until = self._core.latest_offset(is_committed=is_committed)
        return self._looked_up(is_wanted, lambda look_up: find_backlog(look_up, offset, until))

    def reach(
        self, from_offset: int, until_offset: int, max_bytes: int, *, is_committed: bool = False, is_wanted: IsWanted = _always
    ) -> Reach:
        """How far `max_bytes` of whole batches reach, starting with the one that contains `from_offset`: the end of the last batch
        that fits (at least the first), at most `until_offset`.
        """
        end = min(until_offset, self._core.latest_offset(is_committed=is_committed))
        found = self._looked_up(is_wanted, lambda look_up: find_reach(look_up, from_offset, end, max_bytes))
        return found if found.offset < end else found._replace(offset=until_offset)

    def newest_offset(self, count: int, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> int:
        """The offset of the first of the newest `count` readable records; the log start if there are fewer."""
        until = self._core.latest_offset(is_committed=is_committed)
        # A copy: the event loop changes the index meanwhile.
        aborted = AbortedTransactions(self._core.producers.aborted.entries if is_committed else ())
        return self._looked_up(is_wanted, lambda look_up: find_newest(look_up, count, until, aborted))

    def has_transactions(self, from_offset: int, *, is_wanted: IsWanted = _always) -> bool:
        """True if a batch from `from_offset` on is of a transaction: a member's, or a marker. Raises StorageError."""
        return self._looked_up(is_wanted, lambda look_up: find_transactional(look_up, from_offset, self._core.ends.log_end_offset))

    def _looked_up(self, is_wanted: IsWanted, find: Callable[[LookUp], T]) -> T:
        try:
            return find(LookUp(self._reader, is_wanted))
        except FileNotFoundError:
            self._core.health.check_exists()
            # Retention or a cut was faster; a retry will probably succeed.
            raise StorageError(f"{self._core.name}: the log has just been cut", retry_after_ms=_RETRY_AFTER_MS) from None
        except OSError as error:
            raise StorageError(f"{self._core.name}: reading failed ({error.strerror})", retry_after_ms=_RETRY_AFTER_MS) from error
