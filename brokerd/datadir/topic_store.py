"""Topics: names, ids, partition counts and settings, in one small durable file. Independent of the logs.

The id of a deleted topic stays listed until its directories are gone. So a crash in between leaves no leftovers, and only
directories known to be deleted are ever removed.

If the last step of a write, the sync of the directory, fails, the fate of the write is unknown: the next start may find the old or
the new file. In memory, an addition then counts as not done and a removal as done, so that no acknowledged data can be lost. The
next write settles it.

The broker's own topics are in the file too, but clients cannot see them: look-ups, lists and counts omit them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

from brokerd.config.settings import INT64_MAX
from brokerd.config.topic import TopicConfig, topic_config
from brokerd.datadir.node_state import damaged, missing
from brokerd.errors import Fate, InvalidTopicError, StorageError, UnknownTopicIdError, UnknownTopicOrPartitionError
from brokerd.ids import INTERNAL_PREFIX, TopicIdPartition, topic_name_problem
from brokerd.steps import Job, Steps
from brokerd.storage.checksummed_file import DocumentError, DocumentKind, NotSyncedError, read_json, write_json
from brokerd.storage.files import Files
from brokerd.storage.names import TOPICS
from brokerd.storage.spare_files import SpareFiles

TOPICS_KIND = DocumentKind("topics", 1)


def check_topic_name(name: str, *, internal: bool = False) -> None:
    """Raises InvalidTopicError. `internal` allows the broker's own names."""
    problem = topic_name_problem(name, internal=internal)
    if problem:
        raise InvalidTopicError(f"'{name[:300]}' cannot be a topic's name: {problem}")


class Topic(NamedTuple):
    """One topic. `configs` holds only the settings that it overrides."""

    name: str
    id: bytes
    partition_count: int
    configs: Mapping[str, str]
    held: tuple[int, ...] | None = None  # in a cluster: the partitions in this directory; None = all

    @property
    def partitions_here(self) -> Sequence[int]:
        """The partitions in this directory."""
        return range(self.partition_count) if self.held is None else self.held


# The topic of the coordinator's log. Its fixed id makes it recognizable if the topics file is lost. Retention is off, since the
# coordinator compacts its log itself. It removes whole segments, so segments are small.
COORDINATOR = Topic(
    "__coordinator",
    b"__coordinator___",
    1,
    {"retention.ms": "-1", "retention.bytes": "-1", "segment.bytes": "1048576", "segment.ms": str(INT64_MAX)},
)
COORDINATOR_LOG = TopicIdPartition(COORDINATOR.id, 0)
_COORDINATOR_MIN_INSYNC = 2  # whatever min.insync.replicas is (Kafka: transaction.state.log.min.isr)


def effective_config(topic: Topic, defaults: Mapping[str, object]) -> TopicConfig:
    """The effective settings of a topic. Raises InvalidConfigError."""
    config = topic_config(topic.configs, defaults)
    return replace(config, min_insync_replicas=effective_min_insync(topic, config.min_insync_replicas))


def effective_min_insync(topic: Topic, configured: int) -> int:
    """The effective min.insync.replicas: at least 2 for the coordinator's log, so that copied decisions are on several disks."""
    return max(configured, _COORDINATOR_MIN_INSYNC) if topic.id == COORDINATOR.id else configured


def unknown_topic_id(topic_id: bytes) -> UnknownTopicIdError:
    """The error for a topic id that does not exist, or that the caller may not see."""
    return UnknownTopicIdError(f"there is no topic with id {topic_id.hex()}: it was deleted, and perhaps recreated")


