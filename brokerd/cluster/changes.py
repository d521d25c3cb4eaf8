"""Changes of a cluster's topics, as transactions of its coordination store. Any node makes them; each transaction compares the
revisions that it rests on, so of two changes that meet, one fails and is decided again on a newer image.

A store takes a limited number of operations at once, so partitions are written in several transactions, where nobody looks: before
the topic has its name, or before its partition count covers them. The last transaction makes the change, and it alone can be
seen. What a change that never ended has left is overwritten by the next one, or belongs to an id that nobody has; the controller
sweeps the latter, as it does what is left of a deleted topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from brokerd.cluster.election import any_copy_of, ever_in_sync
from brokerd.cluster.image import ClusterImage, PartitionAt
from brokerd.cluster.keys import ANY_DIRECTORY, InSyncReplica, PartitionEntry, Tombstone, TopicEntry, encode
from brokerd.ids import TopicIdPartition

OPERATIONS_MAX = 128  # in one transaction: etcd's default of --max-txn-ops
ABSENT = 0  # as a revision
JUST_PUT = -1  # as a revision: that of an earlier transaction of the same change


class Transaction(NamedTuple):
    """One transaction: if each compared key was last changed at its revision (ABSENT: there is none), all operations are done."""

    compares: dict[str, int]
    puts: dict[str, bytes]
    deletes: tuple[str, ...] = ()

    def after(self, put: Mapping[str, int]) -> Transaction:
        """The transaction once it is known at which revisions the earlier ones have put their keys."""
        return self._replace(compares={key: put[key] if at == JUST_PUT else at for key, at in self.compares.items()})


def create_topic(image: ClusterImage, topic_id: bytes, topic: TopicEntry, entries: Sequence[PartitionEntry]) -> list[Transaction]:
    """Creates a topic. The last transaction fails if the name is taken, or if the partitions have been swept or are another
    creation's by then. `topic_id`: new.
    """
    keys = image.keys
    puts = {keys.topic(topic_id): encode(topic), keys.name(topic.name): topic_id.hex().encode()}
    made = _partitions(image, topic_id, 0, entries, {keys.topic(topic_id): ABSENT})
    first = keys.partition(TopicIdPartition(topic_id, 0))
    return [*made, Transaction({**dict.fromkeys(puts, ABSENT), first: JUST_PUT}, puts)]


def grow_topic(image: ClusterImage, topic_id: bytes, entries: Sequence[PartitionEntry]) -> list[Transaction]:
    """Adds partitions to a topic that exists. Fails if the topic has changed."""
    topic = _topic(image, topic_id)
    made = _partitions(image, topic_id, topic.partition_count, entries, _as_seen(image, topic_id))
    return [*made, change_topic(image, topic_id, topic._replace(partition_count=topic.partition_count + len(entries)))]


def change_topic(image: ClusterImage, topic_id: bytes, topic: TopicEntry) -> Transaction:
    """Replaces the entry of a topic that exists, but not its name. Fails if the topic has changed."""
    return Transaction(_as_seen(image, topic_id), {image.keys.topic(topic_id): encode(topic)})


def delete_topic(image: ClusterImage, topic_id: bytes) -> Transaction:
    """Deletes a topic that exists, and leaves a tombstone that lists the directories with its data. Its partitions are left to the
    controller. Fails if the topic has changed, or where its copies are.
    """
    keys, topic = image.keys, _topic(image, topic_id)
    seen = {number: at for number, at in sorted(image.partitions_of(topic_id).items()) if number < topic.partition_count}
    entries = [at.entry for at in seen.values()]
    copies = {copy for entry in entries for copy in (*entry.isr, *entry.out_of_sync, *entry.superseded)}
    directory_ids = {copy.directory_id for copy in copies} - {ANY_DIRECTORY}
    alive = (image.nodes[node_id] for entry in entries for node_id in entry.replicas if node_id in image.nodes)
    directory_ids.update(node.registration.directory_id for node in alive)
    # A copy that was never in sync is listed nowhere, and its node is not there to say in which directory it is.
    known = {node_id for entry in entries for node_id in (*ever_in_sync(entry), *image.nodes)}
    unknown = {node_id for entry in entries for node_id in entry.replicas} - known
    unknown.update(copy.node_id for copy in copies if copy.directory_id == ANY_DIRECTORY)
    tombstone = Tombstone(topic.name, topic.partition_count, tuple(sorted(directory_ids)), tuple(sorted(unknown)))
    gone = (keys.name(topic.name), keys.topic(topic_id))
    # A partition that has got another replica meanwhile has one more copy; of very many partitions, not all can be compared.
    compared = {keys.partition(TopicIdPartition(topic_id, number)): at.mod_revision for number, at in seen.items()}
    compares = _as_seen(image, topic_id) | dict(list(compared.items())[: OPERATIONS_MAX - 1])
    return Transaction(compares, {keys.tombstone(topic_id): encode(tombstone)}, gone)


def sweep(image: ClusterImage, topic_id: bytes) -> list[Transaction]:
    """Deletes the partitions of an id that has no topic, the first partition first: if the topic is still being created, that
    fails. Fails itself if there is a topic by now, or if a partition has changed.
    """
    keys = image.keys
    seen = [
        (keys.partition(TopicIdPartition(topic_id, number)), partition.mod_revision)
        for number, partition in sorted(image.partitions_of(topic_id).items())
    ]
    chunks = [dict(seen[at : at + OPERATIONS_MAX - 1]) for at in range(0, len(seen), OPERATIONS_MAX - 1)]
    return [Transaction({keys.topic(topic_id): ABSENT, **chunk}, {}, tuple(chunk)) for chunk in chunks]


def data_removed(image: ClusterImage, topic_id: bytes, directory_id: str, node_id: int) -> Transaction:
    """Takes a directory and its node off a tombstone, once it holds nothing of the topic any more; the last ones end it."""
    key, (tombstone, mod_revision) = image.keys.tombstone(topic_id), image.tombstones[topic_id]
    left = tombstone._replace(
        directory_ids=tuple(each for each in tombstone.directory_ids if each != directory_id),
        node_ids=tuple(each for each in tombstone.node_ids if each != node_id),
    )
    is_over = not left.directory_ids and not left.node_ids
    return Transaction({key: mod_revision}, {} if is_over else {key: encode(left)}, (key,) if is_over else ())


def copy_dropped(image: ClusterImage, tp: TopicIdPartition, partition: PartitionAt, copy: InSyncReplica) -> Transaction:
    """Takes a directory off the entry of a partition, once it holds no copy any more."""
    left = tuple(each for each in partition.entry.out_of_sync if each not in {copy, any_copy_of(copy.node_id)})
    key = image.keys.partition(tp)
    return Transaction({key: partition.mod_revision}, {key: encode(partition.entry._replace(out_of_sync=left))})


def change_partitions(image: ClusterImage, entries: Mapping[TopicIdPartition, PartitionEntry]) -> list[Transaction]:
    """Replaces the entries of partitions. Each transaction is a change of its own, and fails if one of its partitions has
    changed, or is gone."""
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
    """The comparison that a topic exists as in the image."""
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
