"""Calls that create, describe, change and delete topics, and their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from brokerd.client.broker_client import BrokerClient
from brokerd.client.io.response_checks import senseless
from brokerd.client.metadata import check_topic
from brokerd.errors import BrokerdError, TopicAlreadyExistsError, WireError
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
        """Offsets between start and end; some have no record for readers (transaction markers, aborted records)."""
        return self.high_watermark - self.log_start_offset


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """The full description of a topic."""

    name: str
    topic_id: bytes
    configs: tuple[ConfigEntry, ...]
    partitions: tuple[PartitionDescription, ...]


async def create_topics(
    client: BrokerClient, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> dict[str, bytes | WireError]:
    """Creates topics independently; returns the id of each, or its error. A retry after a lost response may fail because an earlier
    attempt created the topic; the error then says so."""
    request = topics_pb2.CreateTopicsRequest(validate_only=validate_only)
    for topic in topics:
        request.topics.add(name=topic.name, partitions=topic.partitions, configs=dict(topic.configs))
    lost: list[BrokerdError] = []
    response = await client.call(request, topics_pb2.CreateTopicsResponse, failures=lost)
    results = _read_results("CreateTopics", [topic.name for topic in topics], response.results)
    if not lost:
        return results
    note = "; the response to an earlier attempt of this call was lost, so this call may have created it"
    return {
        name: TopicAlreadyExistsError(result.message + note) if isinstance(result, TopicAlreadyExistsError) else result
        for name, result in results.items()
    }


async def create_topic(client: BrokerClient, name: str, partitions: int = 0, configs: Mapping[str, str] | None = None) -> bytes:
    """Creates one topic and returns its id. Raises TopicAlreadyExistsError and the broker's other errors."""
    (result,) = (await create_topics(client, [NewTopic(name, partitions, configs or {})])).values()
    if isinstance(result, WireError):
        raise result
    return result


async def delete_topics(client: BrokerClient, names: Sequence[str]) -> dict[str, bytes | WireError]:
    """Deletes topics and their records; returns the id of each, or its error."""
    response = await client.call(topics_pb2.DeleteTopicsRequest(names=names), topics_pb2.DeleteTopicsResponse)
    return _read_results("DeleteTopics", names, response.results)


async def describe_topics(client: BrokerClient, names: Sequence[str] = ()) -> dict[str, TopicDescription | WireError]:
    """Settings, offsets and sizes of topics, in the order of the response; without `names`, of all topics, sorted."""
    response = await client.call(topics_pb2.DescribeTopicsRequest(names=names), topics_pb2.DescribeTopicsResponse)
    return {
        plain_text(topic.name): from_proto(topic.error) if topic.HasField("error") else _description(topic)
        for topic in response.topics
    }


async def create_partitions(client: BrokerClient, name: str, total_count: int, *, validate_only: bool = False) -> None:
    """Increases a topic's number of partitions. Raises the broker's error."""
    request = topics_pb2.CreatePartitionsRequest(name=name, total_count=total_count, validate_only=validate_only)
    await client.call(request, topics_pb2.CreatePartitionsResponse)


async def alter_topic_configs(
    client: BrokerClient, name: str, *, set_: Mapping[str, str], unset: Sequence[str] = (), validate_only: bool = False
) -> None:
    """Changes settings of a topic; those in `unset` revert to the broker's. Raises the broker's error."""
    request = topics_pb2.AlterTopicConfigsRequest(name=name, set=dict(set_), unset=unset, validate_only=validate_only)
    await client.call(request, topics_pb2.AlterTopicConfigsResponse)


def _read_results(what: str, names: Iterable[str], results: Iterable[topics_pb2.TopicResult]) -> dict[str, bytes | WireError]:
    """The id of each topic, or its error. Raises UnknownServerError if the response does not match the request."""
    read = {result.name: from_proto(result.error) if result.HasField("error") else result.topic_id for result in results}
    if set(read) != set(names):
        raise senseless(what, f"it has results for {len(read)} topics, not for those that were requested")
    return read


def _description(topic: topics_pb2.TopicDescription) -> TopicDescription:
    check_topic("DescribeTopics", topic.name, topic.topic_id)
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
