"""Requests about many partitions are answered completely, and other callers get their turns in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerd.cluster.image import Node
from brokerd.cluster.keys import Registration
from brokerd.config.broker import BrokerConfig
from brokerd.server.admin import Admin
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.alone import Alone
from brokerd.server.handlers import groups, metadata
from brokerd.server.paging import Pauses
from brokerd.server.security.topic_authorizer import ANYBODY, Principal, TopicAuthorizer
from brokerd.sharing import Turns
from brokerd.wire.v1 import metadata_pb2, offsets_pb2, topics_pb2
from tests.support.build import open_manager
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.inner_broker import running
from tests.support.log_manager import LogManager
from tests.support.loop import one_turn

PARTITIONS = 1_000
OTHERS = 4  # other callers must get more turns than this meanwhile
Handle = Callable[[BrokerParts], Coroutine[Any, Any, Any]]


def authorizer_of(broker: BrokerParts, principal: Principal = ANYBODY) -> TopicAuthorizer:
    return TopicAuthorizer(principal, broker.topics)


def all_metadata(broker: BrokerParts) -> Coroutine[Any, Any, Any]:
    return metadata.handle(broker, authorizer_of(broker), metadata_pb2.MetadataRequest(all_topics=True))


def metadata_of_two(broker: BrokerParts) -> Coroutine[Any, Any, Any]:
    topic_id = broker.topics.by_name("wide").id
    request = metadata_pb2.MetadataRequest(topics=["narrow"], topic_ids=[topic_id])
    return metadata.handle(broker, authorizer_of(broker), request)


def all_described(broker: BrokerParts) -> Coroutine[Any, Any, Any]:
    return metadata.describe(broker, authorizer_of(broker), topics_pb2.DescribeTopicsRequest())


@pytest.fixture(scope="module")
def manager() -> LogManager:
    manager, _ = open_manager(MemoryFiles())
    manager.create_topic("wide", PARTITIONS, {})
    manager.create_topic("narrow", 1, {})
    return manager


def broker_of(manager: LogManager) -> BrokerParts:
    return cast(
        "BrokerParts",
        SimpleNamespace(
            topics=manager.topics,
            cluster_id="c",
            node_id=0,
            node_epoch=1,
            partitions=manager.partitions,
            config=BrokerConfig(),
            port=1,
            turns=Turns(),
            cluster=alone(manager),
        ),
    )


def alone(manager: LogManager) -> Alone:
    """The cluster as handlers see it on a standalone node."""
    node = Node(0, 0, Registration("localhost", 1, "d"))
    return Alone(lambda: node, manager.partitions, manager.changes, Admin(), lambda _: None)


async def answered(work: Coroutine[Any, Any, Any], other: Callable[[], None]) -> Any:
    """Returns the result of `work`; calls `other` in each turn of the loop until then."""
    task = asyncio.ensure_future(work)
    while not task.done():
        other()
        await one_turn()
    return task.result()


@pytest.mark.parametrize("handle", [all_metadata, metadata_of_two, all_described])
async def test_others_have_their_turn_while_many_partitions_are_described(manager: LogManager, handle: Handle) -> None:
    turns: list[None] = []
    answer = await answered(handle(broker_of(manager)), lambda: turns.append(None))
    assert len(turns) > OTHERS
    found = {topic.name: [partition.partition for partition in topic.partitions] for topic in answer.topics}
    assert found == {"wide": list(range(PARTITIONS)), "narrow": [0]}
    assert not any(topic.HasField("error") for topic in answer.topics)


@pytest.mark.parametrize("handle", [all_metadata, all_described])
async def test_topic_that_is_deleted_before_its_turn_is_none_of_all(handle: Handle) -> None:
    manager, _ = open_manager(MemoryFiles())
    manager.create_topic("a", 500, {})
    manager.create_topic("b", 1, {})
    manager.create_topic("c", 1, {})

    def delete() -> None:
        turns.append(None)
        if len(turns) == 2:
            manager.delete_topic("b")

    turns: list[None] = []
    answer = await answered(handle(broker_of(manager)), delete)
    assert [topic.name for topic in answer.topics] == ["a", "c"]


async def test_others_have_their_turn_while_many_offsets_of_a_group_are_checked() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        tps = await broker.topic(partitions=PARTITIONS)
        table = broker.groups.table
        await broker.transactions.log.make()
        offsets = [offsets_pb2.PartitionGroupOffset(topic_id=tp.topic_id, partition=tp.partition) for tp in tps]
        request = offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=offsets)
        commit = asyncio.create_task(groups.commit_group_offsets(broker.broker, authorizer_of(broker.broker), request))
        turns = 0
        while "g" not in table.groups:
            await one_turn()
            turns += 1
        assert turns > OTHERS
        assert table.groups["g"].count == PARTITIONS, "all in one step"
        assert len((await commit).results) == PARTITIONS


def test_a_few_pieces_wait_for_nobody() -> None:
    pauses = Pauses()
    work = pauses.after(3)
    with pytest.raises(StopIteration):
        work.send(None)
