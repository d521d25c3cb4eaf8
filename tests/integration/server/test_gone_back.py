"""A directory's reactions when etcd loses its last changes ("goes back") while the node runs. Real logs, with an etcd in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.cluster.changes import Transaction
from brokerd.cluster.election import replica_of
from brokerd.cluster.keys import PartitionEntry, encode
from brokerd.coordination.client import CoordinationClient
from brokerd.errors import CoordinationError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.replication.leader import Proposal
from brokerd.server.cluster import controller, directory, membership, topics
from brokerd.server.replication import leading
from tests.support.cluster_directories import Directories, becomes, following
from tests.support.cluster_nodes import KEYS, TOPIC_ID, create

TP = TopicIdPartition(TOPIC_ID, 0)
KEY = KEYS.partition(TP)
pytestmark = pytest.mark.usefixtures("quick_retries")


def entry_at(directories: Directories) -> PartitionEntry:
    at = directories.nodes.running[1][1].image.partition(TP)
    assert at is not None
    return at.entry


async def led_in_epoch_9(directories: Directories) -> PartitionEntry:
    """Makes node 1 lead the partition in epoch 9; node 2 has a replica. Returns the entry of before."""
    nodes = directories.nodes
    await create(nodes, nodes.running[1][1], 1, 2)
    await becomes(lambda: directories.led().get(1), [0])
    entry = entry_at(directories)
    await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=9)))
    await becomes(lambda: directories.log(1, 0).leads_in(9), True)
    return entry


async def rounds(directories: Directories, node_id: int) -> None:
    """Waits until a directory has acted on the current state."""
    here: Any = directories.topics[node_id]._directory
    node = directories.nodes.running[node_id][1]
    for _ in range(3):
        seen = here._passes
        await node.look_again()
        await here.passed(seen)


async def test_who_leads_on_outdoes_a_store_that_has_gone_back() -> None:
    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1)
        await becomes(directories.led, {1: [0]})
        entry = entry_at(directories)
        await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=9)))
        await becomes(lambda: directories.log(1, 0).leads_in(9), True)
        await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=8)))
        await becomes(lambda: entry_at(directories).leader_epoch, 10)
        await becomes(lambda: directories.log(1, 0).leads_in(10), True)


async def test_who_was_elected_again_in_the_epoch_that_it_leads_in_outdoes() -> None:
    """The store went back to before its election, and the controller repeated it. The store's in-sync set may be wrong."""

    async with following(1, 2) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1, 2)
        await becomes(lambda: directories.led().get(1), [0])
        await directories.kill(2)
        await becomes(lambda: 2 in nodes.running[1][1].image.nodes, False)
        entry = entry_at(directories)
        alone = entry._replace(leader_epoch=9, isr=entry.isr[:1], out_of_sync=entry.isr[1:])
        await nodes.etcd.put(KEY, encode(alone))
        await becomes(lambda: directories.log(1, 0).leads_in(9), True)
        for before in (8, 9):
            await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=before)))
            await rounds(directories, 1)
        await becomes(lambda: entry_at(directories).leader_epoch > 9 and entry_at(directories).isr == alone.isr, True)


async def test_who_is_elected_after_the_store_went_back_believes_no_in_sync_set(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1, 2) as directories:
        nodes = directories.nodes
        entry = await led_in_epoch_9(directories)
        await directories.kill(2)
        await directories.kill(1)
        await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=6, leader=NO_LEADER, leader_node_epoch=0)))
        real = controller.Controller._elect
        allowed = asyncio.Event()

        async def later(self: controller.Controller, image: Any) -> None:
            await allowed.wait()
            await real(self, image)

        monkeypatch.setattr(controller.Controller, "_elect", later)
        await directories.start(1)
        await rounds(directories, 1)
        assert entry_at(directories).leader == NO_LEADER
        node = nodes.running[1][1].image.nodes[1]
        await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=10, leader_node_epoch=node.epoch)))
        await becomes(lambda: directories.log(1, 0).is_leader, True)
        # Replica 2 may be stale, or have records that this one lacks.
        await becomes(lambda: entry_at(directories).isr, (replica_of(node),))
        allowed.set()


def lost_once(transact: Callable[..., Awaitable[int | None]]) -> Callable[..., Awaitable[int | None]]:
    """Loses the first response to an `outdone` entry."""
    lost = list[int | None]()

    async def wrapped(client: Any, compares: Any, puts: Any, deletes: Any = (), **named: Any) -> int | None:
        revision = await transact(client, compares, puts, deletes, **named)
        if b'"superseded":[[' in puts.get(KEY, b"") and not lost:
            lost.append(revision)
            raise CoordinationError("no answer", is_fate_unknown=True)
        return revision

    return wrapped


