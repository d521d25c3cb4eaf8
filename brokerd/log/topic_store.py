"""Topics: names, ids, partition counts and settings, in one small durable file. No logs here.

A deleted topic's id stays listed until its directories are gone, so that a crash in between leaves nothing behind and
nothing that is not known to be deleted is ever removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from brokerd.errors import DataDirectoryError, StorageError, UnknownTopicIdError, UnknownTopicOrPartitionError
from brokerd.log.documents import DocumentError, read_json, write_json
from brokerd.log.files import Files
from brokerd.log.names import TOPICS
from brokerd.log.node_state import missing
from brokerd.log.spare_files import SpareFiles

TOPICS_KIND = "topics"
TOPICS_VERSION = 1


class Topic(NamedTuple):
    """One topic. `configs` holds only what was set for it."""

    name: str
    id: bytes
    partition_count: int
    configs: Mapping[str, str]


class TopicStore:
    """See the module."""

    def __init__(self, files: Files, spares: SpareFiles | None = None) -> None:
        self._files = files
        self._spares = spares
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self.deleting: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._by_name)

    def open(self) -> None:
        """Reads the file. Raises DataDirectoryError."""
        try:
            value = read_json(self._files, TOPICS, TOPICS_KIND, TOPICS_VERSION)
        except FileNotFoundError:
            raise missing(TOPICS) from None
        except DocumentError as error:
            raise DataDirectoryError(f"the file {TOPICS} of the data directory is damaged ({error.message})") from None
        for entry in value["topics"]:
            self._put(Topic(entry["name"], bytes.fromhex(entry["id"]), entry["partitions"], entry["configs"]))
        self.deleting = {bytes.fromhex(topic_id) for topic_id in value["deleting"]}

    def create(self) -> None:
        """Makes the file of a new directory. Raises OSError."""
        self._write()

    def list(self) -> list[Topic]:
        """All topics, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    def has(self, name: str) -> bool:
        """True if there is a topic of that name."""
        return name in self._by_name

    def by_name(self, name: str) -> Topic:
        """Raises UnknownTopicOrPartitionError."""
        topic = self._by_name.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic '{name}'")
        return topic

    def by_id(self, topic_id: bytes) -> Topic:
        """Raises UnknownTopicIdError."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicIdError(f"there is no topic with id {topic_id.hex()}: it was deleted, and perhaps created anew")
        return topic

    def partition_count(self) -> int:
        """Partitions of all topics."""
        return sum(topic.partition_count for topic in self._by_name.values())

    def put(self, topic: Topic) -> None:
        """Adds or replaces a topic, durably on return. Raises StorageError: then nothing has changed."""
        before = self._by_name.get(topic.name)
        self._put(topic)
        try:
            self._write()
        except OSError as error:
            if before is None:
                self._drop(topic)
            else:
                self._put(before)
            raise StorageError(f"topic '{topic.name}' could not be written ({error.strerror})") from error

    def remove(self, topic: Topic) -> None:
        """Removes a topic durably; its id is in `deleting` until `forget`. Raises StorageError: nothing has changed then."""
        self._drop(topic)
        self.deleting.add(topic.id)
        try:
            self._write()
        except OSError as error:
            self._put(topic)
            self.deleting.discard(topic.id)
            raise StorageError(f"topic '{topic.name}' could not be deleted ({error.strerror})") from error

    def forget(self, topic_id: bytes) -> None:
        """The directories of a deleted topic are gone; made durable by the next write."""
        self.deleting.discard(topic_id)

    def _put(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.id] = topic

    def _drop(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.id]

    def _write(self) -> None:
        topics = [
            {"name": topic.name, "id": topic.id.hex(), "partitions": topic.partition_count, "configs": dict(topic.configs)}
            for topic in self.list()
        ]
        value = {"topics": topics, "deleting": sorted(topic_id.hex() for topic_id in self.deleting)}
        write_json(self._files, TOPICS, TOPICS_KIND, TOPICS_VERSION, value, spares=self._spares)
