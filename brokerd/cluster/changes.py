"""Changes of a cluster's topics, as transactions on its coordination store. Any node makes them. Each transaction compares the
revisions that it rests on, so if two changes conflict, one fails and is decided again on a newer image.

The store limits the operations per transaction, so partitions are written in several transactions that have no effect yet: the
topic has no name, or its partition count does not cover them. Only the last transaction makes the change visible. Partitions left
by an unfinished change are overwritten by the next change, or belong to an id without a topic. The controller sweeps the latter,
as it does the partitions of a deleted topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brokerd.cluster.election import any_copy_of, ever_in_sync
from brokerd.cluster.image import ClusterImage, PartitionAt
from brokerd.cluster.keys import ANY_DIRECTORY, InSyncReplica, PartitionEntry, Tombstone, TopicEntry, encode
from brokerd.ids import TopicIdPartition

OPERATIONS_MAX = 128  # in one transaction: etcd's default of --max-txn-ops
ABSENT = 0  # as a revision: the key does not exist
JUST_PUT = -1  # as a revision: the one at which an earlier transaction of the same change put the key


class Transaction(NamedTuple):
    """If each compared key was last changed at its revision (ABSENT: it does not exist), all operations are applied."""

    compares: dict[str, int]
    puts: dict[str, bytes]
    deletes: tuple[str, ...] = ()

    def after(self, put: Mapping[str, int]) -> Transaction:
        """Replaces JUST_PUT by the revisions at which the earlier transactions put their keys."""
        return self._replace(compares={key: put[key] if at == JUST_PUT else at for key, at in self.compares.items()})


def create_topic(image: ClusterImage, topic_id: bytes, topic: TopicEntry, entries: Sequence[PartitionEntry]) -> list[Transaction]:
    """Creates a topic. The last transaction fails if the name is taken, or if the partitions have been swept or overwritten by
    another creation meanwhile. `topic_id`: unused.
    """
    keys = image.keys
    puts = {keys.topic(topic_id): encode(topic), keys.name(topic.name): topic_id.hex().encode()}
    made = _partitions(image, topic_id, 0, entries, {keys.topic(topic_id): ABSENT})
    first = keys.partition(TopicIdPartition(topic_id, 0))
    return [*made, Transaction({**dict.fromkeys(puts, ABSENT), first: JUST_PUT}, puts)]


def grow_topic(image: ClusterImage, topic_id: bytes, entries: Sequence[PartitionEntry]) -> list[Transaction]:
    """Adds partitions to an existing topic. Fails if the topic has changed."""
    topic = _topic(image, topic_id)
    made = _partitions(image, topic_id, topic.partition_count, entries, _as_seen(image, topic_id))
    return [*made, change_topic(image, topic_id, topic._replace(partition_count=topic.partition_count + len(entries)))]


def change_topic(image: ClusterImage, topic_id: bytes, topic: TopicEntry) -> Transaction:
    """Replaces the entry of an existing topic, except its name. Fails if the topic has changed."""
    return Transaction(_as_seen(image, topic_id), {image.keys.topic(topic_id): encode(topic)})


def delete_topic(image: ClusterImage, topic_id: bytes) -> Transaction:
    """Deletes an existing topic, and leaves a tombstone that lists the directories with its data. The controller sweeps its
    partitions. Fails if the topic or the placement of its copies has changed.
    """
    keys, topic = image.keys, _topic(image, topic_id)
    seen = {number: at for number, at in sorted(image.partitions_of(topic_id).items()) if number < topic.partition_count}
    entries = [at.entry for at in seen.values()]
    copies = {copy for entry in entries for copy in (*entry.isr, *entry.out_of_sync, *entry.superseded)}
    directory_ids = {copy.directory_id for copy in copies} - {ANY_DIRECTORY}
    alive = (image.nodes[node_id] for entry in entries for node_id in entry.replicas if node_id in image.nodes)
    directory_ids.update(node.registration.directory_id for node in alive)
    # The directory of a copy that was never in sync is listed nowhere, and is unknown while its node is down.
    known = {node_id for entry in entries for node_id in (*ever_in_sync(entry), *image.nodes)}
    unknown = {node_id for entry in entries for node_id in entry.replicas} - known
    unknown.update(copy.node_id for copy in copies if copy.directory_id == ANY_DIRECTORY)
    tombstone = Tombstone(topic.name, topic.partition_count, tuple(sorted(directory_ids)), tuple(sorted(unknown)))
    gone = (keys.name(topic.name), keys.topic(topic_id))
    # A replica added meanwhile would be missing from the tombstone. If there are too many partitions, only the first are compared.
    compared = {keys.partition(TopicIdPartition(topic_id, number)): at.mod_revision for number, at in seen.items()}
    compares = _as_seen(image, topic_id) | dict(list(compared.items())[: OPERATIONS_MAX - 1])
    return Transaction(compares, {keys.tombstone(topic_id): encode(tombstone)}, gone)


def sweep(image: ClusterImage, topic_id: bytes) -> list[Transaction]:
    """Deletes the partitions of an id without a topic, partition 0 first, so that a creation still under way fails. Fails itself if
    the topic exists by now, or if a partition has changed.
    """
    keys = image.keys
    seen = [
        (keys.partition(TopicIdPartition(topic_id, number)), partition.mod_revision)
        for number, partition in sorted(image.partitions_of(topic_id).items())
    ]
    chunks = [dict(seen[at : at + OPERATIONS_MAX - 1]) for at in range(0, len(seen), OPERATIONS_MAX - 1)]
    return [Transaction({keys.topic(topic_id): ABSENT, **chunk}, {}, tuple(chunk)) for chunk in chunks]


def data_removed(image: ClusterImage, topic_id: bytes, directory_id: str, node_id: int) -> Transaction:
    """Takes a directory and its node off a tombstone once the topic's data is removed; deletes the tombstone after the last."""
    key, (tombstone, mod_revision) = image.keys.tombstone(topic_id), image.tombstones[topic_id]
    left = tombstone._replace(
        directory_ids=tuple(each for each in tombstone.directory_ids if each != directory_id),
        node_ids=tuple(each for each in tombstone.node_ids if each != node_id),
    )
    is_over = not left.directory_ids and not left.node_ids
    return Transaction({key: mod_revision}, {} if is_over else {key: encode(left)}, (key,) if is_over else ())


