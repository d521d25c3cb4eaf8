"""A broker with transactions, in memory, on one node or several: the real host of the coordinator, the real Transactions with its
own log, and the real leaders' side of each node, over the real partitions' cores and a disk that is a list. What waits for the disk
or the network, or lets others go between, waits for the loop's owner.

A crash drops all that is under way, cuts every log at any point that is not durable, and begins again with what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar
from unittest import mock

from google.protobuf.message import Message

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.coordinator.records import Event, decode, event_of
from brokerd.coordinator.snapshot import StateWriter
from brokerd.datadir.node_state import DecidedMembers
from brokerd.errors import NotLeaderError, NotReadyError, RequestTimedOutError, StorageError, UnknownTopicIdError, WireError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.internode.v1.internode_pb2 import PreparedHoldsRequest, VerifyMembersRequest
from brokerd.server.cluster.alone import Alone
from brokerd.server.coordinator import members, producer_ids
from brokerd.server.coordinator.host import CoordinatorHost, Hosted
from brokerd.server.coordinator.leaders import Leaders
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.coordinator.members import Members
from brokerd.server.coordinator.producer_ids import ProducerIds
from brokerd.server.coordinator.transactions import Transactions
from brokerd.wire.v1.control_pb2 import ControlRecord
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord, StateBegins, StateEnds
from brokerd.wire.v1.transaction_pb2 import (
    TRANSACTION_DECISION_COMMIT,
    EndTransactionRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
)
from tests.support.clock import START_WALL_MS
from tests.support.simulated_loop import SimulatedLoop
from tests.support.transaction_partition import SimulatedPartition, data_header

T = TypeVar("T")
R = TypeVar("R", bound=Message)
ALICE = "User:alice"
AGE_MAX_MS = 6_000


class Batch(NamedTuple):
    """A member's batch on its way."""

    tp: TopicIdPartition
    producer_id: int
    sequence: int
    rows: tuple[int, ...]


class Done(NamedTuple):
    """Answer of what has nothing else to say."""


Request = InitProducerIdRequest | Batch | EndTransactionRequest | HeartbeatRequest


class Disk:
    """All that outlives a crash."""

    def __init__(self) -> None:
        self.partitions: dict[TopicIdPartition, SimulatedPartition] = {}
        self.log: list[tuple[bytes, ...]] = []  # of the coordinator, batch by batch; one that is removed is empty
        self.durable = 0  # so many of them
        self.epoch = 1  # of the coordinator

    def crash(self, rng: random.Random) -> None:
        """Loses some of what is not durable."""
        self.crash_log(rng)
        for partition in self.partitions.values():
            partition.crash(rng)

    def crash_log(self, rng: random.Random) -> None:
        """The coordinator's log loses some of what is not durable."""
        del self.log[rng.randint(self.durable, len(self.log)) :]
        self.durable = len(self.log)
        self.epoch += 1


class Witness(NamedTuple):
    """Is told of each event that is recorded, and of each marker that is written."""

    recorded: Callable[[str, Event], None]
    marked: Callable[[ControlRecord], None]


class LogPartition:
    """The partition of the coordinator's log, in the epoch that the disk knows."""

    name = "log"
    is_leader = True

    def __init__(self, disk: Disk, *, may_be_succeeded: bool) -> None:
        self._disk = disk
        self.may_be_succeeded = may_be_succeeded

    @property
    def leader_epoch(self) -> int:
        return self._disk.epoch

    @property
    def ends(self) -> Any:
        return SimpleNamespace(log_end_offset=len(self._disk.log))

    def leads_in(self, epoch: int) -> bool:
        return epoch == self._disk.epoch

    def check_not_cut_off(self) -> None:
        pass


async def _store_is_away(_epoch: int) -> bool:
    return False


