"""Changes roles and copies of this directory's partitions as the cluster requires. Each change is a generator of steps (steps.py)
that yields its disk I/O as jobs. Changes run one at a time, topic changes included.

A leader epoch is durable before its first batch is written, since recovery takes a batch of a higher epoch for damage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brokerd.datadir.checkpoint import Checkpoint
from brokerd.datadir.partition_directories import remove_directories, remove_logs_from_end
from brokerd.datadir.partition_opening import PartitionOpening
from brokerd.datadir.partition_table import NO_OTHERS, PartitionTable
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import CorruptMessageError, NotLeaderError
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import STAMPED_MAX, InSync
from brokerd.partition.cut import truncate
from brokerd.partition.derived_files import write_snapshot
from brokerd.partition.log_state import GIVEN_UP, NEW_PARTITION, CheckpointEntry, LogState, Snapshot
from brokerd.partition.partition import Partition
from brokerd.steps import Job, Steps
from brokerd.storage.files import Files


@dataclass(eq=False)
class ReplicaChanges:
    """See the module docstring. Every change raises StorageError if the directory is read-only: a checkpoint of only the readable
    part would let the next start cut the rest.
    """

    _files: Files
    _topics: TopicStore
    _partitions: PartitionTable
    _opening: PartitionOpening
    _checkpoint: Checkpoint

    def lead(self, epochs: Mapping[TopicIdPartition, int], in_sync: Mapping[TopicIdPartition, InSync] = NO_OTHERS) -> Steps[None]:
        """Makes this node the leader of these partitions, each in a new epoch. `in_sync`: the in-sync sets of partitions with
        several replicas. Raises OSError, FencedLeaderEpochError.
        """
        yield from self._promise(epochs)
        self._partitions.lead({tp: epoch for tp, epoch in epochs.items() if tp in self._partitions}, in_sync)

    def follow(self, epochs: Mapping[TopicIdPartition, int]) -> Steps[None]:
        """Makes this node a follower of these partitions. Raises as `lead` does; even then the node no longer leads any of them."""
        self._partitions.resign([tp for tp in epochs if (one := self._partitions.replica(tp)) is not None and one.is_leader])
        yield from self._promise(epochs)
        self._partitions.follow({tp: epoch for tp, epoch in epochs.items() if tp in self._partitions})

    def cut(self, cuts: Mapping[Partition, int], leader_epoch: int) -> Steps[dict[Partition, Exception]]:
        """See truncate in brokerd/partition/cut.py. Raises NotLeaderError if this node no longer follows the leader of this epoch,
        which requested the cuts, when the change runs: another leader may count the records as replicated.
        """
        self._opening.check_writable()
        for partition in cuts:
            partition.check_follows(leader_epoch)
        return (yield from truncate(cuts, self.checkpoint_now))

    def begin_anew(self, tp: TopicIdPartition, snapshot: Snapshot, leader_epoch: int) -> Steps[None]:
        """Replaces the copy of a follower that is not in sync with an empty log that begins at the snapshot. A crash or an OSError
        leaves the old log, an empty log at offset 0, or the new log; after an OSError the call can be repeated. Raises OSError;
        NotLeaderError as `cut` does; CorruptMessageError if the snapshot lies beyond STAMPED_MAX.
        """
        topic, partition = self._topics.any_by_id(tp.topic_id), self._partitions.replica(tp)
        if topic is None or partition is None:
            raise NotLeaderError(f"partition {tp} is not on this node any more")
        self._opening.check_writable()
        partition.check_follows(leader_epoch)
        if snapshot.offset > STAMPED_MAX:
            raise CorruptMessageError(f"{partition.name}: a log that begins at offset {snapshot.offset} is beyond {STAMPED_MAX}")
        yield from self._give_up([tp])
        empty = NEW_PARTITION._replace(leader_epoch=leader_epoch)
        directory, offset = tp.directory_name, snapshot.offset
        entry = CheckpointEntry(offset, offset, offset, leader_epoch, offset)
        config = self._opening.config_of(topic)
        made: list[LogState] = []

        def prepare() -> None:
            remove_logs_from_end(self._files, [tp])
            remove_directories(self._files, [tp])
            self._files.mkdir(directory)
            write_snapshot(self._files, directory, snapshot)
            self._files.sync_dir(directory)
            self._files.sync_dir()

        def make_empty() -> None:
            remove_directories(self._files, [tp])
            made.append(self._opening.recover(topic, config, tp))

        try:
            yield prepare
            # Before a segment begins at the snapshot. Otherwise the next start would report the offsets below as missing.
            self._checkpoint.replace(tp, entry)
            yield self.checkpoint_now()
            yield lambda: made.append(self._opening.recover(topic, config, tp, entry))
        except OSError:
            yield make_empty  # otherwise the directory would have no copy until the next start
            self._checkpoint.replace(tp, empty)
            self._partitions.add(self._opening.open(topic, config, tp, made[0]))
            # Before the first batch: the checkpoint on disk still says GIVEN_UP, and a start would remove the log. If this fails,
            # `_promise` writes the checkpoint before the partition gets a role.
            yield self.checkpoint_now()
            self._partitions.follow({tp: leader_epoch})
            raise
        self._partitions.add(self._opening.open(topic, config, tp, made[0]))
        self._partitions.follow({tp: leader_epoch})

    def drop(self, topic_id: bytes, numbers: Sequence[int]) -> Steps[None]:
        """Removes copies of partitions that other directories hold. Durable on completion; repeat it after an error. After a crash
        the next start finds the old logs, or empty ones. Raises StorageError, OSError.
        """
        self._opening.check_writable()
        tps = [TopicIdPartition(topic_id, number) for number in numbers]
        yield from self._give_up(tps)
        yield lambda: remove_logs_from_end(self._files, tps)
        topic = self._topics.any_by_id(topic_id)
        if topic is not None and not set(numbers).isdisjoint(topic.partitions_here):
            yield from self._topics.put(topic._replace(held=tuple(sorted(set(topic.partitions_here) - set(numbers)))))
        self._checkpoint.forget(tps)
        yield lambda: remove_directories(self._files, tps)

    def durable_log_start(self, tp: TopicIdPartition) -> int:
        """The log start of a partition in the checkpoint on disk."""
        return self._checkpoint.written.get(tp, NEW_PARTITION).log_start_offset

    def checkpoint_now(self) -> Job:
        """A job for any thread that writes the checkpoint. It raises OSError."""
        return self._checkpoint.job(makes_room=True)

    def _promise(self, epochs: Mapping[TopicIdPartition, int]) -> Steps[None]:
        self._opening.check_writable()
        self._checkpoint.promise(epochs)
        yield self._checkpoint.job(makes_room=True, keeps_spares=True)

    def _give_up(self, tps: Sequence[TopicIdPartition]) -> Steps[None]:
        """Takes partitions out of use before their files are removed. First marks them GIVEN_UP in the checkpoint, so that a start
        does not take the removed batches for damage; if that fails, restores them without a role. Raises OSError."""
        open_ones = [partition for tp in tps if (partition := self._partitions.replica(tp)) is not None]
        self._partitions.resign(tps)
        given_up = {
            partition: NEW_PARTITION._replace(recovery_point=GIVEN_UP, leader_epoch=partition.leader_epoch)
            for partition in open_ones
        }  # partitions not open here have been given up or removed already
        for partition, entry in given_up.items():
            self._partitions.take(partition)
            self._checkpoint.replace(partition.tp, entry)
        try:
            yield self.checkpoint_now()
        except OSError:
            for partition in open_ones:
                self._partitions.add(partition)
                self._checkpoint.note(partition)  # written by `_promise` before the partition gets a role
            raise
        for partition, entry in given_up.items():
            partition.mark_deleted()
            self._checkpoint.forget([partition.tp])
            self._checkpoint.replace(partition.tp, entry)
