"""Replication between several nodes in one process, over streams in memory. Each node's directory, leading and copying are real.
The test plays the cluster: it decides who leads what, and when each node learns of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import grpc

from brokerd.clock import SystemClock
from brokerd.cluster.assignments import Life
from brokerd.cluster.image import ClusterImage, Node
from brokerd.cluster.keys import InSyncReplica, Keys, PartitionEntry, Registration, TopicEntry, encode
from brokerd.config.broker import BrokerConfig
from brokerd.coordination.client import CoordinationClient
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.node_state import ClusterIdentity
from brokerd.datadir.topic_store import Topic
from brokerd.errors import CoordinationError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.replication.leader import in_sync_of
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.calls import NodeCalls
from brokerd.server.cluster.membership import Membership
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.replication.copying import Copying, Means
from brokerd.server.replication.leading import Leading
from brokerd.server.replication.serving import ReplicaStream
from brokerd.server.streams import Context
from tests.support.files import MemoryFiles
from tests.support.wait import DEADLINE_S

TOPIC = Topic("orders", b"o" * 16, 2, {})
LAG_MS = 10_000
_KEYS = Keys("prod")


def tp_of(number: int) -> TopicIdPartition:
    """A partition of the topic."""
    return TopicIdPartition(TOPIC.id, number)


class _Peers:
    """The parts of a cluster that BrokerParts needs here."""

    def __init__(self, node_id: int) -> None:
        self.node_id, self.topics = node_id, self

    def leader_of(self, _tp: TopicIdPartition) -> int:
        return NO_LEADER

    async def producer_numbers(self, at_least: int) -> tuple[int, int]:
        return at_least, at_least

    async def create_coordinator(self) -> None:
        raise AssertionError("no test needs it")


class _Stream:
    """Both ends of one byte stream."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.answered: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    # The follower's end
    async def write(self, data: bytes) -> None:
        await self.asked.put(data)

    async def read(self) -> object:
        data = await self.answered.get()
        return data if data is not None else grpc.aio.EOF

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class _LeadersEnd:
    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    async def read(self) -> object:
        data = await self._stream.asked.get()
        return data if data is not None else grpc.aio.EOF

    async def write(self, data: bytes) -> None:
        await self._stream.answered.put(data)


class Store:
    """The store's answers to changes of the in-sync set: those in `answers`, then failed comparisons."""

    def __init__(self) -> None:
        self.clock, self.answered_ms = SystemClock(), SystemClock().monotonic_ms()
        self.answers: list[int | CoordinationError | None] = []
        self.asked: list[Mapping[str, bytes]] = []
        self.histories = 0

    async def transact(self, _compares: Mapping[str, int], puts: Mapping[str, bytes], *, histories: int) -> int | None:
        """See CoordinationClient."""
        assert histories == self.histories
        self.asked.append(puts)
        await asyncio.sleep(0)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, CoordinationError):
            raise answer
        return answer


