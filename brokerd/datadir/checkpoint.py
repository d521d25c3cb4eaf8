"""The checkpoint of a data directory: each partition's durable offsets and leader epoch (partition/log_state.py: CheckpointEntry).

It is written after the fdatasync that it records, never before. So everything below `durable_end` was on disk: a bad batch there is
damage, a bad batch above it is a torn tail.

The file records the node epoch of the life that wrote it; a reader adds the number of starts since then to each leader epoch
(node_state.py). For a partition without an entry (newly created, or the entry is lost), the epoch is derived from its log.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Mapping

from brokerd.datadir.partition_table import PartitionTable
from brokerd.ids import TopicIdPartition
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_state import CheckpointEntry
from brokerd.partition.partition import Partition
from brokerd.steps import Job
from brokerd.storage.checksummed_file import DocumentError, DocumentKind, read_document, write_document
from brokerd.storage.files import Files
from brokerd.storage.names import CHECKPOINT
from brokerd.storage.spare_files import SpareFiles

CHECKPOINT_KIND = DocumentKind("checkpoint", 2)
_NODE_EPOCH = struct.Struct("<q")
_ENTRY = struct.Struct("<16siqqqiqq")
Entries = Mapping[TopicIdPartition, CheckpointEntry]


class Checkpoint:
    """The checkpoint of an open directory: tracks the entries of all partitions, and decides when to write them."""

    def __init__(
        self, files: Files, spares: SpareFiles, partitions: PartitionTable, moved: set[Partition], *, interval_ms: int
    ) -> None:
        """`moved`: the partitions whose entry has changed since the last job."""
        self._files = files
        self._spares = spares
        self._partitions = partitions
        self._moved = moved
        self._interval_ms = interval_ms
        self._entries: dict[TopicIdPartition, CheckpointEntry] = {}
        self._kept: dict[TopicIdPartition, tuple[CheckpointEntry, bool]] = {}  # with_epoch; see `keep`
        self._promised: dict[TopicIdPartition, int] = {}  # leader epochs in which this node is about to lead or follow
        self._captured_at_ms = 0
        self._lock = threading.Lock()
        self._captured_count = 0  # numbers the captured states, so that an older one never replaces a newer one
        self._written_number = 0
        self._node_epoch = 0
        self.written: Entries = {}  # the content of the file

    def open(self, node_epoch: int, written: Entries, before: Entries) -> None:
        """Sets the node epoch of this life, the content of the file, and the entries (`before`) of partitions of unknown topics."""
        self._node_epoch = node_epoch
        self.written = written
        self._entries = dict(before)

    def keep(self, tp: TopicIdPartition, entry: CheckpointEntry, *, with_epoch: bool = False) -> None:
        """Pins the entry of a partition that was not fully recovered. `with_epoch` pins its leader epoch too: it is older than the
        log, and later starts must detect that again.
        """
        self._kept[tp] = entry, with_epoch

    def promise(self, epochs: Mapping[TopicIdPartition, int]) -> None:
        """Records leader epochs in which this node may lead or follow once the next job has completed."""
        for tp, epoch in epochs.items():
            self._promised[tp] = epoch
        self._moved.update(partition for partition in self._partitions if partition.tp in epochs)

    def replace(self, tp: TopicIdPartition, entry: CheckpointEntry) -> None:
        """Sets the entry of a partition whose log is replaced."""
        self._entries[tp] = entry

    def note(self, partition: Partition) -> None:
        """Makes the next job write the partition's own entry, in place of one set by `replace`."""
        self._moved.add(partition)

    def forget(self, tps: Iterable[TopicIdPartition]) -> None:
        """Removes the entries of deleted partitions."""
        for tp in tps:
            self._promised.pop(tp, None)
            self._kept.pop(tp, None)
            self._entries.pop(tp, None)

    def job(self, *, makes_room: bool = False, keeps_spares: bool = False) -> Job:
        """A job for any thread that writes the current state, durably on return. It raises OSError; the old file may then still be
        in place, and the next job tries again. With `makes_room` it also succeeds on a full disk, as long as there are spare files;
        with `keeps_spares` it leaves some of them for operations that free space.
        """
        self._captured_count += 1
        number, entries = self._captured_count, self._present()

        def write() -> None:
            with self._lock:
                if number > self._written_number:
                    write_checkpoint(
                        self._files, self._node_epoch, entries, self._spares if makes_room else None, keeps_spares=keeps_spares
                    )
                    self._spares.note_document(len(entries) * _ENTRY.size)
                    self._written_number = number
                    self.written = entries
            self._spares.restore()

        return write

    def job_if_due(self, now_ms: int, *, is_forced: bool = False) -> Job | None:
        """Like `job`; None if log.checkpoint.interval.ms have not passed since the last, or if no entry changed, no write failed
        and it is not forced.
        """
        is_behind = self._written_number < self._captured_count
        if now_ms - self._captured_at_ms < self._interval_ms or not (self._moved or is_behind or is_forced):
            return None
        self._captured_at_ms = now_ms
        return self.job()

    def captured(self, now_ms: int) -> None:
        """Makes the next job due one interval after `now_ms`."""
        self._captured_at_ms = now_ms

    def _present(self) -> Entries:
        """A copy of all entries, after updating those that changed."""
        while self._moved:
            partition = self._moved.pop()  # before its entry is read: a thread that finds damage meanwhile adds it again
            if self._partitions.replica(partition.tp) is partition:  # False after a late flush of a replaced copy
                entry, with_epoch = self._kept.get(partition.tp) or (partition.checkpoint_entry(), False)
                if not with_epoch:
                    entry = entry._replace(leader_epoch=max(partition.leader_epoch, self._promised.get(partition.tp, 0)))
                self._entries[partition.tp] = entry
        return dict(self._entries)


