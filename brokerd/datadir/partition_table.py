"""The partitions of this node by topic id and number, for handlers, coordinators and background work, and the roles that
coordination assigns to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from brokerd.config.topic import TopicConfig
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG, Topic, TopicStore
from brokerd.errors import (
    FencedLeaderEpochError,
    NotLeaderError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from brokerd.ids import NO_EPOCH, NO_LEADER, TopicIdPartition, new_leader_epoch_id
from brokerd.partition.core import ALONE, InSync
from brokerd.partition.log_ends import UNSETTLED
from brokerd.partition.partition import Partition

NO_OTHERS: Mapping[TopicIdPartition, InSync] = {}  # partitions that this node alone holds


class PartitionTable:
    """Belongs to the event loop's thread. Iteration includes the partitions of the broker's own topics."""

    def __init__(self, topics: TopicStore, *, elects_itself: bool = True) -> None:
        """`elects_itself`: this node is alone and leads all its partitions. Otherwise a cluster's controller elects."""
        self._topics = topics
        self.elects_itself = elects_itself
        self.node_id = -1  # set when the data directory is opened
        self.leads = 0  # number of times that this node has begun to lead partitions
        # A partition's leader according to the cluster: node id and epoch, -1 = unknown; and why it can have none now, if known.
        self.leader_in_cluster: Callable[[TopicIdPartition], tuple[int, int, str]] = lambda _: (NO_LEADER, NO_EPOCH, "")
        self.on_role: Callable[[Partition], None] = lambda _: None  # called after a partition's role or epoch has changed
        self._partitions: dict[TopicIdPartition, Partition] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def __contains__(self, tp: TopicIdPartition) -> bool:
        return tp in self._partitions

    def leader(self, tp: TopicIdPartition, current_leader_epoch: int = -1) -> Partition:
        """A partition of a client's topic that this node leads. Raises UnknownTopicIdError, UnknownTopicOrPartitionError,
        NotLeaderError, FencedLeaderEpochError and UnknownLeaderEpochError. An epoch of 0 or below is not checked.
        """
        partition = self.get(tp)
        if partition is None:
            topic = self._topics.by_id(tp.topic_id)
            if tp.partition < topic.partition_count:
                raise self._not_leader(f"{topic.name}-{tp.partition} is not on this node", tp)
            raise UnknownTopicOrPartitionError(
                f"topic '{topic.name}' has partitions 0 to {topic.partition_count - 1}, not {tp.partition}"
            )
        if not partition.is_leader:
            raise self._not_leader(f"{partition.name} is not led by this node", tp, partition.leader_epoch)
        if current_leader_epoch > 0 and current_leader_epoch != partition.leader_epoch:
            raise self._other_epoch(partition, current_leader_epoch)
        return partition

    def replica(self, tp: TopicIdPartition) -> Partition | None:
        """A partition of any topic; None if this node has no copy."""
        return self._partitions.get(tp)

    def get(self, tp: TopicIdPartition) -> Partition | None:
        """A partition of a client's topic; None if there is none."""
        return self._partitions.get(tp) if tp.topic_id != COORDINATOR.id else None

    def of_clients(self) -> list[Partition]:
        """All partitions of clients' topics."""
        return [partition for partition in self if partition.tp.topic_id != COORDINATOR.id]

    @property
    def coordinator_log(self) -> Partition | None:
        """The partition of the coordinator's log; None if it has not been created."""
        return self._partitions.get(COORDINATOR_LOG)

    def add(self, partition: Partition) -> None:
        """Adds an opened partition."""
        self._partitions[partition.tp] = partition

    def take(self, partition: Partition) -> None:
        """Takes a partition out of the table. The caller adds it back, or marks it as deleted."""
        del self._partitions[partition.tp]

    def elect(self, partitions: Iterable[Partition]) -> None:
        """On a node alone, makes it the leader of these partitions. The new epochs are durable: the next start adds one to each
        leader epoch in the checkpoint, and a new partition's first epoch needs no entry there.
        """
        if self.elects_itself:
            self.lead({partition.tp: partition.leader_epoch + 1 for partition in partitions})

    def lead(self, epochs: Mapping[TopicIdPartition, int], in_sync: Mapping[TopicIdPartition, InSync] = NO_OTHERS) -> None:
        """Makes this node the leader of these partitions, each in a new epoch, which must be durable. `in_sync`: in-sync sets of
        partitions with several replicas. In a cluster, a new leader does not know which commits are complete, so its last stable
        offset stays at the last announced one until UNSETTLED is released.
        """
        epoch_id = new_leader_epoch_id()
        self.leads += 1
        for tp, epoch in epochs.items():
            partition = self._partitions[tp]
            if partition.is_leader and epoch > partition.leader_epoch + 1 and not self.elects_itself:
                self.resign([tp])  # another node may have led in between, and released commits that this node still holds back
            stable_offset = partition.ends.announced_stable_offset
            is_known = self.elects_itself or partition.is_leader or tp.topic_id == COORDINATOR.id
            if not is_known and stable_offset < partition.ends.log_end_offset:
                partition.hold_back(UNSETTLED, stable_offset)
            partition.lead(epoch, in_sync.get(tp, ALONE), epoch_id=epoch_id)
            self.on_role(partition)

    def follow(self, epochs: Mapping[TopicIdPartition, int]) -> None:
        """Makes this node a follower of these partitions, each in a given epoch, which must be durable."""
        for tp, epoch in epochs.items():
            partition = self._partitions[tp]
            partition.follow(epoch)
            self.on_role(partition)

    def configure(self, topic: Topic, config: TopicConfig) -> None:
        """Applies new settings to a topic's partitions."""
        for number in topic.partitions_here:
            partition = self._partitions.get(TopicIdPartition(topic.id, number))
            if partition is not None:
                partition.configure(config)

    def resign(self, tps: Iterable[TopicIdPartition]) -> None:
        """Ends this node's role in these partitions, and wakes the operations that wait for them."""
        for tp in tps:
            partition = self._partitions.get(tp)
            if partition is not None:
                partition.resign()
                self.on_role(partition)

    def remove(self, tps: Iterable[TopicIdPartition]) -> None:
        """Removes partitions, marks them as deleted, and wakes the operations that wait for them."""
        for tp in tps:
            partition = self._partitions.pop(tp, None)
            if partition is not None:
                partition.mark_deleted()

    def release(self, held: Iterable[tuple[str, Partition]]) -> None:
        """Lets the markers of commits take effect in all these partitions, and only then wakes waiting operations."""
        moved = [(partition, partition.release(commit)) for commit, partition in held]
        for partition, ends in moved:
            partition.wake(ends)

    def highest_producer_number(self) -> int:
        """The highest producer number that a partition remembers; -1 = none."""
        return max((partition.producers.highest_number for partition in self.of_clients()), default=-1)

    def bound_producer_numbers(self, limit: int) -> None:
        """Tells the partitions that no producer number from `limit` on has been issued."""
        for partition in self:
            partition.producers.bound_forgotten(limit)

    def _not_leader(self, problem: str, tp: TopicIdPartition, known_epoch: int = NO_EPOCH) -> NotLeaderError:
        leader, epoch, why_none = self.leader_in_cluster(tp)
        text = f"{problem}: {why_none or 'fetch new metadata'}"
        return NotLeaderError(text, current_leader=leader, current_leader_epoch=max(epoch, known_epoch))

    def _other_epoch(self, partition: Partition, epoch: int) -> FencedLeaderEpochError | UnknownLeaderEpochError:
        known = partition.leader_epoch
        if epoch < known:
            text = f"current_leader_epoch is {epoch}, but the partition's is {known}: fetch new metadata"
            return FencedLeaderEpochError(text, current_leader=self.node_id, current_leader_epoch=known)
        text = (
            f"current_leader_epoch is {epoch}, newer than {known}, the newest that this node knows: it has not heard of an "
            "election yet, or its data was restored from a copy"
        )
        return UnknownLeaderEpochError(text, current_leader_epoch=known)
