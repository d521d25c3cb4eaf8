"""Many groups and offsets: pages, split requests, and limits of which no principal can take everything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.client.groups import partition_of
from brokerd.config.client import ConsumerConfig
from brokerd.errors import PolicyViolationError
from brokerd.ids import TopicIdPartition
from tests.support.daemon import running_daemon
from tests.support.files import MemoryFiles

PARTITIONS = 2_500


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingClient]:
    path = tmp_path_factory.mktemp("groups") / "data"
    with running_daemon(path, files=MemoryFiles(), max_group_offsets=20_000) as daemon:  # noqa: SIM117
        with BlockingClient(ConsumerConfig(bootstrap_servers=daemon.address)) as client:
            yield client


@pytest.fixture(scope="module")
def tps(client: BlockingClient) -> list[TopicIdPartition]:
    topic_id = client.create_topic("many", PARTITIONS)
    return [TopicIdPartition(topic_id, partition) for partition in range(PARTITIONS)]


def test_a_commit_of_more_than_a_request_takes_is_split(client: BlockingClient, tps: list[TopicIdPartition]) -> None:
    asked = {tp: OffsetAndMetadata(0, "x" * (4_096 if tp.partition < 600 else 0)) for tp in tps}
    assert client.commit_group_offsets("large", asked) == {}
    for found in (client.group_offsets("large"), client.group_offsets("large", tps)):
        assert {tp: one[:2] for tp, one in found.items() if isinstance(one, OffsetAndMetadata)} == {
            tp: one[:2] for tp, one in asked.items()
        }
    assert [partition_of(one.committed) for one in client.describe_group("large").partitions] == tps
    assert client.delete_group("large", tps) == PARTITIONS
    assert client.list_groups("large") == []


def test_groups_come_in_pages(client: BlockingClient, tps: list[TopicIdPartition]) -> None:
    names = [f"group-{number:04}" for number in range(1_200)]
    for name in names:
        client.commit_group_offsets(name, {tps[0]: OffsetAndMetadata(0)})
    assert [group.group_id for group in client.list_groups("group-")] == names


def test_the_limit_of_offsets_counts_metadata_and_names_the_setting(client: BlockingClient, tps: list[TopicIdPartition]) -> None:
    with pytest.raises(PolicyViolationError, match=r"max\.group\.offsets"):
        client.commit_group_offsets("full", {tp: OffsetAndMetadata(0, "x" * 4_096) for tp in tps})
    client.delete_group("full")
    assert client.commit_group_offsets("full", {tps[0]: OffsetAndMetadata(0)}) == {}
