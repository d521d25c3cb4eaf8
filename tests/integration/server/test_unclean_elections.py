"""Unclean elections: which replica an operator's command makes the leader, and when it changes nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message import Message

from brokerd.cluster.changes import Transaction
from brokerd.cluster.election import replica_of
from brokerd.cluster.keys import InSyncReplica, PartitionEntry, encode
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG
from brokerd.errors import InvalidRequestError, NotReadyError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.internode.v1.internode_pb2 import CopyEndResponse
from brokerd.server.cluster import topics
from brokerd.server.handlers import topics as topic_handlers
from brokerd.server.security.audit import Audit
from brokerd.server.security.topic_authorizer import ANYBODY, TopicAuthorizer
from brokerd.storage.damage import DamagedRange
from brokerd.wire.v1.topics_pb2 import CopyEnd, ElectUncleanLeaderRequest
from tests.support.build import append
from tests.support.clock import ManualClock
from tests.support.cluster_directories import Directories, becomes, following
from tests.support.cluster_nodes import KEYS, until
from tests.support.logged import messages_of

LOST = InSyncReplica(3, "a disk that is gone")
pytestmark = pytest.mark.usefixtures("quick_retries")


def entry_at(directories: Directories, node_id: int, tp: TopicIdPartition) -> PartitionEntry:
    """A partition's entry, as a node knows it."""
    at = directories.nodes.running[node_id][1].image.partition(tp)
    assert at is not None
    return at.entry


async def rewrite(
    directories: Directories, tp: TopicIdPartition, change: Callable[[PartitionEntry], PartitionEntry], *, has_leader: bool = False
) -> None:
    """Writes a partition's entry; returns once every node knows it and the election that follows."""
    await directories.topics[1]._change_partitions([tp], lambda _tp, entry: change(entry))
    for _, node, _ in directories.nodes.running.values():
        await until(node, lambda image: ((at := image.partition(tp)) and at.entry.leader == NO_LEADER) != has_leader)


async def lost(directories: Directories, name: str = "orders") -> TopicIdPartition:
    """A partition on three nodes with no replica in sync: that one was on a lost disk of node 3. Of the coordinator's log, node 3
    has no other replica."""
    if name == "orders":
        tp = TopicIdPartition((await directories.topics[1].create("orders", 1, {}, 3)).id, 0)
        await becomes(lambda: [logs.partitions.replica(tp) is not None for logs in directories.logs.values()], [True] * 3)
    else:
        await directories.topics[1].create_coordinator()
        tp = COORDINATOR_LOG
    nodes = directories.nodes.running[1][1].image.nodes
    copies = tuple(replica_of(nodes[node_id]) for node_id in (1, 2, 3))
    await rewrite(directories, tp, lambda entry: entry._replace(replicas=(1, 2, 3), isr=(LOST,), out_of_sync=copies))
    await becomes(lambda: [directories.logs[node_id].partitions.replica(tp) is not None for node_id in (1, 2)], [True, True])
    await becomes(lambda: [logs.topics.any_by_id(tp.topic_id) is not None for logs in directories.logs.values()], [True] * 3)
    return tp


def answer(
    directories: Directories, monkeypatch: pytest.MonkeyPatch, found: Mapping[int, CopyEndResponse | Awaitable[CopyEndResponse]]
) -> None:
    """Makes these nodes respond thus about their replicas; the others do not respond."""

    async def call(node_id: int, _request: Message, _response_type: object) -> CopyEndResponse:
        told = found.get(node_id)
        if told is None:
            raise NotReadyError(f"node {node_id} has ended without an answer")
        return told if isinstance(told, CopyEndResponse) else await told

    monkeypatch.setattr(directories.topics[1], "_call", call)


def has(epoch: int, end: int, *, has_stopped: bool = False) -> CopyEndResponse:
    return CopyEndResponse(leader_epoch=epoch, log_end_offset=end, has_stopped=has_stopped)


