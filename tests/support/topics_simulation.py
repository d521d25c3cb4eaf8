"""Nodes that concurrently create, grow, alter and delete topics of a few names, each by its own stale view of the store, and may
stop half-way. Each node's directory follows the node's view.

Checked after every step: a visible topic has a unique name and all its partitions; a deleted topic has a tombstone that lists every
directory with its data; a reported change has happened. Once all nodes have seen everything, each partition is held and led where
it was placed, and nothing is left of deleted topics."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from brokerd.cluster import assignments, changes
from brokerd.cluster.assignments import HeldTopic, Life
from brokerd.cluster.changes import Transaction
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import InSyncReplica, Keys, PartitionEntry, TopicEntry
from brokerd.ids import TopicIdPartition
from tests.support.coordination_store import Store, see

STEPS = 120
NODES = 3
NAMES = ("a", "b")
COUNTS = (*[1, 2, 3] * 5, 130)  # 130 need more than one transaction
KEYS = Keys("test")
DIRECTORIES = ("d0", "d1", "d2")


def entries(count: int, generator: random.Random) -> list[PartitionEntry]:
    """New partitions with one replica each."""
    nodes = [generator.randrange(NODES) for _ in range(count)]
    return [PartitionEntry((node,), (InSyncReplica(node, DIRECTORIES[node]),), node, 1, 1) for node in nodes]


class Directory:
    """A node's data directory: the partitions it holds and the leader epochs in which it leads."""

    def __init__(self, node: int) -> None:
        self.life = Life(node, 1, DIRECTORIES[node])
        self.held: dict[bytes, HeldTopic] = {}
        self.epochs: dict[TopicIdPartition, int] = {}

    def follow(self, image: ClusterImage) -> list[bytes]:
        """Reconciles itself with the image. Returns the topics whose tombstones no longer need to list it."""
        removed = assignments.to_remove(image, self.life.directory_id, self.life.node_id, self.held)
        for topic_id in removed:
            self.held.pop(topic_id, None)
            self.epochs = {tp: epoch for tp, epoch in self.epochs.items() if tp.topic_id != topic_id}
        for topic_id, entry, numbers in list(assignments.to_hold(image, self.life.node_id, self.life.directory_id, self.held)):
            before = self.held[topic_id].numbers if topic_id in self.held else ()
            assert not set(numbers) & set(before), "a partition is created twice"
            self.held[topic_id] = HeldTopic(entry, [*before, *numbers])
            self.epochs.update(dict.fromkeys((TopicIdPartition(topic_id, number) for number in numbers), 0))
        names = [topic.entry.name for topic in self.held.values()]
        assert len(set(names)) == len(names), "two topics of one name in a directory"
        self.epochs.update(assignments.to_lead(image, self.life, self.epochs))
        return removed


