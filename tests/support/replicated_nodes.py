"""The nodes of a simulated cluster with transactions: the nodes of replication_nodes.py, plus everything that a daemon serves to
clients and other nodes.

Real: BrokerParts, which includes the coordinator's host, its log and transactions, the leaders' side of members, group offsets and
producer ids; the handlers of Produce, transactions and internode calls; ClusterNode's view of the cluster. Fake: threads, the
client of the coordination store, and the wire."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from unittest import mock

from google.protobuf.message import Message

from brokerd.cluster.image import Node
from brokerd.config.broker import BrokerConfig
from brokerd.partition.partition import Partition
from brokerd.server import broker as server_broker
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.cluster.topics import ClusterTopics
from brokerd.server.daemon import within
from brokerd.server.delayed_produce import Appended, wait_durable
from brokerd.server.handlers import groups, produce, transactions
from brokerd.server.internode import METHODS
from brokerd.server.security.topic_authorizer import ANYBODY, TopicAuthorizer
from brokerd.sharing import BROKER, Budget
from brokerd.wire.errors import from_proto
from brokerd.wire.v1 import produce_pb2
from brokerd.wire.v1.coordinator_log_pb2 import MemberOpened
from brokerd.wire.v1.offsets_pb2 import CommitGroupOffsetsRequest, FetchGroupOffsetsRequest
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, HeartbeatRequest, InitProducerIdRequest
from tests.support.replicated_groups import NOTHING, GroupRequest, Read
from tests.support.replication_nodes import CLUSTER, KEYS, Process, settle
from tests.support.simulated_transactions import AGE_MAX_MS, Batch, Done, Request

if TYPE_CHECKING:
    from tests.support.replicated_transactions import Simulation

R = TypeVar("R", bound=Message)
FACTOR = 3
_SWEEP_S = 0.5
_COMPACT_S = 0.1
_PATIENCE_MS = 3_000  # time-out of a producer's request
_REPLICATED_S = 1.0  # as in the daemon


class Sent(NamedTuple):
    """A client's request and the leader epoch in its metadata."""

    request: Request | GroupRequest
    epoch: int


class _Calls:
    """NodeCalls over the schedule's network."""

    def __init__(self, process: TransactionalProcess) -> None:
        self._process = process

    async def call(self, node: Node, request: Message, response_type: type[R]) -> R:
        """See NodeCalls.call."""
        process = self._process
        future: asyncio.Future[bytes] = process.loop.create_future()
        name, data = request.DESCRIPTOR.name.removesuffix("Request"), request.SerializeToString()
        process.sim.call(process, node, name, data, lambda *answer: process.enter(partial(settle, future, *answer)))
        response: Any = response_type.FromString(await future)
        if "error" in response.DESCRIPTOR.fields_by_name and response.HasField("error"):
            raise from_proto(response.error)
        return cast("R", response)


class _Cluster(ClusterNode):
    """The cluster as its broker uses it, built from the process's own membership."""

    def __init__(self, process: TransactionalProcess, config: BrokerConfig) -> None:
        self._config, self._keys = config, KEYS
        self._client = cast("Any", process.client)
        self._parts = cast("Any", SimpleNamespace(membership=process.membership))
        self._calls = cast("Any", _Calls(process))
        self.token = process.token
        self._checking, self._failed_checks = Budget(1), 0

    def has_joined(self, process: TransactionalProcess) -> None:
        """Follows the process's directory."""
        logs = process.logs
        self.topics = ClusterTopics(
            self._client, process.membership, process.directory, logs.topics, logs.changes, self.call, FACTOR
        )
        logs.partitions.leader_in_cluster = self._leader