async def test_a_lost_answer_leaves_no_doubt_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that still believed that the store had gone back would refuse to follow the next leader, and outdo it."""

    async with following(1, 2) as directories:
        nodes = directories.nodes
        entry = await led_in_epoch_9(directories)
        await directories.kill(2)
        await directories.kill(1)
        await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=4)))
        monkeypatch.setattr(CoordinationClient, "transact", lost_once(CoordinationClient.transact))
        await directories.start(1)
        await becomes(lambda: directories.log(1, 0).is_leader, True)
        here: Any = directories.topics[1]._directory
        await becomes(lambda: here._disputed, set())


async def test_a_store_that_goes_back_while_the_node_is_not_registered_is_noticed() -> None:
    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1, 2)
        await becomes(lambda: directories.led().get(1), [0])
        node = nodes.running[1][1]
        here: Any = directories.topics[1]._directory
        entry = entry_at(directories)
        await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=9)))
        await becomes(lambda: directories.log(1, 0).leads_in(9), True)
        life, node.life = node.life, None
        await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=4)))
        await becomes(lambda: entry_at(directories).leader_epoch, 4)
        await becomes(lambda: here._disputed, {TP})
        node.life = life


async def test_nodes_that_run_on_begin_anew_with_a_store_that_has_lost_its_last_changes(caplog: pytest.LogCaptureFixture) -> None:
    """Without a restart. The lost changes include an election, and their revisions are assigned again."""

    async with following(1, 2) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1, 2)
        await becomes(lambda: directories.led().get(1), [0])
        entry, before = entry_at(directories), nodes.etcd.revision
        lives = {node_id: node.life for node_id, (_, node, _) in nodes.running.items()}
        await nodes.etcd.put(KEY, encode(entry._replace(leader_epoch=9)))
        await becomes(lambda: directories.log(1, 0).leads_in(9), True)
        await becomes(lambda: nodes.running[2][1].revision, nodes.etcd.revision)
        await nodes.etcd.stop()
        nodes.etcd.go_back(before)
        await nodes.etcd.start()

        def leads_anew() -> bool:
            entry = entry_at(directories)
            is_led = entry.leader != NO_LEADER and directories.log(entry.leader, 0).leads_in(entry.leader_epoch)
            return is_led and entry.leader_epoch > 9

        await becomes(leads_anew, True)
        for _, node, _ in nodes.running.values():
            await becomes(lambda node=node: node.is_registered and node.image.nodes.keys() == {1, 2}, True)  # type: ignore[misc]
        # At least one of them: the other may resynchronise only after the store has reached the same revision again.
        assert "begins anew, as after a restart" in caplog.text
        for node_id, (_, node, _) in nodes.running.items():
            if f"node {node_id} begins anew" in caplog.text:
                await becomes(lambda node=node, life=lives[node_id]: node.life not in (None, life), True)  # type: ignore[misc]


async def test_a_node_does_not_go_on_with_a_store_that_was_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    real = membership.Membership._take
    not_taken = 0

    async def take(self: membership.Membership, found: Any) -> bool:
        nonlocal not_taken
        is_taken = await real(self, found)
        not_taken += not is_taken
        return is_taken

    monkeypatch.setattr(membership.Membership, "_take", take)

    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1)
        await becomes(directories.led, {1: [0]})
        known = dict(nodes.running[1][1]._known)
        await nodes.etcd.stop()
        nodes.etcd.clear()
        await nodes.etcd.start()
        await becomes(lambda: not_taken > 3, True)
        assert (nodes.running[1][1]._known, directories.led()) == (known, {1: [0]})  # no other node can be named as leader
        assert not nodes.etcd.keys


async def test_what_is_different_under_the_same_revision_is_read() -> None:
    """A store that went back has reached the same revision again, with another change."""

    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1)
        await becomes(directories.led, {1: [0]})
        entry, before = entry_at(directories), nodes.etcd.revision
        await nodes.etcd.put(KEY, encode(entry._replace(out_of_sync=(entry.isr[0]._replace(node_id=7),))))
        await becomes(lambda: len(entry_at(directories).out_of_sync), 1)
        await nodes.etcd.stop()
        nodes.etcd.go_back(before)
        await nodes.etcd.put(KEY, encode(entry._replace(out_of_sync=(entry.isr[0]._replace(node_id=8),))))
        await nodes.etcd.start()
        await becomes(lambda: [replica.node_id for replica in entry_at(directories).out_of_sync], [8])


async def test_an_outage_in_which_nothing_is_lost_ends_no_life() -> None:
    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1)
        await becomes(directories.led, {1: [0]})
        client, node, _ = nodes.running[1]
        life, lease_id = node.life, node.lease_id
        await becomes(lambda: node.revision, nodes.etcd.revision)
        for _ in range(2):
            await nodes.etcd.stop()
            await nodes.etcd.start()
            assert await client.get(KEY) is not None
            await nodes.etcd.put(KEY, encode(entry_at(directories)))
            await becomes(lambda: node.revision, nodes.etcd.revision)
        assert (node.life, node.lease_id, directories.led()) == (life, lease_id, {1: [0]})


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_no_two_lead_in_one_epoch_where_the_store_has_gone_back(is_noticed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node is elected in the epoch in which this node leads, and the store reaches as many changes, before this node is
    connected again. If it does not notice that the store went back, it follows the leader that the store names."""
    if not is_noticed:
        monkeypatch.setattr(membership.Membership, "_is_contradicted", lambda _self, _item: False)

    async with following(1, 2) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1, 2)
        await becomes(lambda: directories.led().get(1), [0])
        client, node, _ = nodes.running[2]
        await becomes(lambda: node.revision, nodes.etcd.revision)
        before = nodes.etcd.revision
        await directories.kill(1)
        await becomes(lambda: directories.log(2, 0).is_leader, True)
        await becomes(lambda: node.revision, nodes.etcd.revision)
        known, life = nodes.etcd.revision, node.life
        await nodes.etcd.stop()
        nodes.etcd.go_back(before)
        endpoints, client._endpoints = client._endpoints, ["127.0.0.1:1"]
        await nodes.etcd.start()
        await directories.start(1, cut_off={2})
        await becomes(lambda: directories.log(1, 0).is_leader, True)
        assert directories.log(1, 0).leader_epoch == directories.log(2, 0).leader_epoch
        while nodes.etcd.revision <= known:
            await nodes.etcd.put("/another/x", b"x")
        client._endpoints = endpoints
        await becomes(lambda: sum(map(len, directories.led().values())), 1)
        if is_noticed:
            await becomes(lambda: node.life not in (None, life), True)
        assert (node.life != life) == is_noticed


