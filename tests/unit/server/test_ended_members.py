"""Ended members on several nodes: which of their records are void, and which get their markers again."""

from __future__ import annotations

import pytest

from brokerd.errors import NotCoordinatorError
from brokerd.server.coordinator.log import CoordinatorLog
from tests.support.clock import ManualClock
from tests.support.inner_broker import PRINCIPAL, end_request
from tests.support.inner_cluster import NAME, InnerCluster, begin, cluster, commit, epoch, shown
from tests.support.transaction_bench import Execution


@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_data_that_no_commit_has_counted_is_void(is_restarted: bool, is_early: bool) -> None:
    """The freeze does not reach a leader that has verified the member; the commit names none of its partitions."""
    async with cluster(ManualClock()) as running:
        member = await running.nodes[0].init(NAME, Execution(0, "e0", "r"), bytes(16))
        tp, other = running.tps[0], running.tps[1]
        await running.nodes[0].produce(member, tp, b"row", 0)
        await running.nodes[1].broker.members.verify([member.producer_id])
        if is_early:
            await running.nodes[1].produce(member, other, b"early", 0)
        running.loses = lambda _node_id, name: name == "FreezeMembers"
        asked = end_request(NAME, Execution(0, "e0", "r"), [(member, 1)], [tp], rows=1)
        await running.nodes[0].broker.transactions.commit(PRINCIPAL, asked)
        if not is_early:
            await running.nodes[1].produce(member, other, b"late", 0)
        running.loses = lambda _node_id, _name: False
        if is_restarted:
            await running.stop(0)
            await running.start(0)
            assert await running.nodes[0].broker.members.settle()
        await running.nodes[0].broker.transactions.sweep()
        assert not running.nodes[1].broker.members.producer_ids
        assert running.nodes[1].visible(other) == []
        assert running.nodes[0].visible(tp) == [b"row"]


async def aborted(running: InnerCluster) -> None:
    """Aborts version 0 without its markers, which the sweep then writes. For that, the coordinator reads its log."""
    await begin(running)
    running.loses = lambda _node_id, name: name == "WriteMarkers"
    await running.nodes[0].broker.transactions.abort_all(NAME, "")
    running.loses = lambda _node_id, _name: False
    await running.nodes[0].broker.transactions.sweep()


async def settled(running: InnerCluster) -> None:
    """Waits until the sweeps' writes are durable, and each leader knows its partitions' holds."""
    await running.swept()
    for node in running.nodes.values():
        assert await node.broker.members.settle()


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("is_loaded_anew", [False, True])
@pytest.mark.parametrize("has_aborted", [False, True])
async def test_a_copy_without_the_markers_of_a_complete_commit_gets_them_again(
    has_aborted: bool, is_loaded_anew: bool, is_compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a node is restored from an older disk, or an unclean election picks a copy without the markers."""
    monkeypatch.setattr(CoordinatorLog, "has_grown", lambda _log: True)
    async with cluster(ManualClock()) as running:
        running_transactions = running.nodes[0].broker.transactions
        if has_aborted:  # the coordinator has read its log once before
            await aborted(running)
        member = await begin(running, version=1)
        disk = running.disk_of(1)
        await commit(running, member, version=1)
        if is_compacted:
            await running_transactions.compact()
        await running.restore(1, disk)
        if is_loaded_anew:
            await running.lead(0)
        await running.nodes[0].broker.transactions.sweep()
        await settled(running)
        assert shown(running) == [1, 1, 1, 1]


@pytest.mark.parametrize("is_loaded_anew", [False, True])
async def test_a_copy_without_the_markers_of_an_earlier_commit_gets_them_again(is_loaded_anew: bool) -> None:
    """The coordinator's log still has the earlier commit."""
    async with cluster(ManualClock()) as running:
        await aborted(running)
        member = await begin(running, version=1)
        disk = running.disk_of(1)
        await commit(running, member, version=1)
        await commit(running, await begin(running, version=2), version=2)
        await running.restore(1, disk)
        if is_loaded_anew:
            await running.lead(0)
        await running.nodes[0].broker.transactions.sweep()
        await settled(running)
        assert shown(running) == [1 if number in running.held_by(1) else 2 for number in range(len(running.tps))]


async def test_a_leader_that_does_not_say_what_it_has_of_a_winner_is_told_of_no_abort() -> None:
    """The leader answers OpenMembers, but the OpenData call is lost."""
    async with cluster(ManualClock()) as running:
        running_transactions = running.nodes[0].broker.transactions
        member = await begin(running)
        disk = running.disk_of(1)
        await commit(running, member)
        running.loses = lambda _node_id, name: name == "OpenData"
        await running.restore(1, disk)
        await running_transactions.sweep()
        running.loses = lambda _node_id, _name: False
        await running_transactions.sweep()
        await settled(running)
        assert shown(running) == [1, 1, 1, 1]


async def test_a_coordinator_that_was_replaced_voids_nothing() -> None:
    """Its sweep takes a member for ended that its successor has opened."""
    async with cluster(ManualClock()) as running:
        former = running.nodes[0].broker.transactions
        await running.lead(0)
        member = await begin(running)
        former.leaders._epoch = lambda: epoch(running)
        assert member.producer_id not in former.coordinator.open_members
        await former.sweep()
        await commit(running, member)
        assert await running.nodes[0].broker.members.settle()
        assert shown(running) == [1, 1, 1, 1]


async def test_nothing_of_others_is_void_without_an_entry_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced coordinator that has not learned of its successor cannot append to the log."""
    async with cluster(ManualClock()) as running:
        former = running.nodes[0].broker.transactions
        await running.lead(0)
        member = await begin(running)
        former.leaders._epoch = lambda: epoch(running)
        monkeypatch.setattr("brokerd.server.coordinator.log.CoordinatorLog.is_led", True)

        def refused(_records: object) -> None:
            raise NotCoordinatorError("another one leads the log")

        monkeypatch.setattr(former.log, "append", refused)
        await former.sweep()
        await commit(running, member)
        assert await running.nodes[0].broker.members.settle()
        assert shown(running) == [1, 1, 1, 1]
