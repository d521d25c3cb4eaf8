"""Reads whole batches from one partition's files. Runs in the event loop (with cached_only) or in a thread.

A read takes the segments as an immutable tuple, so rolls and retention in the event loop do not disturb it. Partition.read bounds
each read by a log end.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, cast

from brokerd.errors import LogDamagedError, NotLeaderError, StorageError
from brokerd.partition.core import PartitionCore
from brokerd.record.batch import NO_OFFSET_LIMIT, Walk, walk_whole
from brokerd.record.header import HEADER_SIZE, BatchHeader
from brokerd.storage.damage import PAYLOAD_CHANGED, DamagedRange, damage_at, damage_error, past_taken_out
from brokerd.storage.files import Buffer, File, WouldBlock
from brokerd.storage.holes import Hole, is_covered
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.refusals import Refusals
from brokerd.storage.resync import Resync
from brokerd.storage.segment import Segment

logger = logging.getLogger(__name__)

NO_LIMIT = 2**63 - 1
_HINTS_MAX = 256
_PROBE_BYTES = 4_096
# RWF_NOWAIT does not wait for the disk, but makes the kernel start reading missing pages: for some megabytes, 10 ms of work in the
# event loop. So a large read first probes single bytes. If one is not cached, a thread does the read.
_INLINE_BYTES = 131_072
_PROBE_EVERY_BYTES = 262_144
_COPY_ADVICE = "; while other copies are in sync, take this one away with `brokerd cluster reassign`, and give it back"


class NeedsRoom(Exception):  # noqa: N818 - not a failure: repeat with room for `size_bytes`
    """The first batch, of `size_bytes`, exceeds `first_batch_max_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class FetchDataInfo(NamedTuple):
    """Whole batches, as consecutive bytes-like chunks. `first_offset`: base offset of the first batch, which may lie below the
    requested offset. `until_offset`: the log end that bounded the read."""

    chunks: list[Buffer]
    size_bytes: int
    first_offset: int
    next_offset: int
    until_offset: int


class PartitionReader:
    """Reads the segments of one partition."""

    def __init__(
        self,
        core: PartitionCore,
        seed: int,
        open_files: OpenFiles,
        refusals: Refusals,
        on_damage: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_damage` is called in the thread that finds new damage."""
        self.core = core
        self.open_files = open_files
        self.refusals = refusals
        self.seed = seed
        self._on_damage = on_damage
        self._reporting = threading.Lock()  # several threads may find damage at the same time
        self._hints: dict[int, tuple[int, int]] = {}  # next offset of an earlier read -> (segment base, position)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments, oldest first; the last one is appended to."""
        return cast("tuple[Segment, ...]", self.core.segments)  # a Partition passes only Segments to its core

    @property
    def damaged(self) -> tuple[DamagedRange, ...]:
        """All known damaged ranges."""
        return self.core.health.damaged

    def read(
        self, offset: int, *, max_bytes: int, until_offset: int, cached_only: bool, first_batch_max_bytes: int = NO_LIMIT
    ) -> FetchDataInfo:
        """Reads below `until_offset`; see Partition.read. Raises FileNotFoundError if the segment of `offset` is removed."""
        known, bound = self.damaged, until_offset
        if known:
            offset = past_taken_out(known, offset)
            damaged = damage_at(known, offset)
            if damaged is not None:
                raise self.refusal(damaged)
            until_offset = min([until_offset, *(entry.first_offset for entry in known if entry.first_offset > offset)])
        read = _Read(self, offset, until_offset, max_bytes, cached_only, max(max_bytes, first_batch_max_bytes))
        read.run()
        return FetchDataInfo(read.chunks, read.size_bytes, read.first_offset, read.next_offset, bound)

    def segment_at(self, offset: int) -> Segment:
        """The segment that contains `offset`. Raises FileNotFoundError if it has been removed."""
        segments = self.segments
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        if at < 0:
            raise FileNotFoundError
        return segments[at]

    def hint(self, offset: int, segment: Segment) -> int | None:
        """The position of the batch at `offset`, if an earlier read ended there. The read verifies it like an index entry."""
        base_offset, position = self._hints.get(offset, (-1, 0))
        return position if base_offset == segment.base_offset else None

    def keep_hint(self, next_offset: int, segment: Segment, position: int) -> None:
        """Remembers the position of the batch at `next_offset`, where the same reader's next read most likely starts."""
        if len(self._hints) >= _HINTS_MAX:
            self._hints.clear()
        if next_offset < segment.next_offset:
            self._hints[next_offset] = (segment.base_offset, position)

    def forget_hints(self) -> None:
        """Drops position hints. Call it when segments are removed or cut."""
        self._hints.clear()

    def register(self, file: File, segment: Segment, position: int, bad_offset: int, problem: str) -> DamagedRange:
        """The damaged range that begins with the bad batch at `position`, reported to the core if new. Raises OSError;
        FileNotFoundError if the segment has been removed or cut meanwhile (a cut overwrites it with zeros, which are not damage).
        """
        if segment not in self.segments:
            raise FileNotFoundError
        for known in self.damaged:
            leads_on = known.resume_segment == segment.base_offset or known.until_offset >= segment.next_offset
            if known.first_offset <= bad_offset < known.until_offset and leads_on:
                return known
        search = Resync(file, self.seed, end=segment.size_bytes, limit_offset=segment.next_offset)
        found = search.find(position, bad_offset)
        if found is None:
            damaged = DamagedRange(bad_offset, segment.next_offset, problem)
        else:
            damaged = DamagedRange(bad_offset, found.header.base_offset, problem, segment.base_offset, found.position)
        damaged = damaged._replace(place=_place(segment, position))
        holes = [Hole(entry.first_offset, entry.until_offset) for entry in self.damaged if entry.is_accepted]
        damaged = damaged._replace(is_accepted=is_covered(holes, bad_offset, damaged.until_offset))
        self.report(damaged)
        return damaged

    def payload_changed(self, header: BatchHeader) -> LogDamagedError | NotLeaderError:
        """Reports a batch whose payload fails its CRC, unless known, and returns the error for its reader. Call it in a thread."""
        known = damage_at(self.damaged, header.base_offset)
        if known is not None:  # may be accepted as lost
            return self.refusal(known)
        damaged = DamagedRange(header.base_offset, header.next_offset, PAYLOAD_CHANGED, place=self._place_of(header))
        self.report(damaged)
        return self.refusal(damaged)

    def _place_of(self, header: BatchHeader) -> str:
        """File and byte at which a batch begins; empty if it cannot be read or the segment has been removed meanwhile."""
        with contextlib.suppress(OSError):
            segment = self.segment_at(header.base_offset)
            with self.open_files.use(segment.path) as file:
                scan = segment.scan(file)
                if any(known.base_offset == header.base_offset for known in scan):
                    return _place(segment, scan.batch_position)
        return ""

    def refusal(self, damaged: DamagedRange) -> LogDamagedError | NotLeaderError:
        """The error for a read of the range: NotLeaderError if another in-sync replica will lead and can serve the read."""
        error = damage_error(self.core.name, damaged)
        if not self.core.hands_over:
            return error
        return NotLeaderError(f"{error.message}; another replica that is in sync will lead")

    def report(self, damaged: DamagedRange) -> None:
        """Reports a damaged range to the core and logs it, if new."""
        with self._reporting:
            if damaged in self.damaged:  # another thread may have found it meanwhile
                return
            self.core.damage_found(damaged)
        self._on_damage()
        if not damaged.is_accepted:
            advice = _COPY_ADVICE if self.core.in_sync.members > 1 else ""
            place = f" (in {damaged.place})" if damaged.place else ""
            logger.error("%s%s%s", damage_error(self.core.name, damaged), place, advice)


