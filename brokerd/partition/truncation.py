"""Cuts one partition's log outside recovery: reads the producer state at the cut, and removes everything above it.

The order of steps matters: after a crash in between, recovery finds a log that ends either at the cut or where it did before. The
core decides where to cut (PartitionCore.truncate_to), and PartitionTable.truncate runs the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brokerd.errors import StorageError
from brokerd.partition.core import Truncation
from brokerd.partition.derived_files import read_snapshot, remove_snapshot, write_leader_epochs
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.markers import read_marker
from brokerd.partition.producer_state import Marker, ProducerStates
from brokerd.record.header import BatchHeader
from brokerd.storage.files import File, Files, write_all
from brokerd.storage.index import SparseIndex
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment

_WIPE_BYTES = 1_048_576


class LogCut:
    """One cut. Call `read` first, which changes no file, then `make`, both in any thread."""

    def __init__(
        self,
        files: Files,
        open_files: OpenFiles,
        directory: str,
        seed: int,
        segments: Sequence[Segment],
        truncation: Truncation,
        producers: ProducerStates,
        index_interval_bytes: int,
    ) -> None:
        """`producers`: empty; `read` fills it with the state at the cut."""
        self._files = files
        self._open_files = open_files
        self._directory = directory
        self._seed = seed
        self._kept = segments[: truncation.kept]
        self._gone = segments[truncation.kept :]
        self._index_interval_bytes = index_interval_bytes
        self.truncation = truncation
        self.producers = producers
        self.last = Segment(files, open_files, directory, self._kept[-1].base_offset, seed)  # as it will be after the cut

    def read(self) -> None:
        """Finds the state at the cut, and the bounds and index of the last remaining segment. Raises OSError; StorageError if the
        state cannot be determined.
        """
        from_offset = self._restore()
        self.last.index = SparseIndex()
        for segment in self._kept:
            is_last = segment is self._kept[-1]
            if segment.next_offset <= from_offset and not is_last:
                continue
            with self._open_files.use(segment.path) as file:
                for position, header in self._headers(file, segment):
                    if is_last:
                        self.last.note(header, self._index_interval_bytes)
                    if header.base_offset >= from_offset:
                        self.producers.replay(header, self._marker(file, position, header))

    def _marker(self, file: File, position: int, header: BatchHeader) -> Marker | None:
        marker = read_marker(file, position, header)
        if marker is None and header.is_control:
            at = header.base_offset
            raise StorageError(f"{self._directory}: the control batch at offset {at} cannot be read: restart, then cut")
        return marker

    def make(self, epochs: Sequence[EpochEntry]) -> None:
        """Makes the cut, durably on return. No `durable_end` in the checkpoint on disk may lie above it. Raises OSError."""
        self._wipe(self._kept[-1], self.last.size_bytes)
        for segment in self._gone:
            self._wipe(segment, 0)
        for offset in self.truncation.snapshot_offsets:
            remove_snapshot(self._files, self._directory, offset)
        for segment in reversed(self._gone):
            segment.remove()
        self._files.sync_dir(self._directory)
        self.last.truncate_file()
        write_leader_epochs(self._files, self._directory, epochs, self._seed)
        self._files.sync_dir(self._directory)

    def _wipe(self, segment: Segment, position: int) -> None:
        """Overwrites the cut bytes with zeros. Otherwise, after a power cut, stale blocks under newly written data could bring back
        whole batches that pass for part of the log.
        """
        handle = self._open_files.acquire(segment.path, writable=True)
        try:
            while position < segment.size_bytes:
                size = min(_WIPE_BYTES, segment.size_bytes - position)
                write_all(handle.file, [bytes(size)], position, size)
                position += size
            handle.file.fdatasync()
        finally:
            self._open_files.release(handle)

    def _restore(self) -> int:
        """Restores producers from the snapshot, if there is one. Returns its offset, or 0."""
        offset = self.truncation.restore_from
        if offset < 0:
            if self._kept[0].base_offset > 0:
                raise StorageError(f"{self._directory}: no snapshot covers the removed batches: restart, then cut")
            return 0
        snapshot = read_snapshot(self._files, self._directory, offset, self._seed)
        if snapshot is None:
            raise StorageError(f"{self._directory}: the snapshot at offset {offset} cannot be read: restart, then cut")
        self.producers.restore(snapshot.producers, snapshot.forgotten_number, snapshot.aborted)
        return offset

    def _headers(self, file: File, segment: Segment) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of the batches below the cut. Raises StorageError if one cannot be read."""
        scan = segment.scan(file)
        for header in scan:
            if header.next_offset > self.truncation.offset:
                return
            yield scan.batch_position, header
        if scan.problem is not None:
            raise StorageError(f"{self._directory}: offset {scan.next_offset} cannot be read ({scan.problem}): restart, then cut")
