"""Reads whole batches from one partition's files. Runs in the event loop (with cached_only) or in a thread.

It takes the segments as an immutable tuple, so rolls and retention in the event loop do not disturb a read. Partition.read bounds
each read by a log end.
"""

from __future__ import annotations

import errno
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

from brokerd.errors import LogDamagedError, StorageError
from brokerd.partition.core import PartitionCore
from brokerd.record.batch import NO_OFFSET_LIMIT, Walk, walk_whole
from brokerd.record.header import HEADER_SIZE, BatchHeader
from brokerd.storage.damage import DamagedRange, damage_at, damage_error, past_taken_out
from brokerd.storage.files import Buffer, File, WouldBlock
from brokerd.storage.holes import Hole, is_covered
from brokerd.storage.index import SparseIndex
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.resync import find_after_damage
from brokerd.storage.segment import Segment

NO_LIMIT = 2**63 - 1
_HINTS_MAX = 256
_PROBE_BYTES = 4_096
# RWF_NOWAIT does not wait for the disk, but makes the kernel start reading what is missing: for some megabytes, 10 ms of work in
# the event loop. So a large read first probes single bytes; if one is not cached, a thread does the read.
_INLINE_BYTES = 131_072
_PROBE_EVERY_BYTES = 262_144


class NeedsRoom(Exception):  # noqa: N818 - not a failure: repeat with room for `size_bytes`
    """The first batch is larger than `first_batch_max_bytes`."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class FetchDataInfo(NamedTuple):
    """Whole batches, as consecutive bytes-like chunks. `first_offset` is the base offset of the first batch, which may lie below
    the requested offset; `until_offset`, the log end that bounded the read."""

    chunks: list[Buffer]
    size_bytes: int
    first_offset: int
    next_offset: int
    until_offset: int


class _Start(NamedTuple):
    """The batch to start at: its base offset and position. `is_derived`: from an index or a hint, so it may be wrong."""

    offset: int
    position: int
    is_derived: bool


class PartitionReader:
    """Reads the segments of one partition."""

    def __init__(self, core: PartitionCore, seed: int, open_files: OpenFiles) -> None:
        self.core = core
        self.open_files = open_files
        self._seed = seed
        self._reporting = threading.Lock()  # damage that threads find at the same time
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
                raise damage_error(self.core.name, damaged)
            until_offset = min([until_offset, *(entry.first_offset for entry in known if entry.first_offset > offset)])
        chunks: list[Buffer] = []
        size_bytes = 0
        next_offset = first_offset = offset
        while next_offset < until_offset and (not chunks or size_bytes < max_bytes):
            try:
                chunk, first, after = self._read_segment(
                    next_offset,
                    max_bytes - size_bytes,
                    until_offset,
                    cached_only=cached_only,
                    first_max=None if chunks else max(max_bytes, first_batch_max_bytes),
                )
            except (WouldBlock, LogDamagedError, StorageError):
                if chunks:
                    break  # the next read meets it first
                raise
            if not chunk:
                break
            if not chunks:
                first_offset = first
            chunks.append(chunk)
            size_bytes += len(chunk)
            next_offset = after
        return FetchDataInfo(chunks, size_bytes, first_offset, next_offset, bound)

    def segment_at(self, offset: int) -> Segment:
        """The segment that contains `offset`. Raises FileNotFoundError if it has been removed."""
        segments = self.segments
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        if at < 0:
            raise FileNotFoundError
        return segments[at]

    def forget_hints(self) -> None:
        """Drops position hints; call it when segments are removed or cut."""
        self._hints.clear()

    def _read_segment(
        self, offset: int, max_bytes: int, until_offset: int, *, cached_only: bool, first_max: int | None
    ) -> tuple[Buffer, int, int]:
        """One chunk of the segment that contains `offset`: bytes, first offset, next offset. Empty if no batch fits `max_bytes`;
        with `first_max`, one batch of up to that size always fits, and a larger one raises NeedsRoom.
        """
        segment = self.segment_at(offset)
        try:
            with self.open_files.use(segment.path) as file:
                start = self._start(segment, offset, cached_only)
                found = self._read_from(file, segment, start, offset, max_bytes, until_offset, cached_only, first_max)
        except FileNotFoundError:
            raise  # probably removed meanwhile; Partition.read checks
        except OSError as error:
            raise self._storage_error(offset, error) from error
        return found

    def _start(self, segment: Segment, offset: int, cached_only: bool) -> _Start:
        hint = self._hints.get(offset)
        if hint is not None and hint[0] == segment.base_offset:
            return _Start(offset, hint[1], True)
        if cached_only and segment.index is None:
            raise WouldBlock
        floor = segment.loaded_index(self.core.config.index_interval_bytes).floor(offset)
        start = _Start(segment.base_offset, 0, False) if floor is None else _Start(*floor, True)
        for damaged in self.damaged:
            if damaged.resume_segment == segment.base_offset and start.offset < damaged.until_offset <= offset:
                start = _Start(damaged.until_offset, damaged.resume_position, False)
        return start

    def _read_from(
        self,
        file: File,
        segment: Segment,
        start: _Start,
        offset: int,
        max_bytes: int,
        until_offset: int,
        cached_only: bool,
        first_max: int | None,
    ) -> tuple[Buffer, int, int]:
        end = segment.size_bytes
        size = max(max_bytes, _PROBE_BYTES)
        while start.position < end:
            wanted = min(size if start.offset == offset else size + self.core.config.index_interval_bytes, end - start.position)
            if cached_only and wanted > _INLINE_BYTES:
                _probe(file, start.position, wanted)
            data = file.pread(wanted, start.position, nowait=cached_only)
            walk = walk_whole(data, 0, end - start.position, self._seed, start.offset, wanted=offset, until_offset=until_offset)
            taken = walk.end - walk.start
            if taken > 0:
                found = self._taken(segment, start, data, walk.start, walk.end, walk.first_offset, walk.next_offset, max_bytes)
                if len(found[0]) <= max_bytes:
                    return found
                return found if _has_room(len(found[0]), first_max) else (b"", offset, offset)
            if walk.reached_until:
                return b"", offset, offset
            if walk.problem is not None:
                start = self._past_bad_batch(file, segment, start, walk, walk.problem, offset, cached_only)
                continue
            if len(data) < wanted:
                if cached_only:
                    raise WouldBlock
                start = self._behind(file, segment, start.position + walk.end, walk.next_offset, "bytes are missing", offset)
                continue
            if walk.needed > max_bytes and not _has_room(walk.needed, first_max):
                return b"", offset, offset
            start = _Start(walk.next_offset, start.position + walk.end, start.is_derived)
            size = max(size, walk.needed)
        return b"", offset, offset

    def _taken(
        self,
        segment: Segment,
        start: _Start,
        data: Buffer,
        first: int,
        last: int,
        first_offset: int,
        next_offset: int,
        max_bytes: int,
    ) -> tuple[Buffer, int, int]:
        end = last
        if last - first > max_bytes:
            # Happens only if skipped batches left room for more than was requested, or the first batch is larger.
            walk_end, next_in = self._trim(data, first, last, first_offset, max_bytes)
            end, next_offset = walk_end, next_in
        if len(self._hints) >= _HINTS_MAX:
            self._hints.clear()
        if next_offset < segment.next_offset:
            self._hints[next_offset] = (segment.base_offset, start.position + end)
        chunk = data if first == 0 and end == len(data) else memoryview(data)[first:end]
        return chunk, first_offset, next_offset

    def _trim(self, data: Buffer, first: int, last: int, first_offset: int, max_bytes: int) -> tuple[int, int]:
        """End and next offset of the batches from `first` that fit `max_bytes`; at least one."""
        view = memoryview(data)
        size = max(max_bytes, HEADER_SIZE)
        while True:
            walk = walk_whole(view[first : first + size], 0, NO_OFFSET_LIMIT, self._seed, first_offset)
            if walk.end:
                return first + walk.end, walk.next_offset
            size = min(max(walk.needed, size + 1), last - first)

    def _past_bad_batch(
        self, file: File, segment: Segment, start: _Start, walk: Walk, problem: str, offset: int, cached_only: bool
    ) -> _Start:
        """Where to continue towards `offset`: at the segment's start if the index may be wrong (it is removed), otherwise after the
        damage. Raises LogDamagedError if `offset` itself is damaged; WouldBlock.
        """
        if cached_only:
            raise WouldBlock  # searching on takes long
        if start.is_derived:
            self._hints.clear()
            segment.index = None
            segment.remove_index()
            return _Start(segment.base_offset, 0, False)
        return self._behind(file, segment, start.position + walk.end, walk.next_offset, problem, offset)

    def _behind(self, file: File, segment: Segment, position: int, bad_offset: int, problem: str, offset: int) -> _Start:
        damaged = self.register(file, segment, position, bad_offset, problem)
        if damaged.until_offset > offset or damaged.resume_segment != segment.base_offset:
            raise damage_error(self.core.name, damaged)
        return _Start(damaged.until_offset, damaged.resume_position, False)

    def register(self, file: File, segment: Segment, position: int, bad_offset: int, problem: str) -> DamagedRange:
        """The damaged range that begins with the bad batch at `position`; reported to the core if new. Raises OSError, and
        FileNotFoundError if the segment has been removed or cut meanwhile: the zeros of a cut are no damage.
        """
        if segment not in self.segments:
            raise FileNotFoundError
        for known in self.damaged:
            leads_on = known.resume_segment == segment.base_offset or known.until_offset >= segment.next_offset
            if known.first_offset <= bad_offset < known.until_offset and leads_on:
                return known
        found = find_after_damage(
            file,
            self._seed,
            position=position,
            offset=bad_offset,
            end=segment.size_bytes,
            limit_offset=segment.next_offset,
        )
        if found is None:
            damaged = DamagedRange(bad_offset, segment.next_offset, problem)
        else:
            damaged = DamagedRange(bad_offset, found.header.base_offset, problem, segment.base_offset, found.position)
        holes = [Hole(entry.first_offset, entry.until_offset) for entry in self.damaged if entry.is_accepted]
        damaged = damaged._replace(is_accepted=is_covered(holes, bad_offset, damaged.until_offset))
        with self._reporting:
            if damaged not in self.damaged:  # another thread may have found it meanwhile
                self.core.damage_found(damaged)
        return damaged

    def _storage_error(self, offset: int, error: OSError) -> StorageError:
        wait = " (too many open files)" if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        return StorageError(f"{self.core.name}: reading at offset {offset} failed: {error.strerror}{wait}", retry_after_ms=100)


def _has_room(size_bytes: int, first_max: int | None) -> bool:
    """Whether a batch larger than `max_bytes` may be returned: only the first one, up to `first_max`. Raises NeedsRoom."""
    if first_max is not None and size_bytes > first_max:
        raise NeedsRoom(size_bytes)
    return first_max is not None


def _probe(file: File, position: int, size: int) -> None:
    """Raises WouldBlock if a sample of these bytes is not cached."""
    last = position + size - 1
    for at in (*range(position, last, _PROBE_EVERY_BYTES), last):
        file.pread(1, at, nowait=True)


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