class SimulatedLog(CoordinatorLog):
    """The coordinator's log on the disk's list; all else of it is real."""

    def __init__(self, broker: SimulatedBroker, parts: Any) -> None:
        super().__init__(parts, parts, parts, parts, purgatory=parts, admin=parts, clock=broker.clock, is_current=_store_is_away)
        self._broker = broker
        self._disk = broker.disk

    def read(self) -> Iterator[CoordinatorRecord | None]:
        return (decode(data) for batch in self._disk.log for data in batch)

    def _append(self, records: Sequence[CoordinatorRecord]) -> None:
        self._check_leads()
        if records[0].in_state or isinstance(event_of(records[0]), StateBegins | StateEnds):
            self._broker.take_piece()
        self._disk.log.append(tuple(record.SerializeToString() for record in records))
        self._end_offset = len(self._disk.log)
        for record in records:
            event = event_of(record)
            if record.transactional_id and not (record.in_state or isinstance(event, StateBegins | StateEnds)):
                self._broker.witness.recorded(record.transactional_id, event)

    async def durable(self) -> None:
        end = self._end_offset
        self._check_leads()
        await self._broker.loop.until(lambda: self._disk.durable >= end or not self.is_led)
        self._check_leads()

    def has_grown(self) -> bool:
        return bool(self._disk.log)  # as the real one, which never replaces an empty log

    @property
    def start_offset(self) -> int:
        return next((place for place, batch in enumerate(self._disk.log) if batch), 0)


class SimulatedPeers:
    """The others, over a network that delays, repeats and loses. The first node is the coordinator."""

    def __init__(self, broker: SimulatedBroker, node_id: int) -> None:
        self._broker = broker
        self.node_id = node_id

    def leader_of(self, tp: TopicIdPartition) -> int:
        return self._broker.leader_of(tp)

    def leaders(self) -> list[int]:
        return [node.node_id for node in self._broker.nodes if node.is_up]

    def coordinator(self) -> int:
        return 0 if self._broker.nodes[0].is_up else NO_LEADER

    def has_topic(self, _topic_id: bytes) -> bool:
        return False

    async def call(self, node_id: int, request: Message, _response_type: type[R]) -> R:
        broker, sent = self._broker, type(request)()
        sent.CopyFrom(request)  # the caller may go on with its own
        await broker.loop.until()
        if broker.loses_calls and broker.rng.random() < 0.25:
            broker.late.append((node_id, sent))  # it comes once more, later, or once, too late
            if broker.rng.random() < 0.4:
                raise NotReadyError("no answer in time")
        task = broker.serve(node_id, sent)
        if task is None:
            raise NotReadyError("unreachable")
        await broker.loop.until(task.done)
        if task.cancelled() or (broker.loses_calls and broker.rng.random() < 0.1):
            raise NotReadyError("the answer is lost")
        answered: R = task.result()
        return answered