class TopicStore:
    """The topics file and its content; see the module docstring."""

    def __init__(self, files: Files, spares: SpareFiles | None = None) -> None:
        self._files = files
        self._spares = spares
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self.deleting: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.list())

    def open(self) -> None:
        """Reads the file. Raises DataDirectoryError."""
        try:
            value = read_json(self._files, TOPICS, TOPICS_KIND)
        except FileNotFoundError:
            raise missing(TOPICS) from None
        except DocumentError as error:
            raise damaged(TOPICS, error) from None
        for entry in value["topics"]:
            held = tuple(entry["held"]) if "held" in entry else None
            self._put(Topic(entry["name"], bytes.fromhex(entry["id"]), entry["partitions"], entry["configs"], held))
        self.deleting = {bytes.fromhex(topic_id) for topic_id in value["deleting"]}

    def create(self, topics: Iterable[Topic] = ()) -> None:
        """Writes the file with these topics. Raises OSError."""
        self._job({topic.name: topic for topic in topics}, set())()

    def all(self) -> list[Topic]:
        """All topics, the broker's own included, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def list(self) -> list[Topic]:
        """All clients' topics, by name."""
        return [topic for topic in self.all() if not _is_internal(topic)]

    def has(self, name: str) -> bool:
        """True if there is a client's topic of that name."""
        return name in self._by_name and not name.startswith(INTERNAL_PREFIX)

    def by_name(self, name: str) -> Topic:
        """Raises UnknownTopicOrPartitionError."""
        topic = self._by_name.get(name)
        if topic is None or _is_internal(topic):
            raise UnknownTopicOrPartitionError(f"there is no topic '{name}'")
        return topic

    def by_id(self, topic_id: bytes) -> Topic:
        """Raises UnknownTopicIdError."""
        topic = self._by_id.get(topic_id)
        if topic is None or _is_internal(topic):
            raise unknown_topic_id(topic_id)
        return topic

    def any_by_id(self, topic_id: bytes) -> Topic | None:
        """A topic, the broker's own included; None if unknown."""
        return self._by_id.get(topic_id)

    def count_of(self, topic_id: bytes) -> int:
        """The number of partitions of a client's topic; 0 if unknown."""
        topic = self._by_id.get(topic_id)
        return 0 if topic is None or _is_internal(topic) else topic.partition_count

    def held(self, topic_id: bytes) -> Sequence[int]:
        """The partitions of a topic that are in this directory."""
        topic = self._by_id.get(topic_id)
        return topic.partitions_here if topic is not None else ()

    def partition_count(self) -> int:
        """The number of partitions of all clients' topics."""
        return sum(topic.partition_count for topic in self._by_name.values() if not _is_internal(topic))

    def put(self, topic: Topic) -> Steps[None]:
        """Adds a topic, or replaces the topic with its id. The change is invisible until durable. On StorageError nothing has
        changed, but with fate UNKNOWN the change may appear after a restart.

        Only one `put` or `remove` may be in progress at a time.
        """
        try:
            others = {name: other for name, other in self._by_name.items() if other.id != topic.id}
            yield self._job({**others, topic.name: topic}, self.deleting)
        except OSError as error:
            unsynced = "it is unchanged, but the change may appear after a restart unless another topic change follows"
            raise _write_error(error, f"topic '{topic.name}'", unsynced) from error
        self._put(topic)

    def remove(self, topic: Topic) -> Steps[None]:
        """Removes a topic durably. Its id is in `deleting` until `forget`. On StorageError nothing has changed, except that with
        fate UNKNOWN the topic is removed but may reappear after a restart.
        """
        rest = {name: other for name, other in self._by_name.items() if name != topic.name}
        try:
            yield self._job(rest, self.deleting | {topic.id})
        except OSError as error:
            if isinstance(error, NotSyncedError):
                self._remove(topic)
            unsynced = "it is gone, but a power cut may bring it back"
            raise _write_error(error, f"the removal of topic '{topic.name}'", unsynced) from error
        self._remove(topic)

    def settle(self) -> Steps[None]:
        """Makes the in-memory topics durable. Raises StorageError."""
        try:
            yield self._job(self._by_name, self.deleting)
        except OSError as error:
            raise _write_error(error, "the list of topics", "a power cut may bring an older one back") from error

    def forget(self, topic_id: bytes) -> None:
        """Records that the directories of a deleted topic are gone; made durable by the next write."""
        self.deleting.discard(topic_id)

    def _put(self, topic: Topic) -> None:
        before = self._by_id.get(topic.id)
        if before is not None and before.name != topic.name:
            del self._by_name[before.name]
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic

    def _remove(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.id]
        self.deleting.add(topic.id)

    def _job(self, by_name: Mapping[str, Topic], deleting: AbstractSet[bytes]) -> Job:
        """A job that writes the given state; later changes do not affect it."""
        present, deleting = [by_name[name] for name in sorted(by_name)], frozenset(deleting)

        def write() -> None:
            value = {"topics": list(map(_entry, present)), "deleting": sorted(topic_id.hex() for topic_id in deleting)}
            write_json(self._files, TOPICS, TOPICS_KIND, value, spares=self._spares)

        return write


def _entry(topic: Topic) -> dict[str, object]:
    entry = {"name": topic.name, "id": topic.id.hex(), "partitions": topic.partition_count, "configs": dict(topic.configs)}
    return entry if topic.held is None else {**entry, "held": topic.held}


def _is_internal(topic: Topic) -> bool:
    return topic.name.startswith(INTERNAL_PREFIX)


def _write_error(error: OSError, change: str, unsynced: str) -> StorageError:
    """The error for a failed write. `unsynced`: the state of the change if only the sync of the directory failed."""
    if isinstance(error, NotSyncedError):
        return StorageError(f"{change} could not be made durable ({error.strerror}): {unsynced}", fate=Fate.UNKNOWN)
    return StorageError(f"{change} could not be written ({error.strerror})")
