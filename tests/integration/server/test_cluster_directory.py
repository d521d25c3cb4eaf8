"""Data directories that follow their cluster: what is created, led and removed, by real logs around an etcd in memory."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from brokerd.cluster.changes import change_topic, create_topic, delete_topic, grow_topic
from brokerd.cluster.keys import TopicEntry
from brokerd.cluster.placement import place
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.node_state import ClusterIdentity
from brokerd.datadir.topic_store import COORDINATOR, Topic
from brokerd.errors import Fate, InvalidPartitionsError, NotReadyError, StorageError, UnknownTopicOrPartitionError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.server.admin import Admin
from brokerd.server.cluster import controller, directory, membership
from brokerd.server.cluster.directory import ClusterDirectory
from brokerd.server.cluster.membership import for_ever
from brokerd.server.cluster.topics import ClusterTopics
from tests.support.build import append, payloads
from tests.support.clock import ManualClock
from tests.support.cluster_nodes import TOPIC_ID, Nodes, cancelled, change, create, leaders, run, until
from tests.support.files import MemoryFiles

CLUSTER = ClusterIdentity("prod", "id of prod")


@pytest.fixture(autouse=True)
def _hurries(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (membership, controller, directory):
        monkeypatch.setattr(module, "_RETRY_S", 0.02)


class Directories:
    """The directories of the nodes of a test."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.files: dict[int, MemoryFiles] = {}
        self.logs: dict[int, LogManager] = {}
        self.topics: dict[int, ClusterTopics] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def start(self, *node_ids: int) -> None:
        """Starts nodes with their directories."""
        for node_id in node_ids:
            files = self.files.setdefault(node_id, MemoryFiles())
            logs = self.logs[node_id] = LogManager(BrokerConfig(node_id=node_id), files, ManualClock(), cluster=CLUSTER)
            logs.open()
            node = await self.nodes.start(node_id, logs.directory_id)
            client = self.nodes.running[node_id][0]
            follower = ClusterDirectory(
                client, node, logs.topics, logs.partitions, logs.changes, logs.lead, Admin(), lambda _topic: None
            )
            self.topics[node_id] = ClusterTopics(client, node, follower, logs.topics, logs.changes)
            self._tasks[node_id] = asyncio.create_task(for_ever(follower.run))
        first = self.nodes.running[node_ids[0]][1]
        await until(first, lambda image: len(image.nodes) == len(self.nodes.running))

    async def kill(self, node_id: int) -> None:
        """Kills a node."""
        await cancelled(self._tasks.pop(node_id))
        await self.nodes.kill(node_id)
        self.files[node_id].kill()

    async def end(self) -> None:
        """Ends all that run."""
        for task in self._tasks.values():
            await cancelled(task)

    def led(self) -> dict[int, list[int]]:
        """The partitions that each node leads."""
        return {
            node_id: sorted(one.tp.partition for one in self.logs[node_id].partitions if one.is_leader) for node_id in self._tasks
        }

    def held(self) -> set[str]:
        """Directories of partitions, at all nodes."""
        return {name for files in self.files.values() for name in files.listdir() if name.startswith(TOPIC_ID.hex())}

    def log(self, node_id: int, number: int) -> Partition:
        """A partition at a node."""
        partition = self.logs[node_id].partitions.get(TopicIdPartition(TOPIC_ID, number))
        assert partition is not None
        return partition


async def becomes(found: Callable[[], object], wanted: object) -> None:
    """Returns once `found()` is `wanted`."""
    while found() != wanted:
        await asyncio.to_thread(lambda: None)  # lets the directories go on, whose steps run in threads too


def with_nodes(scenario: Callable[[Directories], Awaitable[None]], *node_ids: int) -> None:
    """Runs a scenario with the directories of these nodes."""

    async def all_of_it(nodes: Nodes) -> None:
        directories = Directories(nodes)
        try:
            await directories.start(*node_ids)
            await scenario(directories)
        finally:
            await directories.end()

    run(all_of_it)


def test_partitions_are_held_and_led_where_they_were_placed() -> None:
    async def scenario(directories: Directories) -> None:
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

    with_nodes(scenario, 1, 2, 3)


def test_a_node_whose_lease_was_lost_leads_on_in_a_new_epoch() -> None:
    async def scenario(directories: Directories) -> None:
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

    with_nodes(scenario, 1, 2)


def test_a_topic_grows_and_changes_everywhere() -> None:
    async def scenario(directories: Directories) -> None:
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

    with_nodes(scenario, 1, 2)


def test_a_deleted_topic_goes_from_every_directory_also_of_a_node_that_was_down() -> None:
    async def scenario(directories: Directories) -> None:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 3)
        await becomes(directories.led, {1: [0], 2: [1], 3: [2]})
        await directories.kill(3)
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

    with_nodes(scenario, 1, 2, 3)


