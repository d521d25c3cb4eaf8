"""Groups of a cluster: commits that wait while others are recorded, and topics deleted while the coordinator is loaded."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.server.handlers import groups, transactions
from brokerd.server.security.topic_authorizer import ANYBODY, TopicAuthorizer
from brokerd.wire.v1 import offsets_pb2, transaction_pb2
from tests.support.clock import ManualClock
from tests.support.inner_broker import end_request
from tests.support.inner_cluster import NAME, begin, cluster
from tests.support.loop import all_wait
from tests.support.transaction_bench import Execution


def offsets_request(offsets: dict[TopicIdPartition, int]) -> offsets_pb2.CommitGroupOffsetsRequest:
    """A commit of group "g"."""
    entries = [offsets_pb2.PartitionGroupOffset(**tp._asdict(), offset=offset, leader_epoch=-1) for tp, offset in offsets.items()]
    return offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=entries)


def wait_at(monkeypatch: pytest.MonkeyPatch, offset: int) -> asyncio.Event:
    """Lets commits of this offset wait, as for a store that answers late, until the returned event is set."""
    answered = asyncio.Event()

    async def knows_end(_broker: object, entry: groups.Entry) -> bool:
        if entry.offset == offset:
            await answered.wait()
        return True

    monkeypatch.setattr(groups, "knows_end", knows_end)
    return answered


async def test_offsets_of_a_topic_deleted_while_the_coordinator_is_loaded_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded, but not hosted yet, while it asks the store for producer numbers."""
    async with cluster(ManualClock()) as running:
        broker = running.nodes[0].broker
        await groups.commit_group_offsets(broker, TopicAuthorizer(ANYBODY, broker.topics), offsets_request({running.tps[1]: 5}))
        numbers = broker.cluster.producer_numbers

        async def deleted(at_least: int) -> tuple[int, int]:
            running.topics.clear()
            await broker.admin.run(broker.topic_changes.delete("t", broker.forget_topic))
            return await numbers(at_least)

        monkeypatch.setattr(broker.cluster, "producer_numbers", deleted)
        await running.lead(0)
        assert not broker.groups.table.groups


async def test_a_commit_that_waits_does_not_overwrite_one_that_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has lost its connection meanwhile, and commits again over a new one. The first commit runs to its end."""
    async with cluster(ManualClock()) as running:
        broker, (_, tp, _, other) = running.nodes[0].broker, running.tps
        authorizer, answered = TopicAuthorizer(ANYBODY, broker.topics), wait_at(monkeypatch, 5)
        older = asyncio.create_task(groups.commit_group_offsets(broker, authorizer, offsets_request({tp: 5, other: 3})))
        await all_wait()
        newer = asyncio.create_task(groups.commit_group_offsets(broker, authorizer, offsets_request({tp: 9})))
        await all_wait()
        answered.set()
        for commit in (await older, await newer):
            assert not any(result.HasField("error") for result in commit.results)
        assert [one.offset for one in broker.groups.table.groups["g"].offsets()] == [9, 3]


async def test_a_commit_that_waits_does_not_overwrite_a_transaction_that_came_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's next transaction would begin at the older offset, and commit rows of the same input again."""
    async with cluster(ManualClock()) as running:
        broker, tp = running.nodes[0].broker, running.tps[1]
        authorizer, answered = TopicAuthorizer(ANYBODY, broker.topics), wait_at(monkeypatch, 5)
        member = await begin(running)
        older = asyncio.create_task(groups.commit_group_offsets(broker, authorizer, offsets_request({tp: 5})))
        await all_wait()
        asked = end_request(NAME, Execution(0, "e0", "r"), [(member, 4)], running.tps, rows=4)
        asked.decision, asked.group_id = transaction_pb2.TRANSACTION_DECISION_COMMIT, "g"
        asked.group_offsets.add(**tp._asdict(), offset=9, expected_offset=-1, leader_epoch=-1)
        newer = asyncio.create_task(transactions.end_transaction(broker, authorizer, asked))
        await all_wait()
        answered.set()
        assert not (await older).results[0].HasField("error")
        assert ErrorCode((await newer).error.code) is ErrorCode.PRODUCER_FENCED, "its input was not read from offset 5"
        assert [one.offset for one in broker.groups.table.groups["g"].offsets()] == [5]


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_commit_that_waits_does_not_bring_back_what_is_deleted(monkeypatch: pytest.MonkeyPatch, is_whole: bool) -> None:
    """The client is gone, and an operator lets the group's readers begin anew."""
    async with cluster(ManualClock()) as running:
        broker, tp = running.nodes[0].broker, running.tps[1]
        authorizer, answered = TopicAuthorizer(ANYBODY, broker.topics), wait_at(monkeypatch, 5)
        older = asyncio.create_task(groups.commit_group_offsets(broker, authorizer, offsets_request({tp: 5})))
        await all_wait()
        request = offsets_pb2.DeleteGroupRequest(group_id="g")
        if not is_whole:
            request.partitions.add(topic_id=tp.topic_id, partition=tp.partition)
        deletion = asyncio.create_task(groups.delete_group(broker, authorizer, request))
        await all_wait()
        answered.set()
        assert not (await older).results[0].HasField("error")
        assert not (await deletion).HasField("error")
        assert not broker.groups.table.groups


async def test_a_commit_that_waits_is_refused_by_the_next_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator may have been elsewhere meanwhile, and there the client may have committed again."""
    async with cluster(ManualClock()) as running:
        broker, tp = running.nodes[0].broker, running.tps[1]
        authorizer, answered = TopicAuthorizer(ANYBODY, broker.topics), wait_at(monkeypatch, 5)
        older = asyncio.create_task(groups.commit_group_offsets(broker, authorizer, offsets_request({tp: 5})))
        await all_wait()
        await running.lead(0)
        await groups.commit_group_offsets(broker, authorizer, offsets_request({tp: 9}))
        answered.set()
        assert ErrorCode((await older).error.code) is ErrorCode.NOT_COORDINATOR
        assert [one.offset for one in broker.groups.table.groups["g"].offsets()] == [9]