@pytest.mark.parametrize("name", ["orders", COORDINATOR.name])
async def test_the_copy_that_has_most_leads(name: str) -> None:
    async with following(1, 2, 3) as directories:
        tp = await lost(directories, name)
        logs = {node_id: one.partitions.replica(tp) for node_id, one in directories.logs.items()}
        log = logs[2]
        assert log is not None
        epoch = entry_at(directories, 1, tp).leader_epoch
        log.lead(epoch)  # while it led, earlier
        append(log, b"of node 2")
        log.resign()
        before = entry_at(directories, 1, tp)
        for dry_run in (True, False):
            copies = await directories.topics[1].elect_unclean(name, 0, validate_only=dry_run)
            assert copies[0] == CopyEnd(node_id=2, leader_epoch=epoch, log_end_offset=1)
            others = [1, 3] if name == "orders" else [1]
            assert copies[1:] == [CopyEnd(node_id=node_id, leader_epoch=-1, log_end_offset=0) for node_id in others]
            if dry_run:
                assert entry_at(directories, 1, tp) == before
        elected = entry_at(directories, 1, tp)
        assert elected.leader == 2
        assert [copy.node_id for copy in elected.isr] == [2]
        assert elected.superseded == (LOST,)
        await becomes(lambda: [one is not None and one.is_leader for one in logs.values()], [False, True, False])
        await until(directories.nodes.running[3][1], lambda image: image.partition(tp).entry == elected)  # type: ignore[union-attr]
        with pytest.raises(InvalidRequestError, match=f"a copy of {name}-0 that is in sync is alive, and node 2 leads"):
            await directories.topics[3].elect_unclean(name, 0)


@pytest.mark.parametrize(
    ("found", "order"),
    [
        ({1: has(5, 90), 2: has(6, 80), 3: has(4, 100)}, [2, 1, 3]),
        ({1: has(5, 80), 2: has(5, 90), 3: has(5, 70)}, [2, 1, 3]),
        ({1: has(5, 80), 2: has(5, 90, has_stopped=True), 3: has(4, 10)}, [1, 3, 2]),
        ({1: has(-1, 0), 2: has(5, 90, has_stopped=True)}, [2, 1]),
        ({3: has(1, 1)}, [3]),
    ],
    ids=["the newest epoch", "the longest of an epoch", "a damaged one last", "but before an empty one", "of those that answer"],
)
async def test_the_newest_copy_leads(found: dict[int, CopyEndResponse], order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1, 2, 3) as directories:
        tp = await lost(directories)
        answer(directories, monkeypatch, found)
        copies = await directories.topics[1].elect_unclean("orders", 0)
        assert [copy.node_id for copy in copies] == order
        assert entry_at(directories, 1, tp).leader == order[0]


async def test_a_damaged_copy_says_so() -> None:
    async with following(1, 2, 3) as directories:
        tp = await lost(directories)
        log = directories.logs[2].partitions.replica(tp)
        assert log is not None
        log.lead(entry_at(directories, 1, tp).leader_epoch)
        append(log, b"of node 2")
        log.resign()
        log.core.damage_found(DamagedRange(0, 1, "payload_crc does not match"))
        copies = await directories.topics[1].elect_unclean("orders", 0, validate_only=True)
        assert [(copy.node_id, copy.has_stopped) for copy in copies] == [(2, True), (1, False), (3, False)]


async def test_a_node_that_hangs_is_left_out_and_without_any_copy_nothing_is_elected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(1, 2, 3) as directories:
        tp = await lost(directories)
        monkeypatch.setattr(topics, "_ANSWERS_S", 0.05)
        answer(directories, monkeypatch, {1: asyncio.Future(), 2: has(3, 4)})
        assert [copy.node_id for copy in await directories.topics[1].elect_unclean("orders", 0)] == [2]
        await rewrite(directories, tp, lambda entry: entry._replace(isr=(LOST,), leader=NO_LEADER))
        answer(directories, monkeypatch, {1: asyncio.Future()})
        with pytest.raises(InvalidRequestError, match="no node that is alive has a copy of orders-0"):
            await directories.topics[1].elect_unclean("orders", 0)
        assert entry_at(directories, 1, tp).leader == NO_LEADER
    left_out = [line for line in messages_of(caplog, "brokerd.server.cluster.topics") if "an unclean election" in line]
    assert "an unclean election of orders-0 leaves out node 1: it does not answer" in left_out
    assert "an unclean election of orders-0 leaves out node 3: node 3 has ended without an answer" in left_out


