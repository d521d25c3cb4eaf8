"""The cluster at one revision of its coordination store, folded from keys that were put and deleted.

The order of different keys does not matter, so a full read and a watch feed the image alike. An unreadable value counts as absent,
which never removes data (Tombstone in keys.py), and is listed in `problems`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from brokerd.cluster.keys import (
    NODE_ID_MAX,
    PARTITIONS_MAX,
    EntryError,
    Keys,
    PartitionEntry,
    Registration,
    Tombstone,
    TopicEntry,
    decode_partition,
    decode_registration,
    decode_tombstone,
    decode_topic,
    level_of,
    number_of,
    topic_id_of,
)
from brokerd.ids import NO_LEADER, TopicIdPartition


class Node(NamedTuple):
    """A live node. `epoch`: the revision that created its registration, so it rises with each new registration. `mod_revision`: the
    revision that changed the registration last."""

    id: int
    epoch: int
    registration: Registration
    mod_revision: int = 0


class PartitionAt(NamedTuple):
    """A partition's entry. A change compares `mod_revision`, so that it fails if the entry has changed meanwhile."""

    entry: PartitionEntry
    mod_revision: int


class TombstoneAt(NamedTuple):
    """A tombstone, and the revision that a change compares."""

    entry: Tombstone
    mod_revision: int


class ClusterImage:
    """See the module docstring."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.cluster_id = ""
        self.controller = NO_LEADER
        self.controller_revision = 0  # compared by the node that takes the key, even if the value is unreadable
        self.feature_level = 1
        self.feature_revision = 0  # compared when the level is raised
        self.nodes: dict[int, Node] = {}
        self.tombstones: dict[bytes, TombstoneAt] = {}
        self.problems: dict[str, str] = {}  # by key: why its value is unreadable
        self._topic_ids: dict[str, bytes] = {}  # by name
        self._topics: dict[bytes, tuple[TopicEntry, int]] = {}  # with its mod_revision
        self._partitions: dict[bytes, dict[int, PartitionAt]] = {}  # by topic id and number

    def put(self, key: str, value: bytes, create_revision: int, mod_revision: int) -> None:
        """Applies a key that was created or changed."""
        self.delete(key)
        try:
            self._put(self.keys.split(key), value, create_revision, mod_revision)
        except EntryError as problem:
            self.problems[key] = str(problem)

    def delete(self, key: str) -> None:
        """Applies the deletion of a key. An unknown key changes nothing."""
        self.problems.pop(key, None)
        try:
            self._delete(self.keys.split(key))
        except EntryError:
            return  # put() stored nothing under an invalid key

    def topic_id(self, name: str) -> bytes | None:
        """The id of an existing topic; None if there is no topic of that name."""
        topic_id = self._topic_ids.get(name)
        topic = self.topic(topic_id) if topic_id is not None else None
        return topic_id if topic is not None and topic.name == name else None

    def topic(self, topic_id: bytes) -> TopicEntry | None:
        """An existing topic, else None. A topic exists if its name maps to its id: the name is written last and deleted first."""
        entry = self._topics[topic_id][0] if topic_id in self._topics else None
        return entry if entry is not None and self._topic_ids.get(entry.name) == topic_id else None

    def partition_name(self, tp: TopicIdPartition) -> str:
        """A partition's display name, with the topic's id if the topic is unknown."""
        topic = self.topic(tp.topic_id)
        return f"{topic.name}-{tp.partition}" if topic is not None else str(tp)

    def topic_revision(self, topic_id: bytes) -> int:
        """The revision that a change of an existing topic compares."""
        return self._topics[topic_id][1]

    def topics(self) -> list[tuple[bytes, TopicEntry]]:
        """All existing topics, sorted by name."""
        ids = [topic_id for name in sorted(self._topic_ids) if (topic_id := self.topic_id(name)) is not None]
        return [(topic_id, self._topics[topic_id][0]) for topic_id in ids]

    def partition(self, tp: TopicIdPartition) -> PartitionAt | None:
        """A partition's entry, even if its topic does not exist yet."""
        return self.partitions_of(tp.topic_id).get(tp.partition)

    def partitions_of(self, topic_id: bytes) -> Mapping[int, PartitionAt]:
        """A topic's partitions by number, including those written before the topic exists or its partition count covers them."""
        return self._partitions.get(topic_id, {})

    def orphans(self) -> Iterator[tuple[bytes, int]]:
        """The ids that have partitions but no topic, each with the newest revision of its partitions. The topic is being created,
        was never completed, or was deleted."""
        for topic_id, numbers in self._partitions.items():
            if topic_id not in self._topics:
                yield topic_id, max(partition.mod_revision for partition in numbers.values())

    def partitions(self) -> Iterator[tuple[TopicIdPartition, PartitionAt]]:
        """All partitions of existing topics. If the image changes during the iteration, some entries may be outdated."""
        for topic_id in list(self._partitions):
            topic = self.topic(topic_id)
            if topic is not None:
                for number, partition in list(self.partitions_of(topic_id).items()):
                    if number < topic.partition_count:
                        yield TopicIdPartition(topic_id, number), partition

    def _put(self, parts: tuple[str, ...], value: bytes, create_revision: int, mod_revision: int) -> None:
        match parts:
            case ("cluster-id",):
                self.cluster_id = _text(value)
            case ("producer-ids",):
                pass  # read from the store when needed, since only the newest value counts
            case ("controller",):
                self.controller_revision = mod_revision
                self.controller = number_of(_text(value), NODE_ID_MAX)
            case ("feature-level",):
                self.feature_level, self.feature_revision = 0, mod_revision  # 0 if unreadable: the controller rewrites it
                self.feature_level = level_of(value)
            case ("nodes", node):
                node_id = number_of(node, NODE_ID_MAX)
                self.nodes[node_id] = Node(node_id, create_revision, decode_registration(value), mod_revision)
            case ("names", name):
                self._topic_ids[name] = topic_id_of(_text(value))
            case ("topics", topic_id):
                self._topics[topic_id_of(topic_id)] = (decode_topic(value), mod_revision)
            case ("partitions", topic_id, number):
                partition = PartitionAt(decode_partition(value), mod_revision)
                self._partitions.setdefault(topic_id_of(topic_id), {})[number_of(number, PARTITIONS_MAX - 1)] = partition
            case ("tombstones", topic_id):
                self.tombstones[topic_id_of(topic_id)] = TombstoneAt(decode_tombstone(value), mod_revision)
            case _:
                raise EntryError("this version of brokerd does not know the key")

    def _delete(self, parts: tuple[str, ...]) -> None:
        match parts:
            case ("cluster-id",):
                self.cluster_id = ""
            case ("controller",):
                self.controller, self.controller_revision = NO_LEADER, 0
            case ("feature-level",):
                self.feature_level, self.feature_revision = 1, 0
            case ("nodes", node):
                self.nodes.pop(number_of(node, NODE_ID_MAX), None)
            case ("names", name):
                self._topic_ids.pop(name, None)
            case ("topics", topic_id):
                self._topics.pop(topic_id_of(topic_id), None)
            case ("partitions", topic_id, number):
                numbers = self._partitions.get(topic_id_of(topic_id), {})
                numbers.pop(number_of(number, PARTITIONS_MAX - 1), None)
                if not numbers:
                    self._partitions.pop(topic_id_of(topic_id), None)
            case ("tombstones", topic_id):
                self.tombstones.pop(topic_id_of(topic_id), None)


def _text(value: bytes) -> str:
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        raise EntryError("the value is not ASCII text") from None