class SimulatedNode:
    """One node: the leader's side of its partitions. It stands for the parts that Members and Transactions use."""

    def __init__(self, broker: SimulatedBroker, node_id: int) -> None:
        self.broker = broker
        self.node_id = node_id
        self.is_up = True
        self.leads = 1
        self.elects_itself = broker.is_alone
        self.coordinator_log = LogPartition(broker.disk, may_be_succeeded=not broker.is_alone) if node_id == 0 else None
        self.tasks: set[asyncio.Task[Any]] = set()
        own: Any = self
        peers: Any = Alone(own, own, own, own, own) if broker.is_alone else SimulatedPeers(broker, node_id)
        self.members = Members(own, own, own, peers, lambda: broker.host.local if node_id == 0 else None)
        self.peers = peers

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task that ends with the node."""
        task = self.broker.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def answer(self, request: Message) -> Any:
        """What another node asks."""
        if isinstance(request, VerifyMembersRequest):
            return await self.broker.host.required.transactions.verify_members(request)
        if isinstance(request, PreparedHoldsRequest):
            return await self.broker.host.required.transactions.prepared_holds(request)
        return await self.members.answer(request)

    async def settle(self) -> None:
        """As the host of the coordinator does it, at any node."""
        while not await self.members.settle():
            await self.broker.loop.until()

    def kill(self) -> None:
        """Ends the node and all that is under way there."""
        self.is_up = False
        for task in sorted(self.tasks, key=lambda task: int(task.get_name().rpartition("-")[2])):
            task.cancel()

    # As DirectoryTime and Retention

    def stamp_ms(self) -> tuple[int, int]:
        return START_WALL_MS, 0

    def give_up_below(self, _log: object, end: int) -> Callable[[], None]:
        def give_up() -> None:
            self.broker.disk.log[:end] = [()] * end

        return give_up

    # As Admin

    async def run(self, work: Callable[[], None]) -> None:
        await self.broker.loop.until()
        work()

    # As PartitionTable

    def highest_producer_number(self) -> int:
        return -1

    def bound_producer_numbers(self, limit: int) -> None:
        pass

    def of_clients(self) -> list[SimulatedPartition]:
        return [partition for tp, partition in self.broker.disk.partitions.items() if self.broker.leader_of(tp) == self.node_id]

    def get(self, tp: TopicIdPartition) -> SimulatedPartition | None:
        partition = self.broker.disk.partitions.get(tp)
        if partition is None or self.broker.leader_of(tp) != self.node_id:
            return None
        partition.before_marker = self.broker.before_marker
        return partition

    def leader(self, tp: TopicIdPartition) -> SimulatedPartition:
        partition = self.get(tp)
        if partition is None and tp in self.broker.disk.partitions:
            raise NotLeaderError("elsewhere")
        if partition is None:
            raise UnknownTopicIdError("deleted")
        return partition

    def release(self, held: Iterable[tuple[str, SimulatedPartition]]) -> None:
        for commit, partition in held:
            partition.core.ends.release(commit)

    async def markers_durable(self, markers: Iterable[tuple[SimulatedPartition, int, int]]) -> dict[int, WireError]:
        """As wait_durable, whose patience is over at times."""
        waited, broker = list(markers), self.broker
        if not waited:
            return {}
        is_patient = not broker.fails_markers or broker.rng.random() < 0.3
        await broker.loop.until(lambda: not is_patient or all(partition.is_durable(offset + 1) for partition, offset, _ in waited))
        errors: dict[int, WireError] = {}
        for place, (partition, offset, _) in enumerate(waited):
            if partition.is_deleted:
                errors[place] = UnknownTopicIdError("deleted")
            elif not partition.is_durable(offset + 1):
                errors[place] = RequestTimedOutError("not durable in time")
        return errors


class SimulatedBroker:
    """All nodes, of which the first is the coordinator. See the module."""

    def __init__(
        self, loop: SimulatedLoop, disk: Disk, rng: random.Random, clock: Clock, witness: Witness, *, node_count: int = 1
    ) -> None:
        self.loop = loop
        self.disk = disk
        self.rng = rng
        self.clock = clock
        self.witness = witness
        self._node_count = node_count
        self.is_alone = node_count == 1
        self.fails_markers = False
        self.loses_calls = False
        self.late: list[tuple[int, Message]] = []  # calls on a long way
        self._at_work: set[str] = set()  # background work, of each kind one at a time
        self._pieces_left = -1  # of the state that is being written, until the disk refuses one; -1: it refuses none
        self._has_started = False
        self._config = dataclasses.replace(BrokerConfig(), transaction_max_age_ms=AGE_MAX_MS)
        self.nodes: list[SimulatedNode] = []
        for node_id in range(node_count):
            self.nodes.append(SimulatedNode(self, node_id))
        self._new_host()

    def _new_host(self) -> None:
        node: Any = self.nodes[0]
        self.host = CoordinatorHost(node, node.members, self._new_coordinator)
        self._empty = self._new_coordinator().transactions

    def _new_coordinator(self) -> Hosted:
        node: Any = self.nodes[0]
        groups: Any = SimpleNamespace(table=SimpleNamespace(pieces=tuple), loaded=lambda: None)
        log = SimulatedLog(self, node)
        leaders = Leaders(node.peers, node.members, lambda: log.leader_epoch)
        transactions = Transactions(
            self._config, log, leaders, groups, ProducerIds(log, node), self.clock, decided_members=DecidedMembers((), ())
        )
        return Hosted(transactions, groups)

    @property
    def is_serving(self) -> bool:
        """True if the coordinator serves."""
        return self._has_started and self.nodes[0].is_up and self.host.local is not None

    @property
    def transactions(self) -> Transactions:
        """As they are now: a start makes others."""
        return self.host.local or self._empty

    @property
    def coordinator(self) -> Any:
        """As it is now: a start makes another."""
        return self.transactions.coordinator

    def leader_of(self, tp: TopicIdPartition) -> int:
        """Partitions have their leaders for ever."""
        return (tp.partition + tp.topic_id[-1]) % self._node_count

    def node_of(self, tp: TopicIdPartition) -> SimulatedNode:
        """The leader of a partition."""
        return self.nodes[self.leader_of(tp)]

    def of_clients(self) -> list[SimulatedPartition]:
        """All partitions."""
        return list(self.disk.partitions.values())

    def before_marker(self, partition: SimulatedPartition, record: ControlRecord) -> None:
        """The disk refuses some markers."""
        if self.fails_markers and self.rng.random() < 0.4:
            raise StorageError(f"{partition.tp}: no space")
        self.witness.marked(record)

    # Life

    async def start(self) -> None:
        """Recovers; serves once that is done."""
        if self.is_alone:
            await self.host.start()
        else:
            for node in self.nodes[1:]:
                node.begin(node.settle())
            await self.host.follow()
        self._has_started = True

    def kill(self, node_id: int) -> None:
        """A node is killed; its disk loses some of what is not durable."""
        node = self.nodes[node_id]
        node.kill()
        if node_id == 0:
            hosted = self.host._hosted
            for former in (*([hosted.transactions] if hosted is not None else []), *self.host._former):
                for task in sorted(former._tasks, key=lambda task: int(task.get_name().rpartition("-")[2])):
                    task.cancel()
            for task in self.host._tasks.values():
                task.cancel()
            self._has_started = False
            self._at_work.clear()
        self.loop.settle()
        for partition in node.of_clients():
            partition.crash(self.rng)
        if node_id == 0:
            self.disk.crash_log(self.rng)

    def restart(self, node_id: int) -> None:
        """A node that was killed starts, and leads its partitions again."""
        node = self.nodes[node_id] = SimulatedNode(self, node_id)
        if node_id == 0:
            self._new_host()
            node.begin(self.start_coordinator())
        else:
            node.begin(node.settle())
            node.begin(self.follow())

    async def start_coordinator(self) -> None:
        """The coordinator's node follows."""
        await self.host.follow()
        self._has_started = True

    async def follow(self) -> None:
        """The coordinator's node hears of another one."""
        if self.is_serving:
            await self.host.follow()

    def depose(self) -> None:
        """The coordinator's node loses its registration, and leads again in a higher epoch. What is under way there goes on."""
        self.disk.epoch += 1
        self._has_started = False
        self.nodes[0].begin(self.start_coordinator())

    def serve(self, node_id: int, request: Message) -> asyncio.Task[Any] | None:
        """A node takes a call; None if it is down."""
        node = self.nodes[node_id]
        return node.begin(node.answer(request)) if node.is_up else None

    def arrive_late(self) -> None:
        """A call comes after its caller has given up, or once more."""
        if self.late:
            task = self.serve(*self.late.pop(self.rng.randrange(len(self.late))))
            if task is not None:
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
                self.loop.settle()

    async def handle(self, request: Request) -> object:
        """The answer to a request: what is asked for, or an error."""
        node = self.node_of(request.tp) if isinstance(request, Batch) else self.nodes[0]
        if self.is_alone:
            return await self._handle(request, node)
        task = node.begin(self._handle(request, node)) if node.is_up else None
        if task is not None:
            await self.loop.until(task.done)
        return NotReadyError("lost") if task is None or task.cancelled() else task.result()

    async def _handle(self, request: Request, node: SimulatedNode) -> object:
        try:
            if isinstance(request, Batch):
                await self._produce(request, node)
                return Done()
            transactions = self.host.required.transactions
            if isinstance(request, InitProducerIdRequest):
                return await transactions.init_member(ALICE, request, lambda number: number)
            if isinstance(request, HeartbeatRequest):
                await transactions.heartbeat(ALICE, request)
            elif request.decision == TRANSACTION_DECISION_COMMIT:
                await transactions.commit(ALICE, request)
            else:
                await transactions.abort(ALICE, request)
        except WireError as error:
            return error
        return Done()

    async def _produce(self, batch: Batch, node: SimulatedNode) -> None:
        """As the handler: membership, sequence and append are one step."""
        if node.members.verifies:
            await node.members.verify([batch.producer_id])
        partition = node.leader(batch.tp)
        header = data_header(len(batch.rows), batch.producer_id, batch.sequence)
        is_open = node.members.open_member(header) is not None
        before = partition.ends.log_end_offset
        end = partition.append(header, batch.rows, is_open_member=is_open)
        node.members.appended(batch.producer_id, batch.tp, partition.ends.log_end_offset - before)
        await self.loop.until(lambda: partition.is_durable(end))
        if partition.is_deleted:
            raise UnknownTopicIdError("deleted")

    async def sweep(self) -> None:
        """As the background does it."""
        await self._at_coordinator(self._sweep())

    async def _sweep(self) -> None:
        async with self._alone("sweep"):
            await self.host.sweep()

    async def write_state(self) -> None:
        """A state of everything takes the place of the log. The disk may refuse a piece of it."""
        await self._at_coordinator(self._write_state())

    async def _write_state(self) -> None:
        async with self._alone("state"):
            self._pieces_left = self.rng.choice((-1, -1, -1, -1, 0, 1, 2))
            await self.host.compact()

    async def _at_coordinator(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that ends with the coordinator's node."""
        if self.is_alone:
            await work
            return
        task = self.nodes[0].begin(work)
        await self.loop.until(task.done)
        if not task.cancelled():
            task.result()

    def is_idle(self, kind: str) -> bool:
        """True if no such background work is under way."""
        return kind not in self._at_work

    @contextlib.asynccontextmanager
    async def _alone(self, kind: str) -> Any:
        while not self.is_idle(kind):
            await self.loop.until(lambda: self.is_idle(kind))
        self._at_work.add(kind)
        yield
        self._at_work.discard(kind)

    def take_piece(self) -> None:
        """A piece of a state reaches the disk. Raises StorageError at times."""
        self._pieces_left -= 1
        if self._pieces_left == -1:
            raise StorageError("no space")

    def flush_log(self) -> None:
        """Some more of the log becomes durable."""
        self.disk.durable = self.rng.randint(self.disk.durable, len(self.disk.log))

    def delete(self, tp: TopicIdPartition) -> SimulatedPartition:
        """A topic is deleted."""
        partition = self.disk.partitions.pop(tp)
        partition.is_deleted = True
        partition.core.deleted()
        for node in self.nodes:
            node.members.forget(tp)
        return partition


@contextlib.contextmanager
def simulated(loop: SimulatedLoop, rng: random.Random) -> Iterator[None]:
    """The code's own waits are the loop's: between pieces of work, for a thread, for markers. Control batches are not encoded."""
    pieces = StateWriter.pieces

    async def pause(_: float) -> None:
        await loop.until()

    async def at_once(work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)

    async def markers_durable(node: SimulatedNode, waited: Any) -> dict[int, WireError]:
        return await node.markers_durable(waited)

    def encode(record: ControlRecord, _tp: object, timestamp_ms: int) -> ControlRecord:
        return record

    with (
        loop.running(),
        mock.patch.object(asyncio, "sleep", pause),
        mock.patch.object(asyncio, "to_thread", at_once),
        mock.patch.object(members, "wait_durable", markers_durable),
        mock.patch.object(members, "encode_control", encode),
        mock.patch.object(StateWriter, "pieces", lambda self, **others: pieces(self, rng.choice((1, 2, 100, 100)), **others)),
        mock.patch.object(producer_ids, "BLOCK", 3),
    ):
        yield
