"""The parts of several brokers in one process, without gRPC and without a coordination store. The test decides who leads what, and
which calls are lost. Calls between nodes go through the handlers, as bytes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
from collections.abc import AsyncIterator, Callable, Collection
from typing import TypeVar, cast

from google.protobuf.message import Message

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.node_state import ClusterIdentity
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG, Topic
from brokerd.errors import NotReadyError
from brokerd.ids import NO_LEADER, PRODUCER_NUMBERS, ProducerIdAndEpoch, TopicIdPartition
from brokerd.record.batch import values_of
from brokerd.record.header import Attributes
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.coordinator.transactions import Transactions
from brokerd.server.handlers.produce import Produce, handle, verify_members
from brokerd.server.internode import METHODS
from brokerd.server.security.topic_authorizer import ANYBODY, Principal, TopicAuthorizer
from brokerd.sharing import Caller
from brokerd.wire.errors import from_proto
from brokerd.wire.v1 import produce_pb2
from brokerd.wire.v1.coordinator_log_pb2 import MemberOpened
from tests.support.build import arrow_batch, read_batches
from tests.support.files import MemoryFiles
from tests.support.inner_broker import PRINCIPAL, TransactionBroker, end_request
from tests.support.transaction_bench import Execution
from tests.support.transactions import read_committed

R = TypeVar("R", bound=Message)
_CALLER = Caller("", "")
NAME = "app"  # transactional id of `begin` and `commit`


class InnerPeers:
    """A node's access to the others."""

    def __init__(self, cluster: InnerCluster, node_id: int) -> None:
        self._cluster = cluster
        self.node_id = node_id
        self.topics = self
        self.epoch_in_store = 0  # of the coordinator's log; 0 = the store does not answer

    def leader_of(self, tp: TopicIdPartition) -> int:
        return self._cluster.leaders.get(tp, NO_LEADER)

    def leaders(self) -> Collection[int]:
        return self._cluster.nodes.keys()  # a live view, which changes meanwhile

    def has_topic(self, topic_id: bytes) -> bool:
        return topic_id in self._cluster.topics

    async def is_current_leader(self, tp: TopicIdPartition, epoch: int) -> bool:
        return tp != COORDINATOR_LOG or epoch == self.epoch_in_store

    async def is_confirmed_leader(self, tp: TopicIdPartition, _epoch: int) -> bool:
        return self.leader_of(tp) == self.node_id

    async def producer_numbers(self, at_least: int) -> tuple[int, int]:
        return at_least, PRODUCER_NUMBERS

    async def create_coordinator(self) -> None:
        raise AssertionError("the test makes it")

    async def call(self, node_id: int, request: Message, response_type: type[R]) -> R:
        name = type(request).__name__.removesuffix("Request")
        self._cluster.calls.append(name)
        if self._cluster.hangs(node_id):
            await asyncio.Future()
        if node_id not in self._cluster.nodes or self._cluster.loses(node_id, name):
            raise NotReadyError(f"node {node_id} cannot be reached")
        method = METHODS[name]
        answered = await method.handle(self._cluster.nodes[node_id].broker, method.request.FromString(request.SerializeToString()))
        response = response_type.FromString(answered.SerializeToString())
        if response.HasField("error"):
            raise from_proto(response.error)  # type: ignore[attr-defined]
        return response


class InnerNode(TransactionBroker):
    """A node. `produce` goes through the Produce handler."""

    def __init__(self, logs: LogManager, broker: BrokerParts) -> None:
        self.logs = logs
        self.broker = broker

    @property
    def transactions(self) -> Transactions:  # type: ignore[override]
        """The coordinator's transactions, if it is on this node."""
        return self.broker.transactions

    async def produce(
        self, member: MemberOpened, tp: TopicIdPartition, value: bytes, sequence: int, principal: Principal = ANYBODY
    ) -> None:
        """Appends one batch of a member, durable on return. Raises WireErrors."""
        batch = arrow_batch(
            [value],
            [self.broker.clock.wall_ms()],
            producer=ProducerIdAndEpoch(member.producer_id, 0),
            sequence=sequence,
            attributes=int(Attributes.TRANSACTIONAL),
            tp=tp,
        )
        head = produce_pb2.ProduceRequest(acks=-1)
        head.partitions.add(
            topic_id=tp.topic_id, partition=tp.partition, current_leader_epoch=self.logs.partitions.leader(tp).leader_epoch
        )
        request = Produce(head, [tp], [batch.data], batch.header.size)
        authorizer = TopicAuthorizer(principal, self.broker.topics)
        await verify_members(self.broker, authorizer, request)
        pending = handle(self.broker, authorizer, _CALLER, request)
        assert pending is not None
        (result,) = pending.response.results
        if result.HasField("error"):
            raise from_proto(result.error)
        assert pending.operation is not None
        await pending.operation.settled
        for error in pending.operation.errors.values():
            raise error

    def visible(self, tp: TopicIdPartition) -> list[bytes]:
        """The values that readers of committed records see."""
        log = self.logs.partitions.leader(tp)
        offsets = set(read_committed(log, log.ends.log_start_offset, log.ends.last_stable_offset))
        batches = (batch for batch in read_batches(log) if batch.header.base_offset in offsets)
        return [value for batch in batches for value in values_of(batch)]