async def test_roles_end_with_the_history_that_gave_them() -> None:
    """They end at once: records acknowledged under lost changes may be missing at the leader that etcd names."""

    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1)
        await becomes(directories.led, {1: [0]})
        nodes.running[1][1].on_gone_back()
        assert directories.led() == {1: []}


async def test_what_fails_as_a_life_ends_is_done_again() -> None:
    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 1)
        await becomes(directories.led, {1: [0]})
        node, before, ended = nodes.running[1][1], nodes.etcd.revision, list[object]()
        life, end_roles = node.life, node.on_gone_back

        def fails_once() -> object:
            ended.append(node.life)
            if len(ended) == 1:
                raise RuntimeError("a mistake")
            return end_roles()

        node.on_gone_back = fails_once
        await nodes.etcd.put("/brokerd/prod/unknown", b"x")
        await becomes(lambda: node.revision, nodes.etcd.revision)
        await nodes.etcd.stop()
        nodes.etcd.go_back(before)
        await nodes.etcd.start()
        await becomes(lambda: len(ended) > 1 and node.life not in (None, life), True)


async def test_proposals_of_before_are_not_written_where_the_store_has_gone_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first proposals wait for the connection, or fail; the others were decided before then, too."""
    monkeypatch.setattr(leading, "_PROPOSALS_MAX", 1)
    monkeypatch.setattr(leading, "_INTERVAL_S", 0.02)

    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 2)
        await becomes(directories.led, {1: [0, 1]})
        client, node, _ = nodes.running[1]
        at, tps, transact = node.image.partition(TP), [TP, TP._replace(partition=1)], client.transact
        assert at is not None

        async def gone_back(*asked: Any, **named: Any) -> int | None:
            client.believe(nodes.etcd.revision)
            return await transact(*asked, **named)

        monkeypatch.setattr(client, "transact", gone_back)
        refusals: Any = SimpleNamespace()
        of_before = {tp: Proposal(at.entry, at.mod_revision) for tp in tps}
        revision = nodes.etcd.revision
        await leading.Leading(client, node, directories.logs[1].partitions, 10_000, refusals)._write(of_before)
        assert nodes.etcd.revision == revision


async def test_what_is_made_in_pieces_ends_where_the_store_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic's change, an election and new epochs of many partitions: each piece compares revisions from before."""
    monkeypatch.setattr(controller, "_AT_ONCE", 1)
    pieces = [Transaction({}, {"/another/first": b"1"}), Transaction({}, {"/another/second": b"2"})]
    monkeypatch.setattr(directory, "change_partitions", lambda *_: pieces)

    async with following(1) as directories:
        nodes = directories.nodes
        await create(nodes, nodes.running[1][1], 2)
        await becomes(directories.led, {1: [0, 1]})
        client, node, _ = nodes.running[1]
        transact, made, task = client.transact, list[Any](), asyncio.current_task()

        async def goes_back_after(compares: Any, puts: Any, *rest: Any, **named: Any) -> int | None:
            revision = await transact(compares, puts, *rest, **named)
            if asyncio.current_task() is task:  # the node's own controller and directory also call it
                made.append(sorted(puts))
                client.believe(nodes.etcd.revision)
            return revision

        monkeypatch.setattr(client, "transact", goes_back_after)
        monkeypatch.setattr(controller.Controller, "_changed", lambda _self, _tp, entry, _image: entry)
        here: Any = directories.topics[1]._directory
        for work in (
            topics.run(client, pieces),
            controller.Controller(client, node)._elect(node.image),
            here._outdo(node.life, {}),
        ):
            made.clear()
            with pytest.raises(CoordinationError, match="has gone back since this change was decided"):
                await work
            assert len(made) == 1
