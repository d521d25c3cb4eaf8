"""Group offsets that a real broker refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ConsumerConfig
from brokerd.errors import OffsetMetadataTooLargeError, OffsetOutOfRangeError, UnknownTopicIdError
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
