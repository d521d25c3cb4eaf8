"""Values used to create, describe and delete topics. Makes no calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from brokerd.client.io.response_checks import checked_topic, senseless
from brokerd.errors import WireError
from brokerd.wire.errors import from_proto
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import topics_pb2


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. `partitions` 0 = the broker's num.partitions; `configs` by Kafka's names."""

    name: str
    partitions: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """An effective setting of a topic."""

    name: str
    value: str
    is_default: bool  # True = inherited from the broker, not set for this topic
    documentation: str


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """The offsets and size of a partition."""

    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int
    segment_count: int
    producer_count: int
    error: WireError | None  # None = healthy

    @property
    def offset_count(self) -> int:
        """Offsets between start and end; not all have a record for readers (markers of transactions, what was aborted)."""
        return self.high_watermark - self.log_start_offset


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The full description of a topic."""

    name: str
    topic_id: bytes
    configs: tuple[ConfigEntry, ...]
    partitions: tuple[PartitionDescription, ...]


def read_results(what: str, names: Iterable[str], results: Iterable[topics_pb2.TopicResult]) -> dict[str, bytes | WireError]:
    """Per requested topic its id, or its error. Raises UnknownServerError if the response does not match the request."""
    read = {result.name: from_proto(result.error) if result.HasField("error") else result.topic_id for result in results}
    if set(read) != set(names):
        raise senseless(what, f"it has results for {len(read)} topics, not for those that were requested")
    return read


def read_descriptions(response: topics_pb2.DescribeTopicsResponse) -> dict[str, TopicDescription | WireError]:
    """Per topic its description, or its error; in the order of the response."""
    return {
        plain_text(topic.name): from_proto(topic.error) if topic.HasField("error") else _description(topic)
        for topic in response.topics
    }


def _description(topic: topics_pb2.TopicDescription) -> TopicDescription:
    checked_topic("DescribeTopics", topic.name, topic.topic_id)
    configs = tuple(
        ConfigEntry(plain_text(entry.name), plain_text(entry.value), entry.is_default, plain_text(entry.documentation))
        for entry in topic.configs
    )
    return TopicDescription(topic.name, topic.topic_id, configs, tuple(_partition(partition) for partition in topic.partitions))


def _partition(partition: topics_pb2.PartitionDescription) -> PartitionDescription:
    return PartitionDescription(
        partition=partition.partition,
        log_start_offset=partition.log_start_offset,
        last_stable_offset=partition.last_stable_offset,
        high_watermark=partition.high_watermark,
        log_end_offset=partition.log_end_offset,
        size_bytes=partition.size_bytes,
        segment_count=partition.segment_count,
        producer_count=partition.producer_count,
        error=from_proto(partition.error) if partition.HasField("error") else None,
    )
