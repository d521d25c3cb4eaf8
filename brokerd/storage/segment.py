"""One segment: a data file that begins at a base offset, and its sparse index. Contains no policy.

The index maps offset to position, and time to position. It is derived from the log and never trusted. Entries are about
index.interval.bytes apart; a search gives the position of a batch at or before the wanted one, and the reader walks headers from
there. The index file is written after a roll or at shutdown, with a summary that a reader compares with the segment.

The partition decides what to append, when to roll and what is durable; recovery checks the file after a crash.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from brokerd.record.batch import NO_EPOCH_LIMIT
from brokerd.record.header import BatchHeader
from brokerd.storage.checksummed_file import DocumentError, DocumentKind, read_document, write_document
from brokerd.storage.files import Buffer, File, Files, write_all
from brokerd.storage.names import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_file
from brokerd.storage.open_files import Handle, OpenFiles
from brokerd.storage.scan import Scan
from brokerd.storage.segment_bounds import SegmentBounds

INDEX_KIND = DocumentKind("offset-index", 1)
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


class Segment(SegmentBounds):
    """A segment and its data file. The first `size_bytes` are valid; after a failed write the file may be longer."""

    def __init__(self, files: Files, open_files: OpenFiles, directory: str, base_offset: int, seed: int) -> None:
        super().__init__(base_offset)
        self._files = files
        self._open_files = open_files
        self._seed = seed
        self.directory = directory
        self.path = self._path(LOG_SUFFIX)
        self.index: SparseIndex | None = None
        # Kept open from the first write until the flush that covers it has ended.
        self.dirty_handle: Handle | None = None
        self.has_excess_bytes = False
        self._written: SegmentSummary | None = None  # the summary in the index file, if it is whole

    def create(self) -> None:
        """Creates the empty data file. Raises OSError."""
        self._files.create(self.path).close()
        self.index = SparseIndex()

    def append(self, buffers: Sequence[Buffer], size: int) -> None:
        """Writes the bytes of one batch at the end; the caller then calls `add`. Raises OSError, after trying `cut_excess`."""
        self.cut_excess()
        is_dirty = self.dirty_handle is not None
        handle = self._dirty()
        try:
            write_all(handle.file, buffers, self.size_bytes, size)
        except OSError:
            self.has_excess_bytes = True
            with contextlib.suppress(OSError):
                self.cut_excess()
                if not is_dirty:
                    self.release_dirty()
            raise

    def cut_excess(self) -> None:
        """Truncates the bytes left by a failed write. Raises OSError."""
        if self.has_excess_bytes:
            self._dirty().file.truncate(self.size_bytes)
            self.has_excess_bytes = False

    def note(self, header: BatchHeader, index_interval_bytes: int, *, force_entry: bool = False) -> None:
        """Adds the batch that begins at `size_bytes` to the bounds and the index."""
        self.note_position(header.base_offset, index_interval_bytes, force_entry=force_entry)
        self.add(header)

    def note_position(self, base_offset: int, index_interval_bytes: int, *, force_entry: bool = False) -> None:
        """Indexes the batch that begins at `size_bytes`, if an entry is due. Call it before `add`."""
        index = self.index
        if index is not None:
            last = index.positions[-1] if index.positions else 0
            if force_entry or self.size_bytes - last > index_interval_bytes:
                index.add(base_offset, self.size_bytes, self.max_timestamp)

    def loaded_index(self, index_interval_bytes: int) -> SparseIndex:
        """The index, read from its file or rebuilt from the data file. Raises OSError."""
        index = self.index
        if index is None:
            index = self.read_index()
            if index is None:
                index = self._scan_index(index_interval_bytes)
            self.index = index
        return index

    def summary(self) -> SegmentSummary:
        """The current bounds."""
        return SegmentSummary(
            self._seed,
            self.base_offset,
            self.next_offset,
            self.size_bytes,
            self.max_timestamp,
            self.first_log_time,
            self.max_log_time,
        )

    def take_summary(self, summary: SegmentSummary) -> None:
        """Takes the bounds from a summary instead of a scan; the index is loaded on demand."""
        self.next_offset = summary.next_offset
        self.size_bytes = summary.size_bytes
        self.max_timestamp = summary.max_timestamp
        self.first_log_time = summary.first_log_time
        self.max_log_time = summary.max_log_time

    def read_summary(self) -> SegmentSummary | None:
        """The summary in the index file, if its seed and base offset match; compare it with the data file. Raises OSError."""
        try:
            summary, _ = decode_summary(read_document(self._files, self._path(INDEX_SUFFIX), INDEX_KIND))
        except (FileNotFoundError, DocumentError):
            return None
        return summary if summary.seed == self._seed and summary.base_offset == self.base_offset else None

    @property
    def has_written_index(self) -> bool:
        """True if the index file is up to date, or the segment is empty."""
        return self.size_bytes == 0 or self._written == self.summary()

    def write_index(self) -> None:
        """Writes the index file, if the index is loaded; the caller syncs the directory. Raises OSError."""
        index = self.index  # a reader that finds a bad batch may drop the index meanwhile
        if index is not None:
            summary = self.summary()
            columns = (index.offsets.tobytes(), index.positions.tobytes(), index.times.tobytes())
            body = b"".join((_SUMMARY.pack(*summary, len(index)), *columns))
            write_document(self._files, self._path(INDEX_SUFFIX), INDEX_KIND, body, sync_dir=False)
            self._written = summary

    def remove_index(self) -> None:
        """Removes the index file. Raises OSError."""
        self._written = None
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(self._path(INDEX_SUFFIX))

    def remove(self, *, with_snapshot: bool = True) -> None:
        """Removes the index file, the snapshot at the base offset and, last, the data file. Raises OSError."""
        self.remove_index()
        with contextlib.suppress(FileNotFoundError):
            if with_snapshot:
                self._files.unlink(self._path(SNAPSHOT_SUFFIX))
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(self.path)

    def scan(self, file: File, *, begin: tuple[int, int] | None = None, max_epoch: int = NO_EPOCH_LIMIT) -> Scan:
        """A scan of the batches in `file`, the segment's data file. `begin`: (base offset, position) of the first; None: all."""
        offset, position = begin or (self.base_offset, 0)
        return Scan(file, self._seed, position=position, end=self.size_bytes, next_offset=offset, max_epoch=max_epoch)

    def truncate_file(self) -> None:
        """Removes the index file, then cuts the data file to `size_bytes`, durably on return. Raises OSError."""
        self.remove_index()
        with self._open_files.use(self.path, writable=True) as file:
            file.truncate(self.size_bytes)
            file.fdatasync()

    def release_dirty(self) -> None:
        """Releases the dirty handle without a flush, because the log has stopped or is deleted."""
        handle, self.dirty_handle = self.dirty_handle, None
        if handle is not None:
            self._open_files.release(handle)

    def _dirty(self) -> Handle:
        handle = self.dirty_handle
        if handle is None:
            handle = self.dirty_handle = self._open_files.acquire(self.path, writable=True)
        return handle

    def read_index(self) -> SparseIndex | None:
        """The index from its file if it agrees with `summary`; None otherwise. Raises OSError."""
        try:
            body = read_document(self._files, self._path(INDEX_SUFFIX), INDEX_KIND)
            summary, count = decode_summary(body)
        except (FileNotFoundError, DocumentError):
            return None
        columns, size = body[_SUMMARY.size :], 8 * count
        if summary != self.summary() or len(columns) != 3 * size:
            return None
        index = SparseIndex()
        index.offsets.frombytes(columns[:size])
        index.positions.frombytes(columns[size : 2 * size])
        index.times.frombytes(columns[2 * size :])
        self._written = summary
        return index

    def blank(self) -> Segment:
        """This segment without batches; `note` adds them."""
        blank = Segment(self._files, self._open_files, self.directory, self.base_offset, self._seed)
        blank.index = SparseIndex()
        return blank

    def _scan_index(self, index_interval_bytes: int) -> SparseIndex:
        rebuilt = self.blank()
        with self._open_files.use(self.path) as file:
            for header in self.scan(file):
                rebuilt.note(header, index_interval_bytes)
        assert rebuilt.index is not None
        return rebuilt.index

    def _path(self, suffix: str) -> str:
        return f"{self.directory}/{offset_file(self.base_offset, suffix)}"


def decode_summary(body: bytes) -> tuple[SegmentSummary, int]:
    """The summary and the number of entries of an index body. Raises DocumentError."""
    if len(body) < _SUMMARY.size:
        raise DocumentError("the index is shorter than its summary")
    *summary, count = _SUMMARY.unpack_from(body)
    return SegmentSummary(*summary), count