def test_an_emptied_store_removes_nothing() -> None:
    async def scenario(directories: Directories) -> None:
        nodes, node = directories.nodes, directories.nodes.running[1][1]
        await create(nodes, node, 4)
        await becomes(directories.led, {1: [0, 2], 2: [1, 3]})
        for key in list(nodes.etcd.keys):
            await nodes.etcd.put(key.decode(), None)
        await until(node, lambda image: not image.topics())
        append(directories.log(1, 0), b"still here")
        await becomes(directories.led, {1: [0, 2], 2: [1, 3]})
        assert len(directories.held()) == 4

    with_nodes(scenario, 1, 2)


def test_a_disk_that_refuses_holds_up_no_other_topic() -> None:
    async def scenario(directories: Directories) -> None:
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

    with_nodes(scenario, 1)


def test_of_two_nodes_that_create_a_name_one_wins() -> None:
    async def scenario(directories: Directories) -> None:
        names = [f"t{number}" for number in range(6)]
        both = [directories.topics[node_id].create(name, 2, {}) for name in names for node_id in (1, 2)]
        done = await asyncio.gather(*both, return_exceptions=True)
        for first, second in zip(done[::2], done[1::2], strict=True):
            assert sorted([type(first).__name__, type(second).__name__]) == ["Topic", "TopicAlreadyExistsError"]
        won = {topic.name: topic.id for topic in done if isinstance(topic, Topic)}
        for logs in directories.logs.values():
            await becomes(lambda logs=logs: {topic.name: topic.id for topic in logs.topics.list()}, won)  # type: ignore[misc]
        await becomes(lambda: sum(map(len, directories.led().values())), 12)

    with_nodes(scenario, 1, 2)


def test_the_coordinator_has_one_topic_whoever_creates_it() -> None:
    async def scenario(directories: Directories) -> None:
        await asyncio.gather(*(directories.topics[node_id].create_coordinator() for node_id in (1, 2, 3, 1)))
        revision = directories.nodes.etcd.revision
        await directories.topics[2].create_coordinator()
        assert directories.nodes.etcd.revision == revision
        image = directories.nodes.running[3][1].image
        await until(directories.nodes.running[3][1], lambda image: image.topic(COORDINATOR.id))
        assert image.topic(COORDINATOR.id) == TopicEntry(COORDINATOR.name, 1, COORDINATOR.configs)
        partition = image.partition(TopicIdPartition(COORDINATOR.id, 0))
        assert partition is not None
        await becomes(directories.led, {node_id: [0] if node_id == partition.entry.leader else [] for node_id in (1, 2, 3)})
        own = directories.logs[partition.entry.leader].partitions.coordinator_log
        assert own is not None
        assert own.config.retention_ms == -1

    with_nodes(scenario, 1, 2, 3)


def test_changes_of_one_topic_at_several_nodes_all_hold() -> None:
    async def scenario(directories: Directories) -> None:
        topics = directories.topics
        await topics[1].create("orders", 1, {})
        settings = ["retention.ms", "segment.ms", "retention.bytes", "max.message.bytes"]
        every = [topics[1 + at % 3].alter("orders", {name: "4096"}, []) for at, name in enumerate(settings)]
        await asyncio.gather(*every, topics[2].grow("orders", 5))
        topic = directories.logs[1].topics.by_name("orders")
        await becomes(lambda: directories.logs[3].topics.by_name("orders")[:4], topic[:4])
        assert topic.partition_count == 5
        assert dict(topic.configs) == dict.fromkeys(settings, "4096")
        with pytest.raises(InvalidPartitionsError, match="the number can only grow, from the current 5"):
            await topics[3].grow("orders", 5)
        assert (await topics[3].delete("orders")).id == topic.id
        with pytest.raises(UnknownTopicOrPartitionError):
            await topics[3].alter("orders", {"retention.ms": "1"}, [])

    with_nodes(scenario, 1, 2, 3)


def test_a_change_that_the_store_does_not_take_says_so() -> None:
    async def scenario(directories: Directories) -> None:
        topics, etcd = directories.topics[1], directories.nodes.etcd
        await topics.create("orders", 1, {})
        etcd.loses_answers = True
        with pytest.raises(StorageError, match="the change may have been made") as unknown:
            await topics.alter("orders", {"retention.ms": "7"}, [])
        assert unknown.value.fate is Fate.UNKNOWN
        etcd.loses_answers = False
        await becomes(lambda: dict(directories.logs[1].topics.by_name("orders").configs), {"retention.ms": "7"})
        await etcd.stop()
        with pytest.raises(NotReadyError, match="topics cannot be changed at present"):
            await topics.create("clicks", 1, {})
        assert directories.led() == {1: [0]}
        await etcd.start()
        await topics.create("clicks", 1, {})

    with_nodes(scenario, 1)
