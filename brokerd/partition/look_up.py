"""Look-ups in one partition: the first record at or after a time, a reader's backlog in bytes, the offset that a number of bytes
reaches, and the start of the newest records.

All but the first read only headers. Sizes are bytes on disk, as in a fetch. The sparse index narrows an offset down to a few
batches, so the cost of backlog and reach does not depend on the size of the range.

A look-up by time decodes the timestamp column of one batch. If no record there has a timestamp as large as the header promises, it
returns the start of the next batch whose header promises one. So the cost does not depend on what clients wrote, and a reader may
start a little early, never late.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pyarrow as pa

from brokerd.config.settings import INT64_MAX
from brokerd.errors import CorruptMessageError, StorageError, UnsupportedVersionError
from brokerd.partition.core import TIMESTAMP_MAX_MS
from brokerd.partition.producer_state import AbortedTransaction
from brokerd.partition.reader import PartitionReader
from brokerd.record.batch import RecordBatch
from brokerd.record.header import BatchHeader
from brokerd.record.schema import decode_timestamps, payload_crc
from brokerd.storage.damage import damage_at, past_taken_out
from brokerd.storage.files import File
from brokerd.storage.segment import Segment, SparseIndex

IsWanted = Callable[[], bool]
_Aborted = Mapping[int, AbortedTransaction]  # by producer id: a member has one transaction
_NONE = -1
_RETRY_AFTER_MS = 200
_PIECE_MAX_OFFSETS = 65_536
_US_PER_MS = 1_000


class OffsetAndTimestamp(NamedTuple):
    """A record's offset and its timestamp, ms."""

    offset: int
    timestamp: int


class Backlog(NamedTuple):
    """`size_bytes` on disk, from the batch with the first unread record on; `append_timestamp` of that batch, ms, or -1."""

    size_bytes: int
    append_timestamp: int


class Reach(NamedTuple):
    """The end offset of the last batch that fits, and the size of the batches up to there."""

    offset: int
    size_bytes: int


class LookUpAbandoned(Exception):  # noqa: N818 - not a failure: the caller is gone
    """The caller no longer waits for the result."""


