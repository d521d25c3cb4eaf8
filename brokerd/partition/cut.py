"""Cuts followers' logs where they diverge from the leader's.

The order of the steps in `truncate` matters: after a crash between two steps, recovery finds a log that ends either at the cut or
at its former end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from brokerd.errors import StorageError, WireError
from brokerd.partition.derived_files import read_snapshot, remove_leader_epochs, remove_snapshot, write_leader_epochs
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.markers import read_marker
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import Marker, ProducerStates
from brokerd.record.header import BatchHeader
from brokerd.steps import Job, Steps
from brokerd.storage.files import File, write_all
from brokerd.storage.segment import Segment

_WIPE_BYTES = 1_048_576


def truncate(cuts: Mapping[Partition, int], checkpoint_job: Callable[[], Job]) -> Steps[dict[Partition, Exception]]:
    """Cuts followers' logs at these offsets, with one checkpoint for all. Flush everything first. Returns the errors of the logs
    that were not cut: WireErrors, ValueError below the high watermark; after an OSError the log may have stopped.
    """
    failed: dict[Partition, Exception] = {}
    begun: dict[Partition, LogCut] = {}
    for partition, offset in cuts.items():
        try:
            cut = LogCut(partition, offset)
        except (WireError, ValueError) as error:
            failed[partition] = error
            continue
        try:
            yield cut.read
            partition.begin_cut(cut.truncation, cut.last, cut.producers)
            begun[partition] = cut
        except (WireError, OSError) as error:
            failed[partition] = error
            partition.core.cut_ended()
    try:
        # Before the files change. Otherwise recovery would report the removed batches as damage.
        yield checkpoint_job()
    except OSError as error:
        for partition in begun:
            partition.core.cut_ended(error)
        return failed | dict.fromkeys(begun, error)
    for partition, cut in begun.items():
        try:
            yield partial(cut.make, tuple(partition.epochs.entries))
        except OSError as error:
            failed[partition] = error
            partition.core.cut_ended(error)
        else:
            partition.core.cut_ended()
    return failed


class LogCut:
    """One cut. Call `read`, which changes no files, then `make`, both in any thread."""

    def __init__(self, partition: Partition, offset: int) -> None:
        """Decides what to cut. Raises the errors of PartitionCore.truncate_to."""
        self.truncation = truncation = partition.core.truncate_to(offset)
        self._files, self._open_files = partition.resources.files, partition.resources.open_files
        self._seed = partition.crc_seed
        self._directory = partition.tp.directory_name
        self._index_interval_bytes = partition.config.index_interval_bytes
        self._kept = partition.segments[: truncation.kept]
        self._gone = partition.segments[truncation.kept :]
        self.last = self._kept[-1].blank()  # `read` fills in its bounds and index after the cut
        self.producers = ProducerStates(partition.name, limit=partition.resources.max_producer_ids)  # `read` fills in the state

    def read(self) -> None:
        """Determines the producer state at the cut, and the bounds and index of the last remaining segment. Raises OSError;
        StorageError if the state cannot be determined.
        """
        from_offset = self._restore()
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
        """Makes the cut, durably on return. The `durable_end` in the checkpoint on disk must not exceed it. Raises OSError."""
        self._wipe(self._kept[-1], self.last.size_bytes)
        for segment in self._gone:
            self._wipe(segment, 0)
        for offset in self.truncation.snapshot_offsets:
            remove_snapshot(self._files, self._directory, offset)
        for segment in reversed(self._gone):
            segment.remove(with_snapshot=segment.base_offset > self.truncation.offset)
        self._files.sync_dir(self._directory)
        self.last.truncate_file()
        try:
            write_leader_epochs(self._files, self._directory, epochs, self._seed)
        except OSError:  # on a full disk, for instance; without the file a start takes the epochs from the log
            remove_leader_epochs(self._files, self._directory)
        self._files.sync_dir(self._directory)

    def _wipe(self, segment: Segment, position: int) -> None:
        """Overwrites the cut bytes with zeros. Otherwise, after a power cut, stale blocks under newly written data could reappear
        as whole batches of this log.
        """
        with self._open_files.use(segment.path, writable=True) as file:
            while position < segment.size_bytes:
                size = min(_WIPE_BYTES, segment.size_bytes - position)
                write_all(file, [bytes(size)], position, size)
                position += size
            file.fdatasync()

    def _restore(self) -> int:
        """Restores producers from the newest readable snapshot. Returns its offset; 0 if none is needed. Raises StorageError."""
        first_offset = self._kept[0].base_offset
        for offset in self.truncation.restore_from:
            snapshot = read_snapshot(self._files, self._directory, offset, self._seed) if offset >= first_offset else None
            if snapshot is not None:
                self.producers.restore(snapshot.producers, snapshot.forgotten, snapshot.aborted)
                return offset
        if first_offset > 0:
            raise StorageError(
                f"{self._directory}: no snapshot covers the removed batches: 'brokerd cluster reassign' takes the copy away, and "
                "gives it back"
            )
        return 0

    def _headers(self, file: File, segment: Segment) -> Iterator[tuple[int, BatchHeader]]:
        """Positions and headers of the batches below the cut. Raises StorageError if one cannot be read."""
        scan = segment.scan(file)
        for header in scan:
            if header.next_offset > self.truncation.offset:
                return
            yield scan.batch_position, header
        if scan.problem is not None:
            raise StorageError(f"{self._directory}: offset {scan.next_offset} cannot be read ({scan.problem}): restart, then cut")
