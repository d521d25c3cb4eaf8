"""What a data directory must do to match the cluster: which topics to remove, which partitions to hold, which to lead.

A directory acts on keys that are present, never on their absence. It removes data only if a tombstone lists it, or the entry of a
partition that its node no longer replicates: an emptied store, or another cluster's, erases nothing. It creates a copy only if it
is itself in sync or another node is. If the only in-sync copy is in another directory of this node, that disk is gone, and an
empty log in its place would hide the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from brokerd.cluster.election import any_copy_of, outdone, replica_of
from brokerd.cluster.image import ClusterImage, PartitionAt
from brokerd.cluster.keys import InSyncReplica, PartitionEntry, TopicEntry
from brokerd.ids import NO_LEADER, TopicIdPartition


class HeldTopic(NamedTuple):
    """A topic as a directory knows it, and the partitions that the directory holds."""

    entry: TopicEntry
    numbers: Collection[int]


class Life(NamedTuple):
    """One life of a node: the time of one registration."""

    node_id: int
    node_epoch: int  # create revision of its registration
    directory_id: str


Held = Mapping[bytes, HeldTopic]  # by topic id


def to_remove(image: ClusterImage, directory_id: str, node_id: int, held: Held) -> list[bytes]:
    """Topics to remove: those whose tombstone lists this directory or node, and deleted topics without a partition here."""
    listed = [
        topic_id
        for topic_id, (tombstone, _) in image.tombstones.items()
        if directory_id in tombstone.directory_ids or node_id in tombstone.node_ids
    ]
    heard_of = [topic_id for topic_id, topic in held.items() if not topic.numbers and image.topic(topic_id) is None]
    return [*listed, *heard_of]


def to_hold(image: ClusterImage, node_id: int, directory_id: str, held: Held) -> Iterator[tuple[bytes, TopicEntry, list[int]]]:
    """Topics to write because they or their partitions here have changed: id, topic, and the partitions to create. Every directory
    knows every topic, even without any of its partitions.
    """
    for topic_id, entry in image.topics():
        known = held.get(topic_id)
        here = frozenset(known.numbers) if known is not None else ()
        numbers = image.partitions_of(topic_id)
        missing = sorted(number for number in numbers if number < entry.partition_count and number not in here)
        new = [number for number in missing if _is_copy_due(numbers[number].entry, node_id, directory_id)]
        if new or known is None or known.entry != entry:
            yield topic_id, entry, new


def to_lead(image: ClusterImage, life: Life, epochs: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, int]:
    """Partitions that this life was elected to lead, with their new leader epochs. `epochs`: the highest leader epoch that each
    partition of the directory has seen.
    """
    return {
        tp: entry.leader_epoch
        for tp, seen, entry in _entries(image, epochs)
        if (entry.leader, entry.leader_node_epoch) == (life.node_id, life.node_epoch)
        and entry.leader_epoch > seen
        and _is_in_sync(entry, life.directory_id)
    }


def to_follow(
    image: ClusterImage, node_id: int, epochs: Mapping[TopicIdPartition, int], unled: Collection[TopicIdPartition]
) -> dict[TopicIdPartition, int]:
    """Partitions in which to follow another node, with its leader epochs. `epochs`: as for `to_lead`. `unled`: those in which this
    node is not a follower yet; it follows these even in an epoch that it has already seen.
    """
    found = {}
    for tp, seen, entry in _entries(image, epochs):
        is_new = entry.leader_epoch > seen or (entry.leader_epoch == seen and tp in unled)
        if entry.leader not in (NO_LEADER, node_id) and node_id in entry.replicas and is_new:
            found[tp] = entry.leader_epoch
    return found


def to_drop(
    image: ClusterImage, node_id: int, directory_id: str, epochs: Mapping[TopicIdPartition, int]
) -> list[tuple[TopicIdPartition, PartitionAt]]:
    """Copies to remove: this node is no longer a replica, and the entry lists this directory as out of sync. `epochs`: as for
    `to_lead`. An entry with an older epoch comes from a store restored from a backup, and removes nothing.
    """
    own = {InSyncReplica(node_id, directory_id), any_copy_of(node_id)}
    return [
        (tp, partition)
        for tp, partition in image.partitions()
        if node_id not in partition.entry.replicas
        and partition.entry.leader_epoch >= epochs.get(tp, 0)
        and not own.isdisjoint(partition.entry.out_of_sync)
    ]


def gone_back(image: ClusterImage, node_id: int, epochs: Mapping[TopicIdPartition, int]) -> set[TopicIdPartition]:
    """Partitions whose leader epoch in the store is older than one that the directory has seen: the store was restored from a
    backup, or has lost its last changes. `epochs`: as for `to_lead`.
    """
    seen_by = {tp: partition.entry for tp in epochs if (partition := image.partition(tp)) is not None}
    return {tp for tp, entry in seen_by.items() if node_id in entry.replicas and entry.leader_epoch < epochs[tp]}


def to_outdo(
    image: ClusterImage, life: Life, epochs: Mapping[TopicIdPartition, int], disputed: Collection[TopicIdPartition] = ()
) -> dict[TopicIdPartition, PartitionEntry]:
    """New entries for partitions whose leader epochs were already in use before the store was rolled back. `epochs`: as for
    `to_lead`, without those in which this life leads. `disputed`: partitions already found by `gone_back`.
    """
    found = {}
    for tp, seen, entry in _entries(image, epochs):
        leader = image.nodes.get(entry.leader)
        if (
            life.node_id not in entry.replicas
            or leader is None
            or leader.epoch != entry.leader_node_epoch
            or replica_of(leader) not in entry.isr
        ):
            continue  # the controller must elect a leader first
        is_led_here = (leader.id, leader.epoch) == (life.node_id, life.node_epoch)
        if tp in disputed or entry.leader_epoch < seen or (entry.leader_epoch == seen and is_led_here):
            found[tp] = outdone(entry, leader, image.nodes, max(seen, entry.leader_epoch) + 1)
    return found


def _entries(image: ClusterImage, epochs: Mapping[TopicIdPartition, int]) -> Iterator[tuple[TopicIdPartition, int, PartitionEntry]]:
    """The partitions of the directory whose topics exist, each with the highest leader epoch seen and its entry."""
    for tp, seen in epochs.items():
        partition = image.partition(tp)
        if partition is not None and image.topic(tp.topic_id) is not None:
            yield tp, seen, partition.entry


def _is_copy_due(entry: PartitionEntry, node_id: int, directory_id: str) -> bool:
    if node_id not in entry.replicas:
        return False
    return any(copy.directory_id == directory_id or copy.node_id != node_id for copy in entry.isr)


def _is_in_sync(entry: PartitionEntry, directory_id: str) -> bool:
    return any(replica.directory_id == directory_id for replica in entry.isr)
