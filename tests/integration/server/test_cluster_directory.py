"""Data directories that follow their cluster: logs are created, led and removed. Real logs, with an etcd in memory."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from brokerd.cluster.changes import change_topic, create_topic, delete_topic, grow_topic
from brokerd.cluster.election import place, replica_of
from brokerd.cluster.image import ClusterImage
from brokerd.cluster.keys import PartitionEntry, TopicEntry, encode
from brokerd.datadir.replica_changes import ReplicaChanges
from brokerd.datadir.topic_store import COORDINATOR, Topic
from brokerd.errors import StorageError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.partition.core import Role
from brokerd.server.cluster import directory
from brokerd.steps import Steps
from tests.support.build import append, payloads
from tests.support.cluster_directories import becomes, following
from tests.support.cluster_nodes import KEYS, TOPIC_ID, cancelled, change, create, leaders, until

pytestmark = pytest.mark.usefixtures("quick_retries")


async def test_partitions_are_held_and_led_where_they_were_placed() -> None:
    async with following(1, 2, 3) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 6)
        await becomes(directories.led, {1: [0, 3], 2: [1, 4], 3: [2, 5]})
        assert all(logs.topics.by_name("orders").partition_count == 6 for logs in directories.logs.values())
        append(directories.log(2, 4), b"kept")
        directories.log(2, 4).flush()
        await directories.kill(2)
        await until(node, lambda image: leaders(image) == [1, NO_LEADER, 3] * 2)
        await directories.start(2)
        await becomes(directories.led, {1: [0, 3], 2: [1, 4], 3: [2, 5]})
        assert [payload[:4] for payload in payloads(directories.log(2, 4))] == [b"kept"]
        assert directories.log(2, 4).leads_in(3)
        assert directories.log(1, 0).leads_in(1)


async def test_a_node_whose_lease_was_lost_leads_on_in_a_new_epoch() -> None:
    async with following(1, 2) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 2)
        await becomes(directories.led, {1: [0], 2: [1]})
        lost = nodes.running[2][1]
        assert lost._lease is not None
        await nodes.etcd.end_lease(lost.lease_id)
        await until(node, lambda image: 2 not in image.nodes)
        append(directories.log(2, 1), b"an outage of the store ends no leadership")
        directories.log(2, 1).flush()
        lost._lease.lost.set()
        await becomes(lambda: directories.log(2, 1).leads_in(3), True)
        assert len(payloads(directories.log(2, 1))) == 1


@pytest.mark.parametrize("behind", [0, 1, 5])
async def test_a_store_that_was_restored_is_outdone(behind: int) -> None:
    async with following(1) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 2)
        partition = node.image.partition(TopicIdPartition(TOPIC_ID, 0))
        assert partition is not None
        key, entry = KEYS.partition(TopicIdPartition(TOPIC_ID, 0)), partition.entry
        await nodes.etcd.put(key, encode(entry._replace(leader_epoch=9)))
        await becomes(lambda: directories.led() == {1: [0, 1]} and directories.log(1, 0).leads_in(9), True)
        append(directories.log(1, 0), b"appended before")
        directories.log(1, 0).flush()
        await directories.kill(1)
        # An earlier state of the store. The election of the new life raises the epoch by one.
        await nodes.etcd.put(key, encode(entry._replace(leader_epoch=8 - behind)))
        await directories.start(1)
        await becomes(directories.led, {1: [0, 1]})
        assert directories.log(1, 0).leader_epoch == 10
        assert payloads(directories.log(1, 0)) == [b"appended before\0"]
        directories.log(1, 0).core.role = Role.NONE  # it has resigned, and must not lead again without an election
        for name in ("after", "last"):
            await directories.topics[1].create(name, 1, {})
        assert not directories.log(1, 0).is_leader


async def test_a_node_that_stops_follows_whoever_leads_in_its_place() -> None:
    """It is still in sync, and the next leader waits for its reports. It accepts no new topic."""

    async with following(1, 2) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 1, replication_factor=2)
        await becomes(directories.led, {1: [0], 2: []})
        directories.admins[1].begin_stop()
        await change(nodes, create_topic(node.image, bytes(16), TopicEntry("another", 1, {}), place(node.image, 1, 2)))
        tp = TopicIdPartition(TOPIC_ID, 0)
        at = node.image.partition(tp)
        assert at is not None
        second = node.image.nodes[2]
        entry = at.entry._replace(leader=2, leader_node_epoch=second.epoch, leader_epoch=2)
        await nodes.etcd.put(KEYS.partition(tp), encode(entry))
        await becomes(lambda: directories.log(1, 0).has_tenure(Role.FOLLOWER, 2), True)
        assert [topic.name for topic in directories.logs[1].topics.all()] == ["orders"]


async def test_a_role_that_is_taken_while_the_store_goes_back_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with following(1) as directories:
        node, lead, epochs_led = directories.nodes.running[1][1], ReplicaChanges.lead, list[set[int]]()

        def goes_back(self: ReplicaChanges, epochs: Mapping[TopicIdPartition, int], *in_sync: Any) -> Steps[None]:
            if not epochs_led:
                node.on_gone_back()
            epochs_led.append(set(epochs.values()))
            return lead(self, epochs, *in_sync)

        monkeypatch.setattr(ReplicaChanges, "lead", goes_back)
        await create(directories.nodes, node, 1)
        await directories.topics[1].create("after", 1, {})
        await becomes(lambda: {one.topic for one in directories.logs[1].partitions if one.is_leader}, {"orders", "after"})
        assert directories.log(1, 0).leader_epoch == 2
        assert epochs_led[0] == {1}


async def test_a_topic_grows_and_changes_everywhere() -> None:
    async with following(1, 2) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 2)
        await becomes(directories.led, {1: [0], 2: [1]})
        await change(nodes, grow_topic(node.image, TOPIC_ID, place(node.image, 3, 1)))
        await becomes(directories.led, {1: [0, 2, 4], 2: [1, 3]})
        topic = node.image.topic(TOPIC_ID)
        assert topic is not None
        await change(nodes, [change_topic(node.image, TOPIC_ID, topic._replace(configs={"max.message.bytes": "4096"}))])
        everywhere = [(1, 0), (2, 1), (1, 2), (2, 3), (1, 4)]
        await becomes(lambda: {directories.log(*each).config.max_message_bytes for each in everywhere}, {4096})


def is_without_leader(image: ClusterImage, number: int) -> bool:
    at = image.partition(TopicIdPartition(TOPIC_ID, number))
    return at is not None and at.entry.leader == NO_LEADER


async def test_a_deletion_does_not_miss_a_copy_that_a_move_has_added_meanwhile() -> None:
    """The replica would stay for ever and block the next topic of that name."""

    async with following(1, 2, 3) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 1, 2)
        await becomes(directories.led, {1: [0], 2: [], 3: []})
        old = delete_topic(node.image, TOPIC_ID)  # decided, and on its way to the store
        await directories.topics[2].reassign("orders", 0, [1, 2, 3])
        await becomes(lambda: len(directories.held()), 1)
        assert await nodes.running[1][0].transact(*old) is None, "it is decided again"
        await directories.topics[1].delete("orders")
        await becomes(directories.held, set())


async def test_a_copy_that_no_tombstone_lists_is_told_and_holds_up_no_others(caplog: pytest.LogCaptureFixture) -> None:
    """As after a restore of an older store, or for more partitions than a deletion compares."""

    async with following(1, 2) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 1)
        await becomes(directories.led, {1: [0], 2: []})
        for key in (KEYS.name("orders"), KEYS.topic(TOPIC_ID), KEYS.partition(TopicIdPartition(TOPIC_ID, 0))):
            await nodes.etcd.put(key, None)
        again = b"a" * 16
        await until(node, lambda image: image.topic(TOPIC_ID) is None)
        await change(nodes, create_topic(node.image, again, TopicEntry("orders", 1, {}), place(node.image, 1, 2)))
        await becomes(lambda: directories.unable[1], {TopicIdPartition(again, 0)})
        assert "holds another topic of this name" in caplog.text
        assert "start this node with an empty data.dir" in caplog.text


async def test_a_topic_that_is_created_anew_waits_until_the_former_one_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    """The node hears of both while it is removing another topic."""

    async with following(1, 2) as directories:
        nodes, node, other, again = directories.nodes, directories.nodes.running[1][1], b"y" * 16, b"a" * 16
        await create(nodes, node, 1)
        await change(nodes, create_topic(node.image, other, TopicEntry("other", 1, {}), place(node.image, 1, 2)))
        await becomes(lambda: directories.logs[1].topics.any_by_id(other) is not None, True)
        here: Any = directories.topics[1]._directory
        remove, entered, go_on = here._remove, asyncio.Event(), asyncio.Event()

        async def slow(topic_id: bytes) -> None:
            if topic_id == other:
                entered.set()
                await go_on.wait()
            await remove(topic_id)

        here._remove = slow
        await change(nodes, [delete_topic(node.image, other)])
        await entered.wait()
        await change(nodes, [delete_topic(node.image, TOPIC_ID)])
        await until(node, lambda image: image.topic(TOPIC_ID) is None)
        await change(nodes, create_topic(node.image, again, TopicEntry("orders", 1, {}), place(node.image, 1, 2)))
        await until(node, lambda image: image.topic(again))
        go_on.set()
        await becomes(lambda: directories.logs[1].topics.any_by_id(again) is not None, True)
        assert not directories.unable[1]
        assert "data.dir" not in caplog.text


async def test_a_deleted_topic_goes_from_every_directory_also_of_a_node_that_was_down() -> None:
    async with following(1, 2, 3) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 3)
        await becomes(directories.led, {1: [0], 2: [1], 3: [2]})
        await directories.kill(3)
        await until(node, lambda image: is_without_leader(image, 2))
        await change(nodes, [delete_topic(node.image, TOPIC_ID)])
        again = b"a" * 16
        await until(node, lambda image: image.topic(TOPIC_ID) is None)
        await change(nodes, create_topic(node.image, again, TopicEntry("orders", 2, {}), place(node.image, 2, 1)))
        await becomes(directories.held, {f"{TOPIC_ID.hex()}-2"})
        await becomes(directories.led, {1: [0], 2: [1]})
        assert list(node.image.tombstones) == [TOPIC_ID]
        await directories.start(3)
        await becomes(directories.held, set())
        await until(node, lambda image: not image.tombstones)
        await becomes(lambda: [topic.id for topic in directories.logs[3].topics.list()], [again])


async def test_an_emptied_store_removes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with following(1, 2) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 4)
        await becomes(directories.led, {1: [0, 2], 2: [1, 3]})
        for key in list(nodes.etcd.keys):
            await nodes.etcd.put(key.decode(), None)
        await becomes(lambda: "does not hold this cluster any more" in caplog.text, True)
        assert [topic.name for _, topic in node.image.topics()] == ["orders"]
        append(directories.log(1, 0), b"still here")
        await becomes(directories.led, {1: [0, 2], 2: [1, 3]})
        assert len(directories.held()) == 4


async def test_a_disk_that_refuses_holds_up_no_other_topic() -> None:
    async with following(1) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]

        def hook(_operation: str, path: str) -> None:
            if TOPIC_ID.hex() in path:
                raise OSError(errno.ENOSPC, "No space left on device")

        directories.files[1].hook = hook
        await create(nodes, node, 1)
        other = b"z" * 16
        await change(nodes, create_topic(node.image, other, TopicEntry("zebras", 1, {}), place(node.image, 1, 1)))
        await becomes(lambda: [one.topic for one in directories.logs[1].partitions if one.is_leader], ["zebras"])
        directories.files[1].hook = None
        await becomes(lambda: {one.topic for one in directories.logs[1].partitions if one.is_leader}, {"zebras", "orders"})


async def test_a_large_topic_that_is_made_does_not_hold_up_elections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is elected for some partitions leads them before it has created all the other new ones."""
    monkeypatch.setattr(directory, "_HELD_AT_ONCE", 2)
    monkeypatch.setattr(directory, "_ROLES_WAIT_MS", 0)

    async with following(1) as directories:
        nodes, logs, led_before = directories.nodes, directories.logs[1], list[int]()
        hold = logs.changes.hold

        def noted(topic: Topic, numbers: Sequence[int]) -> Steps[Topic]:
            led_before.append(sum(one.is_leader for one in logs.partitions))
            return hold(topic, numbers)

        monkeypatch.setattr(logs.changes, "hold", noted)
        await create(nodes, nodes.running[1][1], 5)
        await becomes(directories.led, {1: [0, 1, 2, 3, 4]})
        assert led_before == [0, 2, 4]