class Simulation:
    """One schedule. Raises AssertionError if a promise is broken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.facts: Counter[str] = Counter()
        self.store = Store()
        self.everything, self.checked = ClusterImage(KEYS), 0
        self.images = [ClusterImage(KEYS) for _ in range(NODES)]
        self.seen = [0] * NODES
        # node, kind, transactions left, topic id, partition count, revisions of the keys it has put
        self.changing: list[tuple[int, str, list[Transaction], bytes, int, dict[str, int]]] = []
        self.directories = [Directory(node) for node in range(NODES)]
        self.known: dict[bytes, int] = {}  # partition counts that were visible
        self.deleted: set[bytes] = set()

    def run(self) -> Mapping[str, int]:
        """Runs the schedule."""
        for _ in range(STEPS):
            self.random.choice((self.begin, self.go_on, self.go_on, self.watch, self.follow, self.sweep))()
            self.check()
        self.settle()
        return self.facts

    def watch(self) -> None:
        """A node sees some more changes."""
        node = self.random.randrange(NODES)
        for event in self.store.events[self.seen[node] : self.seen[node] + self.random.choice((1, 100))]:
            see(self.images[node], event)
            self.seen[node] += 1

    def begin(self) -> None:
        """A node begins to change a topic."""
        node, name = self.random.randrange(NODES), self.random.choice(NAMES)
        image = self.images[node]
        topic_id, count = image.topic_id(name), self.random.choice(COUNTS)
        if topic_id is None:
            new_id = self.random.randbytes(16)
            steps = changes.create_topic(image, new_id, TopicEntry(name, count, {}), entries(count, self.random))
            self.changing.append((node, "created", steps, new_id, count, {}))
            return
        topic = image.topic(topic_id)
        assert topic is not None
        what = self.random.choice(("grown", "altered", "deleted"))
        if what == "grown":
            steps = changes.grow_topic(image, topic_id, entries(count, self.random))
            self.changing.append((node, what, steps, topic_id, topic.partition_count + count, {}))
        elif what == "altered":
            altered = topic._replace(configs={"retention.ms": str(self.random.randrange(10))})
            steps = [changes.change_topic(image, topic_id, altered)]
            self.changing.append((node, what, steps, topic_id, topic.partition_count, {}))
        else:
            self.changing.append((node, what, [changes.delete_topic(image, topic_id)], topic_id, 0, {}))

    def go_on(self) -> None:
        """A node runs the next transaction of a change, or stops half-way."""
        if not self.changing:
            return
        index = self.random.randrange(len(self.changing))
        _, what, steps, topic_id, count, put = self.changing[index]
        if self.random.random() < 0.05:
            del self.changing[index]
            self.facts["stopped in the middle"] += 1
            return
        if not steps:
            del self.changing[index]
            self.facts[what] += 1
            if what != "deleted":
                assert topic_id in self.deleted or self.known.get(topic_id, 0) >= count, "what was told is not so"
        elif self.store.transact((transaction := steps.pop(0)).after(put)):
            put.update(dict.fromkeys(transaction.puts, self.store.revision))
        else:
            del self.changing[index]
            self.facts["failed"] += 1

    def sweep(self) -> None:
        """A node sweeps partitions whose topic it cannot see, although the topic may be under creation."""
        image = self.images[self.random.randrange(NODES)]
        if self.random.random() < 0.2:
            for topic_id, _ in image.orphans():
                swept = [self.store.transact(each) for each in changes.sweep(image, topic_id)[: self.random.choice((1, 2))]]
                self.facts["swept"] += any(swept)

    def follow(self) -> None:
        """A random directory follows its node's view."""
        node = self.random.randrange(NODES)
        self.follow_at(node)

    def follow_at(self, node: int) -> None:
        """A directory follows its node's view and is removed from tombstones."""
        for topic_id in self.directories[node].follow(self.images[node]):
            if topic_id in self.images[node].tombstones:
                transaction = changes.data_removed(self.images[node], topic_id, DIRECTORIES[node], node)
                self.facts["data removed"] += self.store.transact(transaction)

    def settle(self) -> None:
        """All nodes see everything and follow it."""
        for _ in range(2 * NODES):
            for node in range(NODES):
                for event in self.store.events[self.seen[node] :]:
                    see(self.images[node], event)
                self.seen[node] = len(self.store.events)
                self.follow_at(node)
        for topic_id, _ in self.images[0].orphans():
            assert all(map(self.store.transact, changes.sweep(self.images[0], topic_id)))
        self.check()
        assert not self.everything.tombstones, "a tombstone is left"
        assert not list(self.everything.orphans()), "partitions are left of what was deleted, or never was"
        wanted = {tp: (partition.entry.leader, partition.entry.leader_epoch) for tp, partition in self.everything.partitions()}
        led = {tp: (directory.life.node_id, epoch) for directory in self.directories for tp, epoch in directory.epochs.items()}
        assert led == wanted, "a partition is not led where it was placed"
        topics = dict(self.everything.topics())
        for directory in self.directories:
            assert {topic_id: topic.entry for topic_id, topic in directory.held.items()} == topics, "a node knows other topics"

    def check(self) -> None:
        """Checks what a reader of the store may rely on."""
        image = self.everything
        for event in self.store.events[self.checked :]:
            see(image, event)
        self.checked = len(self.store.events)
        ids = {topic_id for topic_id, _ in image.topics()}
        assert len(ids) == len(image.topics()), "two names lead to one topic"
        for topic_id, topic in image.topics():
            assert topic_id not in self.deleted, "a deleted topic is back"
            found = [image.partition(TopicIdPartition(topic_id, number)) for number in range(topic.partition_count)]
            assert None not in found, "a topic lacks partitions"
            assert topic.partition_count >= self.known.get(topic_id, 0), "a topic has shrunk"
            self.known[topic_id] = topic.partition_count
        for topic_id in self.known.keys() - ids:
            self.deleted.add(topic_id)
        for directory in self.directories:
            for topic_id in (topic_id for topic_id, topic in directory.held.items() if topic.numbers and topic_id not in ids):
                tombstone = image.tombstones[topic_id].entry if topic_id in image.tombstones else None
                assert tombstone is not None, "data that no tombstone tells of"
                assert directory.life.directory_id in tombstone.directory_ids, "data that no tombstone tells of"


def run_seed(seed: int) -> Mapping[str, int]:
    """Runs one schedule."""
    return Simulation(seed).run()
