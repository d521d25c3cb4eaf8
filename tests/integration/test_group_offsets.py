"""Offsets of groups through a real broker: recorded, read again after a restart, listed, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ConsumerConfig
from brokerd.errors import OffsetMetadataTooLargeError, OffsetOutOfRangeError, UnknownGroupError, UnknownTopicIdError
from brokerd.ids import TopicIdPartition, new_topic_id
from brokerd.testing import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[BlockingClient]:
    with BlockingClient(ConsumerConfig(bootstrap_servers=broker.bootstrap_servers)) as client:
        yield client


def partitions(client: BlockingClient, name: str, count: int = 2) -> list[TopicIdPartition]:
    topic_id = client.create_topic(name, count)
    return [TopicIdPartition(topic_id, partition) for partition in range(count)]


def test_what_is_answered_is_there_after_a_kill(broker: Broker, client: BlockingClient) -> None:
    first, second = partitions(client, "t")
    broker.topic("t").append([{"value": b"row", "partition": 0}] * 3)
    assert client.group_offsets("g") == {}
    assert client.group_offsets("g", [first]) == {}
    refused = client.commit_group_offsets("g", {first: OffsetAndMetadata(3, "so far\n", 1), second: OffsetAndMetadata(0)})
    assert refused == {}
    broker.kill()
    broker.restart()
    found = client.group_offsets("g")
    assert {
        tp: (one.offset, one.metadata, one.leader_epoch) for tp, one in found.items() if isinstance(one, OffsetAndMetadata)
    } == {
        first: (3, "so far\n", 1),
        second: (0, "", -1),
    }
    assert client.group_offsets("g", [second]) == {second: found[second]}


def test_offsets_that_no_reader_can_have_come_to_are_refused_one_by_one(broker: Broker, client: BlockingClient) -> None:
    first, second = partitions(client, "t")
    gone = TopicIdPartition(new_topic_id(), 0)
    refused = client.commit_group_offsets(
        "g",
        {
            gone: OffsetAndMetadata(0),
            first: OffsetAndMetadata(1),
            second: OffsetAndMetadata(0, "x" * 4_097),
            second._replace(partition=9): OffsetAndMetadata(0),
        },
    )
    assert isinstance(refused[gone], UnknownTopicIdError)
    assert isinstance(refused[first], OffsetOutOfRangeError)
    assert isinstance(refused[second], OffsetMetadataTooLargeError)
    assert len(refused) == 4
    assert client.list_groups() == []
    assert client.commit_group_offsets("g", {first: OffsetAndMetadata(1), second: OffsetAndMetadata(0, "x" * 4_096)}).keys() == {
        first
    }
    assert client.group_offsets("g").keys() == {second}


def test_groups_are_listed_and_deleted(client: BlockingClient) -> None:
    first, second = partitions(client, "t")
    for group_id in ("a", "b", "bc"):
        client.commit_group_offsets(group_id, {first: OffsetAndMetadata(0), second: OffsetAndMetadata(0)})
    assert [(group.group_id, group.partitions) for group in client.list_groups("b")] == [("b", 2), ("bc", 2)]
    assert client.delete_group("b", [first, first._replace(partition=7)]) == 1
    assert client.group_offsets("b").keys() == {second}
    assert client.delete_group("a") == 2
    with pytest.raises(UnknownGroupError):
        client.delete_group("a")
    client.delete_topics(["t"])
    assert client.list_groups() == []