def write_checkpoint(
    files: Files, node_epoch: int, entries: Entries, spares: SpareFiles | None = None, *, keeps_spares: bool = False
) -> None:
    """Replaces the file, durably on return. Raises OSError as `write_document` does."""
    body = encode_checkpoint(node_epoch, entries)
    write_document(files, CHECKPOINT, CHECKPOINT_KIND, body, spares=spares, keeps_spares=keeps_spares)


def encode_checkpoint(node_epoch: int, entries: Entries) -> bytes:
    """The body of the file."""
    packed = [_ENTRY.pack(tp.topic_id, tp.partition, *entry) for tp, entry in entries.items()]
    return b"".join([_NODE_EPOCH.pack(node_epoch), *packed])


def decode_checkpoint(body: bytes) -> tuple[int, dict[TopicIdPartition, CheckpointEntry]]:
    """The inverse of encode_checkpoint. Raises DocumentError."""
    if len(body) % _ENTRY.size != _NODE_EPOCH.size:
        raise DocumentError("the checkpoint is not a whole number of entries")
    entries = {
        TopicIdPartition(topic_id, partition): CheckpointEntry(*entry)
        for topic_id, partition, *entry in _ENTRY.iter_unpack(body[_NODE_EPOCH.size :])
    }
    return _NODE_EPOCH.unpack_from(body)[0], entries


def read_checkpoint(files: Files, node_epoch: int) -> dict[TopicIdPartition, CheckpointEntry] | None:
    """The entries, with leader epochs as of the life with this node epoch; None if the file is missing or damaged. Raises OSError,
    DataDirectoryError.
    """
    try:
        written_in, entries = decode_checkpoint(read_document(files, CHECKPOINT, CHECKPOINT_KIND))
    except (FileNotFoundError, DocumentError):
        return None
    starts = max(node_epoch - written_in, 0)
    return {tp: entry._replace(leader_epoch=entry.leader_epoch + starts) for tp, entry in entries.items()}


def lost_leader_epoch(epochs: LeaderEpochs, node_epoch: int) -> int:
    """The leader epoch of a partition without an entry, in the life with this node epoch. It is an upper bound: each start raises
    the leader epoch by one, so no epoch since the log's last batch was higher.
    """
    return max(epochs.latest, 0) + node_epoch
