"""Nodes that register in a cluster, observe its changes and hold its elections. etcd is in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerd.clock import SystemClock
from brokerd.cluster.changes import create_topic, delete_topic
from brokerd.cluster.election import place
from brokerd.cluster.image import Node
from brokerd.cluster.keys import Keys, Registration, TopicEntry, encode
from brokerd.coordination.client import CoordinationClient, KeyValue
from brokerd.errors import CoordinationError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.server.cluster import controller, membership
from brokerd.server.cluster.membership import Membership, cluster_identity
from tests.support.clock import ManualClock
from tests.support.cluster_nodes import (
    CLUSTER_ID,
    KEYS,
    TOPIC_ID,
    a_cluster,
    cancelled,
    change,
    create,
    entries_of,
    leaders,
    until,
)
from tests.support.loop import one_turn

OTHER_ID = b"p" * 16
pytestmark = pytest.mark.usefixtures("quick_retries")


async def test_the_first_node_draws_the_id_and_an_emptied_store_draws_none() -> None:
    async with a_cluster() as nodes:
        client = nodes.client()
        identities = await asyncio.gather(*(cluster_identity(client, KEYS, "prod", is_new=True) for _ in range(5)))
        assert len(set(identities)) == 1
        assert await cluster_identity(client, KEYS, "prod", is_new=False) == identities[0]
        for keys, name in ((Keys("pord"), "pord"), (Keys("prod"), "prod")):
            if name == "prod":
                nodes.etcd.keys.clear()
            with pytest.raises(CoordinationError, match=f"etcd knows no cluster '{name}', but .* restore etcd's backup"):
                await cluster_identity(client, keys, name, is_new=False)
        assert not nodes.etcd.keys
        await client.close()


async def test_an_id_that_cannot_be_drawn_is_not_asked_for_without_end() -> None:
    async with a_cluster() as nodes:
        client = nodes.client()
        nodes.etcd.refuses = "etcdserver: mvcc: database space exceeded"
        with pytest.raises(CoordinationError, match=r"refused the request .*database space exceeded"):
            await cluster_identity(client, KEYS, "prod", is_new=True)
        await client.close()

        class Lost(CoordinationClient):
            attempts = 0

            async def transact(self, *_: Any, **__: Any) -> int | None:
                self.attempts += 1
                raise CoordinationError("the answer is lost", is_fate_unknown=True)

        lost = Lost([nodes.etcd.address], SystemClock())
        with pytest.raises(CoordinationError, match="the answer is lost"):
            await cluster_identity(lost, KEYS, "prod", is_new=True)
        assert lost.attempts == membership._ATTEMPTS
        await lost.close()


async def test_a_node_id_has_one_directory() -> None:
    async with a_cluster() as nodes:
        first = await nodes.start(1)
        assert first.life is not None
        with pytest.raises(CoordinationError, match=r"node id 1 is in use by 127\.0\.0\.1:9001, with another"):
            await nodes.start(1, "another")
        await nodes.start(10)  # its key has the other one's as a prefix
        for each in first._tasks:
            await cancelled(each)
        again = Membership(client := nodes.client(), KEYS, CLUSTER_ID, 1, Registration("127.0.0.1", 9001, "d1"))
        await again.start()  # the same directory: the earlier life is over, although its lease is not
        assert again.life is not None
        assert again.life.node_epoch > first.life.node_epoch
        await again.stop()
        await client.close()


async def test_a_registration_that_others_could_not_read() -> None:
    async with a_cluster() as nodes:
        client = nodes.client()
        with pytest.raises(CoordinationError, match=r"cannot be registered: 'host' is 'a host'.*check advertised\.host"):
            await Membership(client, KEYS, CLUSTER_ID, 1, Registration("a host", 9001, "d1")).start()
        await client.close()


async def test_a_node_that_loses_its_lease_registers_anew() -> None:
    async with a_cluster() as nodes:
        node, other = await nodes.start(1), await nodes.start(2)
        await until(other, lambda image: 1 in image.nodes)
        before = node.life
        assert before is not None
        client = nodes.running[1][0]
        await nodes.etcd.end_lease(node.lease_id)
        assert node._lease is not None
        assert not await node._lease._renew()  # due much later
        node._lease.lost.set()
        await until(other, lambda image: 1 in image.nodes and image.nodes[1].epoch > before.node_epoch)
        await until(node, lambda _: node.life is not None)
        assert node.life is not None
        assert node.life.node_epoch == other.image.nodes[1].epoch
        assert client is nodes.running[1][0]


async def test_a_node_tells_that_its_disk_refuses_appends_and_stays_the_same_life() -> None:
    async with a_cluster() as nodes:
        first, second = await nodes.start(1), await nodes.start(2)
        await until(first, lambda image: 2 in image.nodes)
        life = second.life
        for refuses in (True, True, False):
            await second.publish_refusals(refuses)
            for node in (first, second):
                await until(node, lambda image, refuses=refuses: image.nodes[2].registration.refuses == refuses)  # type: ignore[misc]
        assert second.life == life
        assert second._lease is not None
        second._registration = second._registration._replace(refuses=True)
        second._check_registered()  # as on any change of the image, while this change is under way
        assert not second._lease.lost.is_set()
        second._registration = second._registration._replace(refuses=False)
        await second.publish_auth("other")
        await until(second, lambda image: image.nodes[2].registration.auth == "other")
        revision = second.revision
        await second.publish_refusals(False)
        assert second.revision == revision, "it was known"
        assert second.life == life


async def test_an_auth_hash_that_did_not_reach_the_store_is_told_later() -> None:
    async with a_cluster() as nodes:
        node = await nodes.start(1)
        nodes.etcd.refuses = "etcdserver: mvcc: database space exceeded"
        await node.publish_auth("other")
        nodes.etcd.refuses = ""
        assert node.image.nodes[1].registration.auth == ""
        await node.publish_refusals(False)  # as on each periodic check
        await until(node, lambda image: image.nodes[1].registration.auth == "other")
        known = await nodes.running[1][0].get(KEYS.node(1))
        await node.publish_refusals(False)
        assert await nodes.running[1][0].get(KEYS.node(1)) == known, "it was told already"


async def test_a_registration_that_somebody_has_replaced_is_not_written_over() -> None:
    """This life has ended, and the next registration decides what follows."""

    async with a_cluster() as nodes:
        node = await nodes.start(1)
        assert node._lease is not None
        node._tasks.pop(0).cancel()  # it would register the node again
        other = encode(Registration("elsewhere", 1, "d9"))
        await nodes.etcd.put(KEYS.node(1), other)
        await until(node, lambda image: image.nodes[1].registration.host == "elsewhere")
        await node.publish_refusals(False)
        await node.publish_auth("other")
        found = await nodes.running[1][0].get(KEYS.node(1))
        assert found is not None
        assert found.value == other


async def test_a_registration_that_somebody_deletes_or_replaces_is_written_anew() -> None:
    async with a_cluster() as nodes:
        node, other = await nodes.start(1), await nodes.start(2)
        own, others = Registration("127.0.0.1", 9001, "d1"), other.life
        for value in (None, encode(Registration("192.0.2.1", 1, "d1"))):
            before, lease_id = node.life, node.lease_id
            assert before is not None
            await nodes.etcd.put(KEYS.node(1), value)
            await until(node, lambda _: node.life not in (before, None))  # noqa: B023
            assert node.life is not None
            registered = Node(1, node.life.node_epoch, own, node.life.node_epoch)
            await until(other, lambda image: image.nodes.get(1) == registered)  # noqa: B023
            assert node.life.node_epoch > before.node_epoch
            assert lease_id not in nodes.etcd.leases  # and so are the keys under it, such as the controller's
        assert other.life == others


async def test_the_feature_level_rises_once_every_node_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "FEATURE_LEVEL", 9)

    async with a_cluster() as nodes:
        node = await nodes.start(1)
        other = await nodes.start(2)
        await until(node, lambda image: len(image.nodes) == 2)
        await create(nodes, node, 2)
        await nodes.stop(1)
        await until(other, lambda image: image.controller == 2 and leaders(image) == [NO_LEADER, 2])
        node = await nodes.start(1, feature_level=3)
        await until(node, lambda image: leaders(image) == [1, 2])
        await nodes.stop(2)  # it owns a partition, and may come back with the old version
        await until(node, lambda image: image.controller == 1 and leaders(image) == [1, NO_LEADER])
        await nodes.start(2, feature_level=2)
        await until(node, lambda image: image.feature_level > 1)
        assert node.image.feature_level == 2


async def test_a_version_that_does_not_know_the_feature_level_is_no_member() -> None:
    async with a_cluster() as nodes:
        node, level = await nodes.start(1), KEYS.feature_level
        newer = Registration("127.0.0.1", 9007, "d7", feature_level=2)
        await nodes.etcd.put(KEYS.node(7), encode(newer))
        await nodes.etcd.put(level, b"2")  # while node 1 was joining
        await until(node, lambda image: node.life is None and 1 not in image.nodes)
        with pytest.raises(CoordinationError, match=r"level is 2, and .* knows none above 1: start the version"):
            await nodes.start(2)
        await nodes.etcd.put(level, b"1")
        await until(node, lambda image: node.life is not None and 1 in image.nodes)


async def test_a_feature_level_that_is_mistyped_ends_no_node() -> None:
    async with a_cluster() as nodes:
        node, level = await nodes.start(1), KEYS.feature_level
        await nodes.etcd.put(level, b"7")
        await until(node, lambda image: image.feature_level == 7)
        assert node.is_registered, "no node knows it"
        with pytest.raises(CoordinationError, match=f"if none knows it, etcd's key {level} is wrong"):
            await nodes.start(2)
        await nodes.etcd.put(level, b"1\n")
        await until(node, lambda image: image.feature_level == 1 and level not in image.problems)  # the controller rewrites it
        await nodes.stop(1)
        await nodes.etcd.put(level, b"1\n")
        with pytest.raises(CoordinationError, match=rf"{level} cannot be read: '1\\n' .* the controller logged last"):
            await nodes.start(2)


async def test_a_node_that_has_stopped_is_nobody() -> None:
    async with a_cluster() as nodes:
        node = await nodes.start(1)
        generation = node.generation
        await nodes.stop(1)
        assert (node.life, node.lease_id) == (None, 0)
        assert node.generation > generation


async def test_an_image_after_an_outage_is_that_of_the_store() -> None:
    async with a_cluster() as nodes:
        node, etcd = await nodes.start(1), nodes.etcd
        await create(nodes, node, 3)
        before = entries_of(node.image)
        await etcd.stop()
        assert entries_of(node.image) == before
        await etcd.put(KEYS.partition(TopicIdPartition(TOPIC_ID, 3)), encode(before[0]))
        await etcd.put(KEYS.topic(TOPIC_ID), encode(TopicEntry("orders", 4, {})))
        await etcd.put(KEYS.partition(TopicIdPartition(TOPIC_ID, 1)), None)
        await etcd.compact(etcd.revision)
        await etcd.start()
        await until(node, lambda image: [tp.partition for tp, _ in sorted(image.partitions())] == [0, 2, 3])


async def test_partitions_wait_for_their_node_and_are_led_again() -> None:
    async with a_cluster() as nodes:
        node = await nodes.start(1)
        for node_id in (2, 3):
            await nodes.start(node_id)
        await until(node, lambda image: len(image.nodes) == 3)
        await create(nodes, node, 6)
        assert leaders(node.image) == [1, 2, 3] * 2
        await nodes.kill(2)
        await until(node, lambda image: leaders(image) == [1, NO_LEADER, 3] * 2)
        await nodes.start(2, "d2")
        await until(node, lambda image: leaders(image) == [1, 2, 3] * 2)
        assert [entry.leader_epoch for entry in entries_of(node.image)] == [1, 3, 1] * 2


async def test_a_copy_takes_over_and_an_emptied_disk_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "_LOOKED_AT", 40)

    async with a_cluster() as nodes:
        node = await nodes.start(3)
        await nodes.start(1)
        await nodes.start(2)
        await until(node, lambda image: len(image.nodes) == 3)
        await create(nodes, node, 90, replication_factor=2)  # more elections than one transaction holds
        led_by_two = [number for number, leader in enumerate(leaders(node.image)) if leader == 2]
        await nodes.kill(2)
        await until(node, lambda image: 2 not in leaders(image))
        assert NO_LEADER not in leaders(node.image)
        await nodes.kill(1)
        await until(node, lambda image: NO_LEADER in leaders(image))
        await nodes.start(2, "emptied")
        await nodes.start(1, "d1")
        await until(node, lambda image: NO_LEADER not in leaders(image) and 2 in image.nodes)
        assert 2 not in [leaders(node.image)[number] for number in led_by_two]


@pytest.mark.parametrize("value", [b"?", b"\xff", b"77", b"-1"])
async def test_a_controller_that_no_node_is_is_replaced(value: bytes) -> None:
    async with a_cluster() as nodes:
        await nodes.etcd.put(KEYS.controller, value)
        node = await nodes.start(1)
        await until(node, lambda image: image.controller == 1)
        await create(nodes, node, 1)
        await nodes.etcd.put(KEYS.controller, value)  # without a lease, so it stays
        await until(node, lambda image: image.controller == 1)
        await nodes.start(2)
        await nodes.etcd.put(KEYS.controller, value)
        await nodes.kill(1)
        other = nodes.running[2][1]
        await until(other, lambda image: image.controller == 2 and leaders(image) == [NO_LEADER])


async def test_partitions_without_a_topic_are_swept_once_nobody_can_be_creating_it() -> None:
    async with a_cluster() as nodes:
        node = await nodes.start(1)
        await until(node, lambda image: image.controller == 1)
        client, _, task = nodes.running[1]
        await cancelled(task)
        clock = client.clock = ManualClock()
        own, entries = controller.Controller(client, node), place(node.image, 300, 1)
        await create(nodes, node, 1)
        *made, last = create_topic(node.image, OTHER_ID, TopicEntry("clicks", 300, {}), entries)
        sizes = []
        for some, waits_ms in ((made[:2], 59_999), (made[2:], 1), ([], 59_998), ([], 1)):
            await change(nodes, some)
            await until(node, lambda _: node.revision == nodes.etcd.revision)
            await own._act()
            sizes.append(len(node.image.partitions_of(OTHER_ID)))
            clock.advance(waits_ms)
        assert sizes == [256, 300, 300, 300]
        await own._act()
        await until(node, lambda image: not image.partitions_of(OTHER_ID))
        assert await client.transact(*last.after({KEYS.partition(TopicIdPartition(OTHER_ID, 0)): nodes.etcd.revision})) is None
        assert len(node.image.partitions_of(TOPIC_ID)) == 1


async def test_a_controller_acts_without_a_change_once_orphans_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_cluster() as nodes:
        node = await nodes.start(1)
        await create(nodes, node, 200)
        monkeypatch.setattr(controller, "_ORPHANED_MS", 50)
        await change(nodes, [delete_topic(node.image, TOPIC_ID)])
        await until(node, lambda image: not image.topics() and not image.partitions_of(TOPIC_ID))
        assert list(node.image.tombstones) == [TOPIC_ID]


async def test_another_controller_goes_on_when_one_ends() -> None:
    async with a_cluster() as nodes:
        first = await nodes.start(1)
        await until(first, lambda image: image.controller == 1)
        node = await nodes.start(2)
        await nodes.start(3)
        await until(node, lambda image: len(image.nodes) == 3)
        await create(nodes, node, 3)
        await nodes.stop(1)
        await until(node, lambda image: image.controller in (2, 3) and leaders(image) == [NO_LEADER, 2, 3])
        ended = node.image.controller
        left = nodes.running[5 - ended][1]
        await nodes.kill(ended)
        await until(left, lambda image: image.controller == left.node_id and leaders(image).count(NO_LEADER) == 2)


async def test_elections_wait_for_an_etcd_that_is_down() -> None:
    async with a_cluster() as nodes:
        node = await nodes.start(1)
        await until(node, lambda image: image.controller == 1)
        await nodes.start(2)
        await until(node, lambda image: len(image.nodes) == 2)
        await create(nodes, node, 2)
        _, other, task = nodes.running.pop(2)
        await cancelled(task)
        for each in other._tasks:
            await cancelled(each)
        assert other._lease is not None
        await other._lease._stop()
        await nodes.etcd.stop()
        await nodes.etcd.end_lease(other._lease.id)
        assert leaders(node.image) == [1, 2]
        await nodes.etcd.start()
        await until(node, lambda image: leaders(image) == [1, NO_LEADER])


async def test_an_image_goes_on_after_a_failure_that_nobody_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_cluster() as nodes:
        node = await nodes.start(1)
        put = node._put

        def fails_once(item: KeyValue) -> None:
            monkeypatch.setattr(node, "_put", put)
            raise RuntimeError("unexpected")

        monkeypatch.setattr(node, "_put", fails_once)
        await nodes.start(2)
        await until(node, lambda image: 2 in image.nodes)


async def test_a_store_that_is_not_this_clusters_takes_no_registration(caplog: pytest.LogCaptureFixture) -> None:
    async with a_cluster() as nodes:
        node = await nodes.start(1)
        client = nodes.client()
        (known,) = [item for item in (await client.read(KEYS.prefix)).items if item.key == KEYS.cluster_id]
        await client.transact({}, {KEYS.cluster_id: b"another"}, [KEYS.node(1)])  # it was emptied, and a new node has drawn an id
        while "does not hold this cluster any more" not in caplog.text:
            await one_turn()
        assert not [item for item in (await client.read(KEYS.prefix)).items if item.key == KEYS.node(1)]
        assert sorted(node.image.nodes) == [1], "the image stays as it is"
        await client.transact({}, {KEYS.cluster_id: known.value})
        while node.life is None:
            await one_turn()
        await client.close()