class _LookUp(NamedTuple):
    """The log to search. `is_wanted` returns False once the caller no longer waits."""

    reader: PartitionReader
    is_wanted: IsWanted

    def index_of(self, segment: Segment) -> SparseIndex:
        """The index of a segment, loaded if necessary."""
        return segment.loaded_index(self.reader.core.config.index_interval_bytes)

    def headers(self, file: File, segment: Segment, begin: tuple[int, int] | None) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of the batches from `begin` on (offset and position; None: the segment's start), past damage. A
        wrong index entry may look like a bad batch, so at the first bad batch the scan restarts at the segment's start and yields
        headers again. Raises OSError, LookUpAbandoned.
        """
        is_start = begin is None
        while True:
            scan = segment.scan(file, begin=begin)
            for header in scan:
                if not self.is_wanted():
                    raise LookUpAbandoned
                yield scan.batch_position, header
            if scan.error is not None:
                raise scan.error
            if scan.problem is None:
                return
            if not is_start:
                is_start, begin = True, None
                continue
            damaged = self.reader.register(file, segment, scan.position, scan.next_offset, scan.problem)
            if damaged.resume_segment != segment.base_offset:
                return
            begin = (damaged.until_offset, damaged.resume_position)


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
        until_offset = self._core.latest_offset(is_committed=is_committed)
        aborted = self._aborted(is_committed=is_committed)
        with self._begun(is_wanted) as look_up:
            log_start_offset = self._core.ends.log_start_offset
            found = _find(look_up, timestamp_ms, log_start_offset, until_offset, aborted)
            end = found.offset if found is not None else until_offset
            for damaged in self._reader.damaged:
                # The record may have been in the damaged range, so neither a later record nor None is certain.
                if damaged.stops(log_start_offset) and damaged.first_offset < end:
                    raise self._reader.refusal(damaged)
            return found

    def backlog(self, offset: int, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> Backlog:
        """The backlog of a reader at `offset`."""
        until_offset = self._core.latest_offset(is_committed=is_committed)
        with self._begun(is_wanted) as look_up:
            offset = max(offset, self._core.ends.log_start_offset)
            size_bytes, append_timestamp = 0, _NONE
            for segment in self._reader.segments:
                if segment.next_offset <= offset or segment.base_offset >= until_offset or offset >= until_offset:
                    continue
                begin, end = 0, segment.size_bytes
                if append_timestamp == _NONE:
                    begin, header = _batch_of(look_up, segment, max(offset, segment.base_offset))
                    append_timestamp = header.append_timestamp if header is not None else _NONE
                if until_offset < segment.next_offset:
                    end, _ = _batch_of(look_up, segment, until_offset)
                size_bytes += max(0, end - begin)
            return Backlog(size_bytes, append_timestamp)

    def reach(
        self, from_offset: int, until_offset: int, max_bytes: int, *, is_committed: bool = False, is_wanted: IsWanted = _always
    ) -> Reach:
        """The end of the last whole batch that fits into `max_bytes`, counted from the batch that contains `from_offset`. The first
        batch always fits. The result is at most `until_offset`.
        """
        end = min(until_offset, self._core.latest_offset(is_committed=is_committed))
        with self._begun(is_wanted) as look_up:
            found = _reach(look_up, from_offset, end, max_bytes)
        return found if found.offset < end else found._replace(offset=until_offset)

    def newest_offset(
        self, count: int, until_offset: int = INT64_MAX, *, is_committed: bool = False, is_wanted: IsWanted = _always
    ) -> int:
        """The offset of the first of the newest `count` readable records below `until_offset`; the log start if there are fewer.

        Offset arithmetic is not enough, since control batches, aborted records (skipped by read_committed readers), and lost or
        taken-out records take offsets too. So records are counted by headers, backwards from the end in growing pieces.
        """
        until_offset = min(until_offset, self._core.latest_offset(is_committed=is_committed))
        aborted = self._aborted(is_committed=is_committed)
        with self._begun(is_wanted) as look_up:
            log_start_offset = self._core.ends.log_start_offset
            piece, end, left = min(count, _PIECE_MAX_OFFSETS), until_offset, count
            while 0 < left < end - log_start_offset:  # otherwise no record is left to find, or the range holds too few
                begin = max(log_start_offset, end - piece)
                for first, until in reversed(list(_records(look_up, begin, end, aborted))):
                    if left <= until - first:
                        return until - left
                    left -= until - first
                piece, end = min(2 * piece, _PIECE_MAX_OFFSETS), begin
            return log_start_offset if count else until_offset

    def has_transactions(self, from_offset: int, *, is_wanted: IsWanted = _always) -> bool:
        """True if a batch from `from_offset` on is transactional or a control batch. Raises StorageError."""
        with self._begun(is_wanted) as look_up:
            return any(
                header.next_offset > from_offset and (header.is_transactional or header.is_control)
                for header in _headers(look_up, from_offset, self._core.ends.log_end_offset)
            )

    def _aborted(self, *, is_committed: bool) -> _Aborted:
        """The transactions whose records are not looked up. A copy: the event loop changes the index meanwhile."""
        return {one.producer_id: one for one in self._core.producers.aborted.entries} if is_committed else {}

    @contextlib.contextmanager
    def _begun(self, is_wanted: IsWanted) -> Iterator[_LookUp]:
        try:
            yield _LookUp(self._reader, is_wanted)
        except FileNotFoundError:
            self._core.health.check_exists()
            # Retention or a cut has removed the file; a retry will probably succeed.
            raise StorageError(f"{self._core.name}: the log has just been cut", retry_after_ms=_RETRY_AFTER_MS) from None
        except OSError as error:
            raise StorageError(f"{self._core.name}: reading failed ({error.strerror})", retry_after_ms=_RETRY_AFTER_MS) from error


def _find(
    look_up: _LookUp, timestamp_ms: int, first_offset: int, until_offset: int, aborted: _Aborted
) -> OffsetAndTimestamp | None:
    """The first readable record from `first_offset` up to `until_offset` whose timestamp is at least `timestamp_ms`. Returns the
    start of its batch if the records have no timestamps of their own, or one batch has been decoded already.

    Markers do not count: their time is that of the commit, which says nothing about rows that bring their own, such as those of a
    copied topic. Nor do aborted records, whose times may come again in the records that replace them.
    """
    reader, has_decoded = look_up.reader, False
    for segment in reader.segments:
        if segment.max_timestamp < timestamp_ms or segment.next_offset <= first_offset:
            continue
        begin = look_up.index_of(segment).floor_by_time(timestamp_ms)
        with reader.open_files.use(segment.path) as file:
            for position, header in look_up.headers(file, segment, begin):
                if header.base_offset >= until_offset:
                    return None
                is_wanted = header.readers_timestamp >= timestamp_ms and header.last_offset >= first_offset
                if header.is_control or not is_wanted or past_taken_out(reader.damaged, header.base_offset) >= header.next_offset:
                    continue
                if _is_void(header, aborted):
                    continue
                whole = OffsetAndTimestamp(max(header.base_offset, first_offset), header.readers_timestamp)
                if has_decoded or header.is_log_append_time:
                    return whole
                has_decoded = True
                found = _find_in_batch(header, _times(reader, file, position, header), timestamp_ms, whole)
                if found is not None:
                    return found
    return None


def _find_in_batch(
    header: BatchHeader, times: pa.Array | None, timestamp_ms: int, whole: OffsetAndTimestamp
) -> OffsetAndTimestamp | None:
    """The first match in a batch, from the offset of `whole` on. Without a match: `whole` if some times are unknown, else None."""
    if times is None:
        return whole
    import pyarrow.compute as pc

    # Records store microseconds; Kafka's clients see milliseconds, rounded down.
    matches = pc.greater_equal(times, min(timestamp_ms, TIMESTAMP_MAX_MS) * _US_PER_MS)
    skipped = whole.offset - header.base_offset
    at = pc.index(matches.slice(skipped), True).as_py()
    if at < 0:
        return None if times.null_count == 0 else whole
    at += skipped
    return OffsetAndTimestamp(header.base_offset + at, times[at].as_py() // _US_PER_MS)


def _times(reader: PartitionReader, file: File, position: int, header: BatchHeader) -> pa.Array | None:
    """The timestamps of a batch's records, microseconds; None if they cannot be decoded. Raises LogDamagedError, NotLeaderError,
    OSError.
    """
    batch = RecordBatch(header, pa.py_buffer(bytes(file.pread(header.size, position))))
    if payload_crc(batch.payload) != header.payload_crc:
        raise reader.payload_changed(header)
    try:
        return decode_timestamps(
            batch.payload,
            schema_id=header.schema_id,
            record_count=header.record_count,
            uncompressed_bytes=header.uncompressed_bytes,
        ).cast(pa.int64())
    except (CorruptMessageError, UnsupportedVersionError):
        return None


def _batch_of(look_up: _LookUp, segment: Segment, offset: int) -> tuple[int, BatchHeader | None]:
    """Position and header of the batch that contains `offset`, or of the next readable batch in the segment; the segment's end and
    None if there is none. Raises OSError, LookUpAbandoned.
    """
    begin = look_up.index_of(segment).floor(offset)
    with look_up.reader.open_files.use(segment.path) as file:
        for position, header in look_up.headers(file, segment, begin):
            if header.next_offset > offset:
                return position, header
    return segment.size_bytes, None


class _Wanted(NamedTuple):
    """The part of a segment to measure, from the batch that contains `offset`, which begins at `position`."""

    offset: int
    position: int
    until_offset: int
    until_position: int  # a batch that ends after this does not fit


def _reach(look_up: _LookUp, from_offset: int, until_offset: int, max_bytes: int) -> Reach:
    offset = max(from_offset, look_up.reader.core.ends.log_start_offset)
    size_bytes = 0
    for segment in look_up.reader.segments:
        if segment.next_offset <= offset or segment.base_offset >= until_offset:
            continue
        begin = 0
        if segment.base_offset < offset:
            begin, _ = _batch_of(look_up, segment, offset)
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


def _reach_within(look_up: _LookUp, segment: Segment, wanted: _Wanted, *, needs_one: bool) -> Reach | None:
    """The end of the segment's last batch that fits; with `needs_one` the first always does. None if no batch fits."""
    index = look_up.index_of(segment)
    near = min(index.floor(wanted.until_offset) or (0, 0), index.floor_by_position(wanted.until_position) or (0, 0))
    is_near = near[1] > wanted.position
    begin = near if is_near else index.floor(wanted.offset)
    found = Reach(near[0], near[1] - wanted.position) if is_near else None
    with look_up.reader.open_files.use(segment.path) as file:
        for position, header in look_up.headers(file, segment, begin):
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


def _headers(look_up: _LookUp, begin: int, end: int) -> Iterator[BatchHeader]:
    """The headers of the batches that may have offsets between `begin` and `end`."""
    for segment in look_up.reader.segments:
        if segment.next_offset <= begin or segment.base_offset >= end:
            continue
        near = look_up.index_of(segment).floor(begin)
        with look_up.reader.open_files.use(segment.path) as file:
            for _, header in look_up.headers(file, segment, near):
                if header.base_offset >= end:
                    return
                yield header


def _records(look_up: _LookUp, begin: int, end: int, aborted: _Aborted) -> Iterator[tuple[int, int]]:
    """The offset ranges [first, until) of the batches between `begin` and `end` whose records are visible to readers."""
    for header in _headers(look_up, begin, end):
        first, until = max(begin, header.base_offset), min(end, header.next_offset)
        is_lost = damage_at(look_up.reader.damaged, first) is not None  # or taken out
        if first < until and not (header.is_control or is_lost or _is_void(header, aborted)):
            yield first, until
        begin = max(begin, until)


def _is_void(header: BatchHeader, aborted: _Aborted) -> bool:
    """True if the batch belongs to one of these transactions."""
    one = aborted.get(header.producer_id) if header.is_transactional else None
    return one is not None and one.first_offset <= header.base_offset < one.marker_offset
