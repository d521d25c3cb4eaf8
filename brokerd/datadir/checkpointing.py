"""When the checkpoint is written, and what it says: the entries of all partitions as they are in memory."""

from __future__ import annotations

from collections.abc import Container

from brokerd.datadir.checkpoint import CheckpointFile, Entries
from brokerd.ids import TopicIdPartition
from brokerd.partition.entries import CheckpointEntry
from brokerd.partition.log_state import LogResources
from brokerd.storage.spare_files import SpareFiles


class CheckpointJob:
    """The checkpoint as it was when the job was created; `run` may be called in a thread."""

    def __init__(self, file: CheckpointFile, spares: SpareFiles, number: int, entries: Entries) -> None:
        self._file = file
        self._spares = spares
        self._number = number
        self._entries = entries

    def run(self) -> None:
        """Writes the checkpoint. Raises OSError: then the old one is (perhaps) still in place, and the next job tries again."""
        self._file.write(self._entries, self._number)
        self._spares.restore()

    def run_on_full_disk(self) -> None:
        """The same for a checkpoint that will free space: also works on a full disk. Raises OSError."""
        self._file.write(self._entries, self._number, makes_room=True)
        self._spares.restore()


class Checkpointing:
    """The entries of one data directory."""

    def __init__(self, file: CheckpointFile, spares: SpareFiles, logs: Container[TopicIdPartition], *, interval_ms: int) -> None:
        """`logs` are the partitions that there are, at any time."""
        self._file = file
        self._logs = logs
        self._spares = spares
        self._interval_ms = interval_ms
        self._entries: dict[TopicIdPartition, CheckpointEntry] = {}
        self._kept: dict[TopicIdPartition, CheckpointEntry] = {}
        self._resources: LogResources | None = None
        self._captured_at_ms = 0

    def open(self, resources: LogResources, before: Entries) -> None:
        """Entries from now on: those `before` that belong to no log, and those of the logs that share `resources`."""
        self._resources = resources
        self._entries = dict(before)

    def keep(self, tp: TopicIdPartition, entry: CheckpointEntry) -> None:
        """This partition's entry stays as it is, whatever its log says: it was not recovered as a whole."""
        self._kept[tp] = entry

    def forget(self, tp: TopicIdPartition) -> None:
        """There is no such partition any more."""
        self._kept.pop(tp, None)
        self._entries.pop(tp, None)

    def job(self) -> CheckpointJob:
        """A write of the checkpoint as it is now."""
        return CheckpointJob(self._file, self._spares, self._file.capture(), self._present())

    def job_if_due(self, now_ms: int) -> CheckpointJob | None:
        """The same if something moved, and log.checkpoint.interval.ms have passed since the last."""
        assert self._resources is not None
        if now_ms - self._captured_at_ms < self._interval_ms or not (self._resources.moved or self._file.is_behind):
            return None
        self._captured_at_ms = now_ms
        return self.job()

    def captured(self, now_ms: int) -> None:
        """The next is due an interval after `now_ms`."""
        self._captured_at_ms = now_ms

    def _present(self) -> Entries:
        """A copy of all entries; only those that changed are rebuilt."""
        assert self._resources is not None
        for log in self._resources.moved:
            if log.tp in self._logs:
                self._entries[log.tp] = self._kept.get(log.tp) or log.checkpoint_entry()
        self._resources.moved.clear()
        return dict(self._entries)