class InnerCluster:
    """See the module. Node 0 leads the coordinator's log."""

    def __init__(self, clock: Clock, node_count: int, partitions: int) -> None:
        self._clock = clock
        self._files = [MemoryFiles() for _ in range(node_count)]
        self._partitions = partitions
        self.topic = Topic("t", b"0123456789abcdef", partitions, {})
        self.topics = {self.topic.id}
        self.tps = [TopicIdPartition(self.topic.id, number) for number in range(partitions)]
        self.leaders: dict[TopicIdPartition, int] = {}
        self.epoch = 0
        self.nodes: dict[int, InnerNode] = {}
        self.loses: Callable[[int, str], bool] = lambda _node_id, _name: False
        self.hangs: Callable[[int], bool] = lambda _node_id: False
        self.calls: list[str] = []  # names of calls between nodes

    def held_by(self, node_id: int) -> list[int]:
        """The topic's partitions on a node."""
        return [number for number in range(self._partitions) if number % len(self._files) == node_id]

    async def start(self, node_id: int) -> InnerNode:
        """Starts a node, which leads its partitions in a new epoch."""
        config = dataclasses.replace(BrokerConfig(), node_id=node_id)
        logs = LogManager(config, self._files[node_id], self._clock, cluster=ClusterIdentity("c", "id"))
        logs.open()
        broker = BrokerParts(config, logs, self._clock, cast("ClusterNode", InnerPeers(self, node_id)))
        node = self.nodes[node_id] = InnerNode(logs, broker)
        if not logs.topics.has(self.topic.name):
            await broker.admin.run(logs.changes.hold(self.topic, self.held_by(node_id)))
        if node_id == 0 and logs.partitions.coordinator_log is None:
            await broker.admin.run(logs.changes.hold(COORDINATOR, [0]))
        await self.lead(node_id)
        return node

    async def lead(self, node_id: int) -> None:
        """A node leads its partitions in a new epoch, and all nodes learn of it."""
        self.epoch += 1
        node = self.nodes[node_id]
        tps = [partition.tp for partition in node.logs.partitions]
        await node.broker.admin.run(node.logs.replicas.lead(dict.fromkeys(tps, self.epoch)))
        self.leaders |= dict.fromkeys(tps, node_id)
        for each in list(self.nodes.values()):
            await each.broker.coordinator.follow()

    async def swept(self) -> None:
        """Waits for the sweeps that a change of leader began: what they write is durable on return."""
        for node in self.nodes.values():
            await asyncio.gather(*(task for kind, task in node.broker.coordinator._tasks.items() if kind.startswith("sweep")))

    async def stop(self, node_id: int, *, is_killed: bool = True) -> None:
        """Stops a node. The others still consider it the leader of its partitions."""
        node = self.nodes.pop(node_id)
        node.broker.begin_stop()
        if not is_killed:
            await node.broker.flusher.drain()
        node.broker.drop_waiting()
        await node.broker.coordinator.drain()
        await node.broker.close()
        if not is_killed:
            node.logs.close()
        else:
            self._files[node_id].kill()

    def disk_of(self, node_id: int) -> MemoryFiles:
        """A copy of a node's disk, as a kill now would leave it."""
        files = copy.deepcopy(self._files[node_id])
        files.kill()
        return files

    async def restore(self, node_id: int, files: MemoryFiles) -> None:
        """Kills a node and starts it on another disk."""
        await self.stop(node_id)
        self._files[node_id] = files
        await self.start(node_id)

    def visible(self, tp: TopicIdPartition) -> list[bytes]:
        """The values of a partition that readers of committed records see."""
        return self.nodes[self.leaders[tp]].visible(tp)


@contextlib.asynccontextmanager
async def cluster(clock: Clock, *, nodes: int = 2, partitions: int = 4) -> AsyncIterator[InnerCluster]:
    """A running cluster."""
    running = InnerCluster(clock, nodes, partitions)
    try:
        for node_id in range(nodes):
            await running.start(node_id)
        yield running
    finally:
        for node_id in list(running.nodes):
            await running.stop(node_id)


async def begin(running: InnerCluster, version: int = 0) -> MemberOpened:
    """Opens a member with one durable row in each partition."""
    member = await running.nodes[0].init(NAME, Execution(version, f"e{version}", "r"), bytes([version + 1]) * 16)
    for tp in running.tps:
        await running.nodes[running.leaders[tp]].produce(member, tp, b"row %d" % tp.partition, 0)
    return member


async def commit(running: InnerCluster, member: MemberOpened, version: int = 0, records: int = 0) -> None:
    """Commits what `begin` wrote. Raises WireError."""
    count = records or len(running.tps)
    asked = end_request(NAME, Execution(version, f"e{version}", "r"), [(member, count)], running.tps, rows=count)
    await running.nodes[0].broker.transactions.commit(PRINCIPAL, asked)


def shown(running: InnerCluster) -> list[int]:
    """The number of visible rows per partition."""
    return [len(running.visible(tp)) for tp in running.tps]


def epoch(running: InnerCluster) -> int:
    """The coordinator's epoch."""
    return running.nodes[0].broker.transactions.epoch