@pytest.mark.parametrize("step", ["_remove", "_hold", "_drop"])
async def test_what_is_removed_and_made_does_not_hold_up_elections(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_ROLES_WAIT_MS", 0)

    async with following(1, 2) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        here: Any = directories.topics[1]._directory
        others, led_before, one_step = [bytes([number]) * 16 for number in range(3)], list[bool](), getattr(here, step)

        async def noted(*what: object) -> None:
            led_before.append(directories.log(1, 3).is_leader)
            await one_step(*what)

        async def make_topics() -> None:
            for topic_id in others:
                await change(nodes, create_topic(node.image, topic_id, TopicEntry(topic_id.hex(), 1, {}), place(node.image, 1, 2)))

        await create(nodes, node, 4, replication_factor=2)
        if step == "_remove":
            await make_topics()
            await until(node, lambda image: image.topic(others[-1]))
        await becomes(lambda: sum(map(len, directories.led().values())), 7 if step == "_remove" else 4)
        await cancelled(directories.tasks.pop(1))  # so that all changes become due at once
        if step == "_remove":
            for topic_id in others:
                await change(nodes, [delete_topic(node.image, topic_id)])
        elif step == "_hold":
            await make_topics()
        entries, first, second = dict(node.image.partitions_of(TOPIC_ID)), node.image.nodes[1], node.image.nodes[2]
        for number in range(3) if step == "_drop" else ():
            entry = entries[number].entry
            moved = entry._replace(replicas=(2,), isr=(replica_of(second),), out_of_sync=(replica_of(first),), leader_epoch=2)
            moved = moved._replace(leader=2, leader_node_epoch=second.epoch)
            await nodes.etcd.put(KEYS.partition(TopicIdPartition(TOPIC_ID, number)), encode(moved))
        elected = entries[3].entry._replace(leader=1, leader_node_epoch=first.epoch, leader_epoch=2)
        await nodes.etcd.put(KEYS.partition(TopicIdPartition(TOPIC_ID, 3)), encode(elected))
        await until(node, lambda image: image.partitions_of(TOPIC_ID)[3].entry == elected)
        monkeypatch.setattr(here, step, noted)
        await here._agree()
        assert led_before == [False, True, True]


async def test_a_removal_is_durable_before_its_tombstone_ends() -> None:
    async with following(1) as directories:
        nodes, node, files = directories.nodes, directories.nodes.running[1][1], directories.files[1]
        await create(nodes, node, 1)
        await becomes(directories.led, {1: [0]})
        renamed: list[str] = []

        def cannot_sync_topics(operation: str, path: str) -> None:
            if operation == "rename":
                renamed.append(path)
            elif operation == "sync_dir" and renamed[-1:] == ["topics"]:
                raise OSError(errno.EIO, "Input/output error")

        files.hook = cannot_sync_topics
        await change(nodes, [delete_topic(node.image, TOPIC_ID)])
        await becomes(lambda: renamed.count("topics") >= 3, True)  # it retries
        assert directories.logs[1].topics.all() == []
        assert TOPIC_ID in node.image.tombstones
        files.hook = None
        await until(node, lambda image: not image.tombstones)
        await directories.kill(1)
        await directories.start(1)
        assert directories.logs[1].topics.all() == []
        assert directories.held() == set()


async def test_what_fails_unexpectedly_fails_alone_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(1) as directories:
        nodes, changes = directories.nodes, directories.logs[1].changes
        hold, tried = changes.hold, []

        def broken(topic: Topic, numbers: Sequence[int]) -> Steps[Topic]:
            if topic.name == "orders":
                tried.append(topic)
                raise RuntimeError("a mistake")
            return hold(topic, numbers)

        monkeypatch.setattr(changes, "hold", broken)
        await create(nodes, nodes.running[1][1], 1)
        await directories.topics[1].create("zebras", 1, {})
        await becomes(lambda: [one.topic for one in directories.logs[1].partitions if one.is_leader], ["zebras"])
        await becomes(lambda: len(tried) > 3, True)
        monkeypatch.undo()
        await becomes(lambda: {one.topic for one in directories.logs[1].partitions if one.is_leader}, {"zebras", "orders"})
        assert [record.exc_text is not None for record in caplog.records if "holding topic" in record.message] == [True]


async def test_a_directory_that_refuses_to_lead_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lead, tried = ReplicaChanges.lead, []

    def refuses(self: ReplicaChanges, epochs: Mapping[TopicIdPartition, int], *_in_sync: object) -> Steps[None]:
        tried.append(epochs)
        if len(tried) < 6:
            raise StorageError("the data directory is read-only: " + ("a test" if len(tried) < 5 else "another cause"))
        return lead(self, epochs)

    monkeypatch.setattr(ReplicaChanges, "lead", refuses)

    monkeypatch.setattr(directory, "_ROLES_WAIT_MS", 0)  # also for two tries in one pass

    async with following(1) as directories:
        await create(directories.nodes, directories.nodes.running[1][1], 1)
        await becomes(directories.led, {1: [0]})
        refusals = [record.message for record in caplog.records if "leading partitions failed" in record.message]
        assert [message.split("read-only: ")[1] for message in refusals] == ["a test): retrying", "another cause): retrying"]


async def test_a_store_that_lost_the_coordinators_topic_removes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with following(1, 2) as directories:
        nodes = directories.nodes
        await directories.topics[1].create_coordinator()
        await becomes(lambda: [len(logs.topics.all()) for logs in directories.logs.values()], [1, 1])
        await nodes.etcd.put(KEYS.name(COORDINATOR.name), None)
        await directories.topics[1].create("after", 1, {})
        await becomes(lambda: [len(logs.topics.all()) for logs in directories.logs.values()], [2, 2])
        assert "removing" not in caplog.text


async def test_a_copy_that_was_never_in_sync_goes_with_its_topic_though_its_node_was_down() -> None:
    """No entry lists the replica, and it would block a new topic of that name."""

    async with following(1, 2) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 1)
        await becomes(directories.led, {1: [0], 2: []})
        at = node.image.partition(TopicIdPartition(TOPIC_ID, 0))
        assert at is not None
        await nodes.etcd.put(KEYS.partition(TopicIdPartition(TOPIC_ID, 0)), encode(at.entry._replace(replicas=(1, 2))))
        await becomes(lambda: len(directories.logs[2].partitions), 1)
        await directories.kill(2)
        await until(node, lambda image: 2 not in image.nodes)
        await change(nodes, [delete_topic(node.image, TOPIC_ID)])
        await until(node, lambda image: image.topic(TOPIC_ID) is None)
        await directories.start(2)
        again, second = b"a" * 16, node.image.nodes[2]
        entry = PartitionEntry((2,), (replica_of(second),), 2, second.epoch, 1)
        await change(nodes, create_topic(node.image, again, TopicEntry("orders", 1, {}), [entry]))
        await becomes(lambda: [one.tp.topic_id for one in directories.logs[2].partitions if one.is_leader], [again])
        assert directories.held() == set()


async def test_who_cannot_make_its_copy_of_a_new_topic_says_so() -> None:
    """Other in-sync replicas then lead instead. Otherwise the cluster would wait for this one as long as its node is alive."""

    async with following(1) as directories:
        nodes, node = directories.nodes, directories.nodes.running[1][1]

        def hook(_operation: str, path: str) -> None:
            if TOPIC_ID.hex() in path:
                raise OSError(errno.ENOSPC, "No space left on device")

        directories.files[1].hook = hook
        await create(nodes, node, 2)
        await becomes(lambda: directories.unable[1], {TopicIdPartition(TOPIC_ID, number) for number in (0, 1)})
