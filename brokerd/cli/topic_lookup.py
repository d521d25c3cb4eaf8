"""Finds topics by the names people type: an unknown name is answered with the nearest one that exists."""

from __future__ import annotations

from brokerd.cli.parser import did_you_mean
from brokerd.client.blocking import BlockingClient
from brokerd.client.metadata import TopicInfo
from brokerd.errors import UnknownTopicOrPartitionError, WireError


def find_topic(client: BlockingClient, name: str) -> TopicInfo:
    """The topic of this name. Raises UnknownTopicOrPartitionError suggesting the nearest name, and the broker's other errors."""
    metadata = client.metadata([name])
    if name in metadata.errors:
        raise with_nearest_name(client, name, metadata.errors[name])
    return metadata.topic(name)


def with_nearest_name(client: BlockingClient, name: str, error: WireError, *, may_create: bool = True) -> WireError:
    """`error`, unless it means that the topic does not exist: then an error with the nearest name, or (`may_create`) how to
    create one."""
    if not isinstance(error, UnknownTopicOrPartitionError):
        return error
    known = [topic.name for topic in client.metadata(None).topics.values() if not topic.is_internal]
    creation = f"create it with 'brokerd topics create {name} --partitions N'" if may_create else ""
    hint = did_you_mean(name, known, otherwise=creation)
    return UnknownTopicOrPartitionError(f"there is no topic '{name}'" + (f": {hint}" if hint else ""))


def check_partition(topic: TopicInfo, partition: int) -> None:
    """Raises UnknownTopicOrPartitionError if the topic has no such partition."""
    if not 0 <= partition < topic.partition_count:
        last = topic.partition_count - 1
        raise UnknownTopicOrPartitionError(f"topic '{topic.name}' has partitions 0 to {last}, not {partition}")