class TransactionalProcess(Process):
    """One run of a node that serves transactions."""

    sim: Simulation

    def _open(self) -> None:
        super()._open()
        self.cluster.has_joined(self)

    def _new_broker(self, config: BrokerConfig) -> BrokerParts:
        config = dataclasses.replace(
            config, cluster_name=CLUSTER.name, default_replication_factor=FACTOR, transaction_max_age_ms=AGE_MAX_MS
        )
        self.cluster = _Cluster(self, config)
        with mock.patch.object(server_broker, "Flusher", return_value=self.flusher):
            broker = BrokerParts(config, self.logs, self.sim.clock, self.cluster)
        broker.readers = self.readers()
        self.authorizer = TopicAuthorizer(ANYBODY, self.logs.topics)
        role_changed = self.logs.partitions.on_role

        def on_role(partition: Partition) -> None:
            role_changed(partition)
            if partition.is_leader:
                self.sim.led(self, partition)

        self.logs.partitions.on_role = on_role
        return broker

    def _more_works(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return (self._tell, self._sweep, self._compact)

    async def _tell(self) -> None:
        """Follows changes as ClusterNode.join does."""
        seen, roles = -1, (-1, -1)
        while True:
            seen = await self.directory.passed(seen)
            before, roles = roles, (self.logs.partitions.leads, self.membership.partition_changes)
            if roles != before:
                await self.broker.coordinator.follow()

    async def _sweep(self) -> None:
        """Sweeps as Background does, but more often."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self.broker.coordinator.sweep()

    async def _compact(self) -> None:
        while True:
            await asyncio.sleep(_COMPACT_S)
            await self.broker.coordinator.compact()

    async def stop(self) -> None:
        """Shuts down as the daemon does: accepts nothing new and lets followers catch up first."""
        broker: BrokerParts = self.broker
        broker.begin_stop()
        led = [partition for partition in broker.partitions if partition.is_leader]
        ends = [(partition, partition.ends.log_end_offset) for partition in led]
        behind = [Appended(one, end - 1, one.leader_epoch) for one, end in ends if one.ends.high_watermark < end]
        await within(_REPLICATED_S, wait_durable(broker.produce_purgatory, behind))
        await super().stop()

    # Requests

    async def serve(self, name: str, data: bytes, reply: Callable[[bytes], None]) -> None:
        """Serves an internode call as InternodeService does."""
        method = METHODS[name]
        response = await method.handle(self.broker, method.request.FromString(data))
        reply(response.SerializeToString())

    async def answer(self, asked: Sent) -> object:
        """The answer to a client's request: its result or an error."""
        if isinstance(asked.request, Batch):
            return await self._produce(asked.request, asked.epoch)
        request = type(asked.request)()
        request.CopyFrom(cast("Any", asked.request))  # handlers may change their request
        response: Any
        if isinstance(request, CommitGroupOffsetsRequest):
            response = await groups.commit_group_offsets(self.broker, self.authorizer, request)
        elif isinstance(request, FetchGroupOffsetsRequest):
            response = await groups.fetch_group_offsets(self.broker, self.authorizer, request)
        elif isinstance(request, InitProducerIdRequest):
            response = await transactions.init_producer_id(self.broker, self.authorizer, request)
        elif isinstance(request, HeartbeatRequest):
            response = await transactions.heartbeat(self.broker, self.authorizer, request)
        else:
            assert isinstance(request, EndTransactionRequest)
            response = await transactions.end_transaction(self.broker, self.authorizer, request)
        if response.HasField("error"):
            return from_proto(response.error)
        if isinstance(request, GroupRequest):
            (result,) = response.results
            if result.HasField("error"):
                return from_proto(result.error)
            return Read(int(result.metadata or NOTHING)) if isinstance(request, FetchGroupOffsetsRequest) else Done()
        return MemberOpened(producer_id=response.producer_id) if isinstance(request, InitProducerIdRequest) else Done()

    async def _produce(self, batch: Batch, epoch: int) -> object:
        """Appends as a Produce stream does."""
        record_batch = self.sim.clients.encoded(batch)
        place = produce_pb2.PartitionProduce(**batch.tp._asdict(), current_leader_epoch=epoch)
        head = produce_pb2.ProduceRequest(acks=produce.ACKS_ALL, timeout_ms=_PATIENCE_MS, partitions=[place])
        request = produce.Produce(head, [batch.tp], [record_batch.data], record_batch.data.size)
        if self.broker.members.verifies:
            await produce.verify_members(self.broker, self.authorizer, request)
        pending = produce.handle(self.broker, self.authorizer, BROKER, request)
        assert pending is not None, "acks=all is answered"
        if pending.operation is not None:
            await pending.operation.settled
        response = produce_pb2.ProduceResponse.FromString(produce.encode(pending))
        (result,) = response.results or [None]
        if result is None or result.HasField("error"):
            return from_proto(response.error if result is None else result.error)
        self.sim.clients.acknowledges(self, batch, result.base_offset)
        return Done()