def copy_dropped(image: ClusterImage, tp: TopicIdPartition, partition: PartitionAt, copy: InSyncReplica) -> Transaction:
    """Takes a copy off a partition's entry once its directory has removed it."""
    left = tuple(each for each in partition.entry.out_of_sync if each not in {copy, any_copy_of(copy.node_id)})
    key = image.keys.partition(tp)
    return Transaction({key: partition.mod_revision}, {key: encode(partition.entry._replace(out_of_sync=left))})


def change_partitions(image: ClusterImage, entries: Mapping[TopicIdPartition, PartitionEntry]) -> list[Transaction]:
    """Replaces the entries of partitions. Each transaction is an independent change, and fails if one of its partitions has changed
    or is gone."""
    known = [(tp, at.mod_revision) for tp in entries if (at := image.partition(tp)) is not None]
    return [
        Transaction(
            {image.keys.partition(tp): mod_revision for tp, mod_revision in some},
            {image.keys.partition(tp): encode(entries[tp]) for tp, _ in some},
        )
        for at in range(0, len(known), OPERATIONS_MAX)
        if (some := known[at : at + OPERATIONS_MAX])
    ]


def _topic(image: ClusterImage, topic_id: bytes) -> TopicEntry:
    topic = image.topic(topic_id)
    assert topic is not None, "it exists"
    return topic


def _as_seen(image: ClusterImage, topic_id: bytes) -> dict[str, int]:
    """The comparison that a topic is unchanged since the image."""
    return {image.keys.topic(topic_id): image.topic_revision(topic_id)}


def _partitions(
    image: ClusterImage, topic_id: bytes, first: int, entries: Sequence[PartitionEntry], compares: dict[str, int]
) -> list[Transaction]:
    values = {
        image.keys.partition(TopicIdPartition(topic_id, number)): encode(entry) for number, entry in enumerate(entries, first)
    }
    keys = list(values)
    chunks = [keys[at : at + OPERATIONS_MAX] for at in range(0, len(keys), OPERATIONS_MAX)]
    return [Transaction(compares, {key: values[key] for key in chunk}) for chunk in chunks]
