"""Nodes that create, grow, alter and delete topics of few names at once, each by what it has seen of the store, and stop half-way.

The promises hold after every transaction: a topic that can be seen has its name alone and all its partitions, one that was deleted
has a tombstone until each directory with its data is off it, and what somebody was told to have done is so.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from brokerd.cluster import changes
from brokerd.cluster.changes import Transaction
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import InSyncReplica, Keys, PartitionEntry, TopicEntry
from brokerd.ids import TopicIdPartition
from tests.support.coordination_store import Store, see

STEPS = 120
NODES = 3
NAMES = ("a", "b")
COUNTS = (*[1, 2, 3] * 5, 130)  # the last takes more than one transaction
KEYS = Keys("test")
DIRECTORIES = ("d0", "d1", "d2")


def entries(count: int, generator: random.Random) -> list[PartitionEntry]:
    """New partitions, each on one node."""
    nodes = [generator.randrange(NODES) for _ in range(count)]
    return [PartitionEntry((node,), (InSyncReplica(node, DIRECTORIES[node]),), node, 1, 1) for node in nodes]


class Simulation:
    """One schedule. Raises AssertionError where a promise is broken."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.facts: Counter[str] = Counter()
        self.store = Store()
        self.everything, self.checked = ClusterImage(KEYS), 0
        self.images = [ClusterImage(KEYS) for _ in range(NODES)]
        self.seen = [0] * NODES
        self.changing: list[tuple[int, str, list[Transaction], bytes, int]] = []  # node, what, left to do, topic id, partitions
        self.data: dict[bytes, set[str]] = {}  # directories that hold data, by topic id
        self.known: dict[bytes, int] = {}  # the partition count that somebody was told
        self.deleted: set[bytes] = set()

    def run(self) -> Mapping[str, int]:
        """Runs the schedule."""
        for _ in range(STEPS):
            self.random.choice((self.begin, self.go_on, self.go_on, self.watch, self.remove_data))()
            self.check()
        return self.facts

    def watch(self) -> None:
        """A node sees some of what has happened."""
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
            self.changing.append((node, "created", steps, new_id, count))
            return
        topic = image.topic(topic_id)
        assert topic is not None
        what = self.random.choice(("grown", "altered", "deleted"))
        if what == "grown":
            steps = changes.grow_topic(image, topic_id, entries(count, self.random))
            self.changing.append((node, what, steps, topic_id, topic.partition_count + count))
        elif what == "altered":
            altered = topic._replace(configs={"retention.ms": str(self.random.randrange(10))})
            self.changing.append((node, what, [changes.change_topic(image, topic_id, altered)], topic_id, topic.partition_count))
        else:
            self.changing.append((node, what, changes.delete_topic(image, topic_id), topic_id, 0))

    def go_on(self) -> None:
        """A node runs the next transaction of a change, or stops in the middle of it."""
        if not self.changing:
            return
        index = self.random.randrange(len(self.changing))
        _, what, steps, topic_id, count = self.changing[index]
        if self.random.random() < 0.05:
            del self.changing[index]
            self.facts["stopped in the middle"] += 1
            return
        if not steps:
            del self.changing[index]
            self.facts[what] += 1
            if what != "deleted":
                assert topic_id in self.deleted or self.known.get(topic_id, 0) >= count, "what was told is not so"
        elif not self.store.transact(steps.pop(0)):
            del self.changing[index]
            self.facts["failed"] += 1

    def remove_data(self) -> None:
        """A directory removes the data of a deleted topic, as its node sees it."""
        node = self.random.randrange(NODES)
        image, directory_id = self.images[node], DIRECTORIES[node]
        for topic_id, (tombstone, _) in list(image.tombstones.items()):
            if directory_id in tombstone.directory_ids:
                self.data[topic_id].discard(directory_id)
                self.facts["data removed"] += self.store.transact(changes.data_removed(image, topic_id, directory_id))

    def check(self) -> None:
        """What everybody who looks at the store now may rely on."""
        image = self.everything
        if self.checked == len(self.store.events):
            return
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
            replicas = (replica for partition in found if partition is not None for replica in partition.entry.isr)
            self.data.setdefault(topic_id, set()).update(replica.directory_id for replica in replicas)
        for topic_id in self.known.keys() - ids:
            self.deleted.add(topic_id)
            left = image.tombstones[topic_id].entry.directory_ids if topic_id in image.tombstones else ()
            assert self.data[topic_id] <= set(left), "data that no tombstone tells of"


def run_seed(seed: int) -> Mapping[str, int]:
    """Runs one schedule."""
    return Simulation(seed).run()