class _Start(NamedTuple):
    """The batch to start at: its base offset and position. `is_derived`: from an index or a hint, so it may be wrong."""

    offset: int
    position: int
    is_derived: bool


class _Read:
    """One read: its limits, and the batches taken so far. It continues at `next_offset`."""

    def __init__(
        self, reader: PartitionReader, offset: int, until_offset: int, max_bytes: int, cached_only: bool, first_max_bytes: int
    ) -> None:
        self.chunks: list[Buffer] = []
        self.size_bytes = 0
        self.first_offset = self.next_offset = offset
        self._reader = reader
        self._until_offset = until_offset
        self._max_bytes = max_bytes
        self._cached_only = cached_only
        self._first_max_bytes = first_max_bytes  # of the first batch, which may be larger than `max_bytes`
        self._readable_bytes = NO_LIMIT  # largest size to read at once; lowered after an EIO

    def run(self) -> None:
        """Takes chunk after chunk. An error ends the read, and is raised only if nothing was taken before."""
        while self.next_offset < self._until_offset and (not self.chunks or self.size_bytes < self._max_bytes):
            try:
                if not self._read_segment():
                    return
            except (WouldBlock, FileNotFoundError, LogDamagedError, NotLeaderError, StorageError):
                if self.chunks:
                    return  # the next read starts there and raises it
                raise

    def _read_segment(self) -> bool:
        """Takes one chunk of the segment that contains `next_offset`; False if no batch there can be taken."""
        segment = self._reader.segment_at(self.next_offset)
        try:
            with self._reader.open_files.use(segment.path) as file:
                return self._read_from(file, segment, self._start(segment))
        except FileNotFoundError:
            raise  # probably removed meanwhile; Partition.read checks
        except OSError as error:
            if error.errno == errno.EIO:
                self._reader.refusals.refused(error)
            wait = " (too many open files)" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
            text = f"{self._reader.core.name}: reading at offset {self.next_offset} failed: {error.strerror}{wait}"
            raise StorageError(text, retry_after_ms=100) from error

    def _start(self, segment: Segment) -> _Start:
        offset, reader = self.next_offset, self._reader
        hint = reader.hint(offset, segment)
        if hint is not None:
            return _Start(offset, hint, True)
        if self._cached_only and segment.index is None:
            raise WouldBlock
        floor = segment.loaded_index(reader.core.config.index_interval_bytes).floor(offset)
        start = _Start(segment.base_offset, 0, False) if floor is None else _Start(*floor, True)
        for damaged in reader.damaged:
            if damaged.resume_segment == segment.base_offset and start.offset < damaged.until_offset <= offset:
                start = _Start(damaged.until_offset, damaged.resume_position, False)
        return start

    def _read_from(self, file: File, segment: Segment, start: _Start) -> bool:
        """Walks the segment from `start` to the batch that contains `next_offset`, and takes whole batches from there."""
        end, left_bytes = segment.size_bytes, self._max_bytes - self.size_bytes
        least, size = HEADER_SIZE, max(left_bytes, _PROBE_BYTES)
        while start.position < end:
            skipped = 0 if start.offset == self.next_offset else self._reader.core.config.index_interval_bytes
            wanted = min(size + skipped, end - start.position, max(self._readable_bytes, least))
            if self._cached_only and wanted > _INLINE_BYTES:
                _probe(file, start.position, wanted)
            try:
                data = file.pread(wanted, start.position, nowait=self._cached_only)
            except OSError as error:
                if error.errno != errno.EIO or wanted <= least:
                    raise
                # The unreadable bytes may lie behind the wanted batches. Shrink fast, since each failure may take the disk long.
                self._readable_bytes = wanted // 16
                continue
            walk = walk_whole(
                data,
                0,
                end - start.position,
                self._reader.seed,
                start.offset,
                wanted=self.next_offset,
                until_offset=self._until_offset,
            )
            if walk.end > walk.start:
                return self._take(data, walk, segment, start.position)
            if walk.reached_until:
                return False
            if walk.problem is not None:
                start = self._past_bad_batch(file, segment, start, walk, walk.problem)
                continue
            if len(data) < wanted:
                if self._cached_only:
                    raise WouldBlock
                start = self._behind(file, segment, start, walk, "bytes are missing")
                continue
            if walk.needed > left_bytes and not self._has_room(walk.needed):
                return False
            start = _Start(walk.next_offset, start.position + walk.end, start.is_derived)
            least, size = max(HEADER_SIZE, walk.needed), max(size, walk.needed)
        return False

    def _take(self, data: Buffer, walk: Walk, segment: Segment, position: int) -> bool:
        """Takes the batches of a walk that still fit; False if none does. `position`: of `data` in the segment."""
        left_bytes = self._max_bytes - self.size_bytes
        end, next_offset = walk.end, walk.next_offset
        if end - walk.start > left_bytes:
            # Happens only if skipped batches left room for more than was requested, or the first batch is larger.
            end, next_offset = self._trim(data, walk, left_bytes)
        self._reader.keep_hint(next_offset, segment, position + end)
        if end - walk.start > left_bytes and not self._has_room(end - walk.start):
            return False
        if not self.chunks:
            self.first_offset = walk.first_offset
        self.chunks.append(data if walk.start == 0 and end == len(data) else memoryview(data)[walk.start : end])
        self.size_bytes += end - walk.start
        self.next_offset = next_offset
        return True

    def _trim(self, data: Buffer, walk: Walk, max_bytes: int) -> tuple[int, int]:
        """End and next offset of the walk's batches that fit `max_bytes`; at least one."""
        view, first = memoryview(data), walk.start
        size = max(max_bytes, HEADER_SIZE)
        while True:
            fitting = walk_whole(view[first : first + size], 0, NO_OFFSET_LIMIT, self._reader.seed, walk.first_offset)
            if fitting.end:
                return first + fitting.end, fitting.next_offset
            size = min(max(fitting.needed, size + 1), walk.end - first)

    def _has_room(self, size_bytes: int) -> bool:
        """True if a batch larger than the bytes left may be taken, as only the first may. Raises NeedsRoom if it is too large."""
        if self.chunks:
            return False
        if size_bytes > self._first_max_bytes:
            raise NeedsRoom(size_bytes)
        return True

    def _past_bad_batch(self, file: File, segment: Segment, start: _Start, walk: Walk, problem: str) -> _Start:
        """Where to continue: at the segment's start if the index may be wrong (it is removed), otherwise after the damage. Raises
        LogDamagedError if `next_offset` itself is damaged; WouldBlock.
        """
        if self._cached_only:
            raise WouldBlock  # the search past a bad batch is slow
        if start.is_derived:
            self._reader.forget_hints()
            segment.index = None
            with contextlib.suppress(OSError):  # damage must be reported even if the disk refuses writes
                segment.remove_index()
            return _Start(segment.base_offset, 0, False)
        return self._behind(file, segment, start, walk, problem)

    def _behind(self, file: File, segment: Segment, start: _Start, walk: Walk, problem: str) -> _Start:
        """Reports the damage that begins at the walk's end, and returns where to continue after it."""
        damaged = self._reader.register(file, segment, start.position + walk.end, walk.next_offset, problem)
        if damaged.until_offset > self.next_offset or damaged.resume_segment != segment.base_offset:
            raise self._reader.refusal(damaged)
        return _Start(damaged.until_offset, damaged.resume_position, False)


def _place(segment: Segment, position: int) -> str:
    return f"{segment.path} from byte {position} on"


def _probe(file: File, position: int, size: int) -> None:
    """Raises WouldBlock if a sample of these bytes is not cached."""
    last = position + size - 1
    for at in (*range(position, last, _PROBE_EVERY_BYTES), last):
        file.pread(1, at, nowait=True)