class CopyNode:
    """One node."""

    def __init__(self, copies: Copies, number: int, settings: Mapping[str, Any]) -> None:
        self.id, self.copies, clock = number, copies, SystemClock()
        config = dataclasses.replace(BrokerConfig(), node_id=number, **settings)
        self.files = MemoryFiles()
        self.logs = LogManager(config, self.files, clock, cluster=ClusterIdentity("prod", "id of prod"))
        self.logs.open()
        self.broker = BrokerParts(config, self.logs, clock, cast("ClusterNode", _Peers(number)))
        self.image = ClusterImage(_KEYS)
        self.store = Store()
        life = Life(number, 10 + number, f"d{number}")

        async def look_again() -> None:
            """Nothing: tests call follow_image."""

        async def publish_refusals(refuses: bool) -> None:
            self.refuses = refuses

        self.refuses = False  # as last published
        known = SimpleNamespace(
            image=self.image,
            node_id=number,
            directory_id=life.directory_id,
            last_life=life,
            look_again=look_again,
            publish_refusals=publish_refusals,
        )
        membership = cast("Membership", known)
        self.membership = membership
        self.leading = Leading(cast("CoordinationClient", self.store), membership, self.logs.partitions, LAG_MS, self.logs.refusals)
        means = Means(
            self.logs.partitions,
            self.logs.replicas,
            membership,
            cast("NodeCalls", self),
            self.broker.flusher,
            self.broker.admin,
            clock,
            self.leading.unable,
        )
        self.copying = Copying(means)

    async def replicate(self, node: Node) -> Any:
        """See NodeCalls."""
        stream, leader = _Stream(), self.copies.nodes[node.id]
        served = ReplicaStream(leader.broker, leader.membership, leader.leading, cast("Context", _LeadersEnd(stream)))

        async def serve() -> None:
            try:
                await served.run()
            finally:
                await stream.answered.put(None)

        stream.task = asyncio.create_task(serve())
        self.copies.streams.append(served)
        return stream

    def log_start(self, number: int = 0) -> int:
        """The log start of its copy of a partition; -1 while there is none, as when it starts anew."""
        found = self.logs.partitions.replica(tp_of(number))
        return found.ends.log_start_offset if found is not None else -1

    def log(self, number: int = 0) -> Partition:
        """Its copy of a partition."""
        found = self.logs.partitions.replica(tp_of(number))
        assert found is not None
        return found

    async def hears(self, entry: PartitionEntry, revision: int, number: int = 0) -> None:
        """Receives a new entry: takes its role, then updates Leading and Copying."""
        self.sees(entry, revision, number)
        await self.takes_role(entry, number)
        self.leading.follow_image()
        self.copying.follow_image()

    def sees(self, entry: PartitionEntry, revision: int, number: int = 0) -> None:
        """Puts a new entry into the image, without reacting to it."""
        self.image.put(_KEYS.partition(tp_of(number)), encode(entry), create_revision=1, mod_revision=revision)

    def registers(self, number: int, epoch: int) -> None:
        """A node has registered again, and this node learns of it."""
        entry = encode(Registration("h", 1, f"d{number}"))
        self.image.put(_KEYS.node(number), entry, create_revision=epoch, mod_revision=epoch)
        if number == self.id:
            self.membership.last_life = Life(number, epoch, f"d{number}")

    async def takes_role(self, entry: PartitionEntry, number: int = 0) -> None:
        """Leads or follows, according to the entry."""
        tp, replicas = tp_of(number), self.logs.replicas
        if entry.leader == self.id:
            await self.broker.admin.run(replicas.lead({tp: entry.leader_epoch}, {tp: in_sync_of(entry)}))
        else:
            await self.broker.admin.run(replicas.follow({tp: entry.leader_epoch}))

    async def close(self) -> None:
        """Closes the node."""
        await self.copying.stop()
        self.broker.begin_stop()
        self.broker.drop_waiting()
        await self.broker.coordinator.drain()
        await self.broker.close()


class Copies:
    """See the module."""

    def __init__(self) -> None:
        self.nodes: dict[int, CopyNode] = {}
        self.streams: list[ReplicaStream] = []

    def __iter__(self) -> Iterator[CopyNode]:
        return iter(self.nodes.values())

    async def hear(self, entry: PartitionEntry, revision: int, number: int = 0) -> None:
        """All nodes receive an entry, one after another."""
        for node in self:
            await node.hears(entry, revision, number)

    def is_followed(self, tp: TopicIdPartition, epoch: int) -> bool:
        """True if a follower has reported its position in this epoch."""
        found = (stream._followed.get(tp) for stream in self.streams)
        return any(followed is not None and followed.position.leader_epoch == epoch for followed in found)

    def entry(self, leader: int, epoch: int, isr: Sequence[int] = ()) -> PartitionEntry:
        """An entry; without `isr`, all nodes are in sync."""
        members = tuple(InSyncReplica(each, f"d{each}") for each in isr or self.nodes)
        return PartitionEntry(tuple(self.nodes), members, leader, 10 + leader, epoch)


@contextlib.asynccontextmanager
async def copies(count: int = 2, **settings: Any) -> AsyncIterator[Copies]:
    """Nodes 1, 2, ..., each with empty copies of both partitions and no role."""
    running = Copies()
    try:
        for number in range(1, count + 1):
            running.nodes[number] = CopyNode(running, number, settings)
        for node in running:
            topic = encode(TopicEntry(TOPIC.name, TOPIC.partition_count, {}))
            node.image.put(_KEYS.topic(TOPIC.id), topic, create_revision=1, mod_revision=1)
            node.image.put(_KEYS.name(TOPIC.name), TOPIC.id.hex().encode(), create_revision=1, mod_revision=1)
            for other in running.nodes:
                entry = encode(Registration("h", 1, f"d{other}"))
                node.image.put(_KEYS.node(other), entry, create_revision=10 + other, mod_revision=10 + other)
            await node.broker.admin.run(node.logs.changes.hold(TOPIC, [0, 1]))
        yield running
    finally:
        for node in running:
            await node.close()


async def until(holds: Callable[[], object], what: str = "it holds") -> None:
    """Waits until `holds()`."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not in time: {what}") from None