async def test_what_changes_meanwhile_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1, 2, 3) as directories:
        tp = await lost(directories)
        one = directories.nodes.running[1][1]

        async def changes(change: Awaitable[None], told: CopyEndResponse) -> CopyEndResponse:
            await change
            return told

        async def restarts() -> None:
            await directories.kill(2)
            await directories.start(2)

        for change in (rewrite(directories, tp, lambda entry: entry._replace(leader_epoch=entry.leader_epoch + 1)), restarts()):
            before = entry_at(directories, 1, tp)
            answer(directories, monkeypatch, {1: has(1, 1), 2: changes(change, has(2, 2))})
            with pytest.raises(NotReadyError, match="orders-0 has changed meanwhile: try again") as raised:
                await directories.topics[1].elect_unclean("orders", 0)
            assert raised.value.retriable
            assert entry_at(directories, 1, tp).isr == before.isr
        own = replica_of(one.image.nodes[1])
        in_sync = rewrite(directories, tp, lambda entry: entry._replace(isr=(own,)), has_leader=True)
        answer(directories, monkeypatch, {2: changes(in_sync, has(2, 2))})
        with pytest.raises(InvalidRequestError, match="that is in sync is alive, and node 1 leads"):
            await directories.topics[1].elect_unclean("orders", 0)


async def test_one_that_is_elected_and_dies_is_waited_for_or_another_one_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1, 2, 3) as directories:
        tp = await lost(directories)
        answer(directories, monkeypatch, {1: has(1, 1), 2: has(2, 2)})
        await directories.topics[1].elect_unclean("orders", 0)
        node = directories.nodes.running[1][1]
        await directories.kill(2)
        await until(node, lambda image: image.partition(tp).entry.leader == NO_LEADER)  # type: ignore[union-attr]
        await directories.start(2)
        await until(node, lambda image: image.partition(tp).entry.leader == 2)  # type: ignore[union-attr]
        assert entry_at(directories, 1, tp).superseded == (LOST,)
        await directories.kill(2)
        await until(node, lambda image: image.partition(tp).entry.leader == NO_LEADER)  # type: ignore[union-attr]
        assert [copy.node_id for copy in await directories.topics[1].elect_unclean("orders", 0)] == [1]
        assert [copy.node_id for copy in entry_at(directories, 1, tp).superseded] == [3, 2]


async def test_a_copy_leads_whose_directory_has_seen_a_higher_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1, 2, 3) as directories:
        tp = await lost(directories)
        log = directories.logs[2].partitions.replica(tp)
        assert log is not None
        log.follow(40)  # before the store was restored from a backup
        answer(directories, monkeypatch, {2: has(30, 2)})
        await directories.topics[1].elect_unclean("orders", 0)
        await becomes(lambda: (log.is_leader, log.leader_epoch), (True, 41))
        assert entry_at(directories, 2, tp).leader_epoch == 41


async def test_an_election_has_its_line_in_the_audit_trail(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    async with following(1, 2, 3) as directories:
        await lost(directories)
        known = directories.logs[1].topics
        broker: Any = SimpleNamespace(cluster=SimpleNamespace(topics=directories.topics[1]), audit=Audit(ManualClock()))

        async def ask(*, validate_only: bool = False) -> Any:
            request = ElectUncleanLeaderRequest(name="orders", validate_only=validate_only)
            return await topic_handlers.elect_unclean(broker, TopicAuthorizer(ANYBODY, known), request)

        assert len((await ask(validate_only=True)).copies) == 3
        assert len((await ask()).copies) == 3
        assert "that is in sync is alive" in (await ask()).error.message
    (line,) = messages_of(caplog, "brokerd.audit")
    assert "let a copy that is not in sync lead partition 'orders-0': node 1 (" in line


async def test_a_copy_in_sync_that_is_back_by_the_stores_word_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node is registered again, which this node has not heard of yet."""

    async with following(1, 2, 3) as directories:
        await lost(directories)
        client, node, _ = directories.nodes.running[1]
        own, back, made = (
            directories.topics[1],
            encode(node.image.nodes[3].registration._replace(directory_id=LOST.directory_id)),
            [],
        )
        answer(directories, monkeypatch, {1: has(1, 1), 2: has(2, 2)})
        change = own._run

        async def run(transactions: Sequence[Transaction]) -> int | None:
            await client.transact({}, {KEYS.node(3): back})
            made.append(await change(transactions))
            return made[-1]

        monkeypatch.setattr(own, "_run", run)
        with pytest.raises((InvalidRequestError, NotReadyError)):
            await own.elect_unclean("orders", 0)
        assert set(made) == {None}
