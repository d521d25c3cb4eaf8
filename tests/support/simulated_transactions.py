"""A single-node broker with transactions, in memory. Real: the coordinator's host, Transactions and its log's logic, Members (the
partition leader's side), and the partitions' cores. Simulated: the disk, which is a list. Every wait for the disk, and every point
where other tasks may run, waits for the loop's owner.

A crash drops everything under way, cuts every log at a random point above its durable end, and restarts from the rest."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

from brokerd.clock import Clock
from brokerd.config.broker import BrokerConfig
from brokerd.coordinator.records import Event, decode, event_of
from brokerd.coordinator.transaction_coordinator import StateWriter
from brokerd.datadir.node_state import DecidedMembers
from brokerd.errors import RequestTimedOutError, StorageError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.server.cluster.alone import Alone
from brokerd.server.coordinator import members, producer_ids
from brokerd.server.coordinator.host import CoordinatorHost
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

ALICE = "User:alice"
AGE_MAX_MS = 6_000


class Batch(NamedTuple):
    """A member's batch under way."""

    tp: TopicIdPartition
    producer_id: int
    sequence: int
    rows: tuple[int, ...]


class Done(NamedTuple):
    """A successful answer without content."""


Request = InitProducerIdRequest | Batch | EndTransactionRequest | HeartbeatRequest


class Disk:
    """Everything that survives a crash."""

    def __init__(self) -> None:
        self.partitions: dict[TopicIdPartition, SimulatedPartition] = {}
        self.log: list[tuple[bytes, ...]] = []  # the coordinator's log by batch; a removed batch is ()
        self.durable = 0  # number of durable batches in `log`

    def crash(self, rng: random.Random) -> None:
        """Loses a random part of the undurable data."""
        del self.log[rng.randint(self.durable, len(self.log)) :]
        self.durable = len(self.log)
        for partition in self.partitions.values():
            partition.crash(rng)


class Witness(NamedTuple):
    """Callbacks for each event recorded in the log and each marker written."""

    recorded: Callable[[str, Event], None]
    marked: Callable[[ControlRecord], None]


class LogPartition:
    """The partition of the coordinator's log; its one leader epoch lasts for a run of the broker."""

    name = "log"
    is_leader = True
    leader_epoch = 1
    may_be_succeeded = False

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    @property
    def ends(self) -> Any:
        return SimpleNamespace(log_end_offset=len(self._disk.log))

    def leads_in(self, _epoch: int) -> bool:
        return True

    def check_not_cut_off(self) -> None:
        pass


class SimulatedLog(CoordinatorLog):
    """The coordinator's log on the disk's list; the rest is real."""

    def __init__(self, broker: SimulatedBroker) -> None:
        parts: Any = broker
        super().__init__(parts, parts, parts, parts, purgatory=parts, admin=parts, clock=broker.clock, is_current=parts)
        self._broker = broker
        self._disk = broker.disk

    def read(self) -> Iterator[CoordinatorRecord | None]:
        return (decode(data) for batch in self._disk.log for data in batch)

    def _append(self, records: Sequence[CoordinatorRecord]) -> None:
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
        await self._broker.loop.until(lambda: self._disk.durable >= end)

    def has_grown(self) -> bool:
        return bool(self._disk.log)  # like the real log, which never replaces an empty one

    @property
    def start_offset(self) -> int:
        return next((place for place, batch in enumerate(self._disk.log) if batch), 0)


class SimulatedBroker:
    """See the module. Also stands in for the parts that Members and Transactions use."""

    elects_itself = True
    node_id = 0

    def __init__(self, loop: SimulatedLoop, disk: Disk, rng: random.Random, clock: Clock, witness: Witness) -> None:
        self.loop = loop
        self.disk = disk
        self.rng = rng
        self.clock = clock
        self.witness = witness
        self.fails_markers = False
        self._at_work: set[str] = set()  # kinds of background work under way, one of each at a time
        self._pieces_left = -1  # pieces of the state until the disk refuses one; -1: refuses none
        self._has_started = False
        self._config = dataclasses.replace(BrokerConfig(), transaction_max_age_ms=AGE_MAX_MS)
        self.coordinator_log = LogPartition(disk)
        own: Any = self
        self._peers = Alone(own, own, own, own, own)
        self.members = Members(own, own, own, self._peers, lambda: self.host.local)
        self.host = CoordinatorHost(own, self.members, self._new_coordinator)
        self._empty = self._new_coordinator()

    def _new_coordinator(self) -> Transactions:
        own: Any = self
        groups: Any = SimpleNamespace(table=SimpleNamespace(pieces=tuple), loaded=lambda: None, name_of=str)
        log = SimulatedLog(self)
        leaders = Leaders(self._peers, self.members, lambda: log.leader_epoch)
        ids = ProducerIds(log, own, self._peers.producer_numbers)
        return Transactions(self._config, log, leaders, groups, ids, self.clock, decided_members=DecidedMembers((), ()))

    @property
    def is_serving(self) -> bool:
        """True while the coordinator serves."""
        return self._has_started and self.host.local is not None

    @property
    def transactions(self) -> Transactions:
        """The current Transactions; each start creates another."""
        return self.host.local or self._empty

    @property
    def coordinator(self) -> Any:
        """The current coordinator; each start creates another."""
        return self.transactions.coordinator

    # As DirectoryTime and Retention

    def stamp_ms(self) -> tuple[int, int]:
        return START_WALL_MS, 0

    def give_up_below(self, _log: object, end: int) -> Callable[[], None]:
        def give_up() -> None:
            self.disk.log[:end] = [()] * end

        return give_up

    # As Admin

    async def run(self, work: Callable[[], None]) -> None:
        await self.loop.until()
        work()

    # As PartitionTable

    def highest_producer_number(self) -> int:
        return -1

    def bound_producer_numbers(self, limit: int) -> None:
        pass

    def of_clients(self) -> list[SimulatedPartition]:
        return list(self.disk.partitions.values())

    def get(self, tp: TopicIdPartition) -> SimulatedPartition | None:
        partition = self.disk.partitions.get(tp)
        if partition is not None:
            partition.before_marker = self.before_marker
        return partition

    def leader(self, tp: TopicIdPartition) -> SimulatedPartition:
        partition = self.get(tp)
        if partition is None:
            raise UnknownTopicIdError("deleted")
        return partition

    def release(self, held: Iterable[tuple[str, SimulatedPartition]]) -> None:
        for commit, partition in held:
            partition.core.ends.release(commit)

    async def markers_durable(self, markers: Iterable[tuple[SimulatedPartition, int, int]]) -> dict[int, WireError]:
        """Like wait_durable, sometimes with an immediate time-out."""
        waited = list(markers)
        if not waited:
            return {}
        is_patient = not self.fails_markers or self.rng.random() < 0.3
        await self.loop.until(lambda: not is_patient or all(partition.is_durable(offset + 1) for partition, offset, _ in waited))
        errors: dict[int, WireError] = {}
        for place, (partition, offset, _) in enumerate(waited):
            if partition.is_deleted:
                errors[place] = UnknownTopicIdError("deleted")
            elif not partition.is_durable(offset + 1):
                errors[place] = RequestTimedOutError("not durable in time")
        return errors

    def before_marker(self, partition: SimulatedPartition, record: ControlRecord) -> None:
        """Refuses some markers, as a full disk does."""
        if self.fails_markers and self.rng.random() < 0.4:
            raise StorageError(f"{partition.tp}: no space")
        self.witness.marked(record)

    # --- start and requests

    async def start(self) -> None:
        """Recovers, then serves."""
        await self.host.start()
        self._has_started = True

    async def handle(self, request: Request) -> object:
        """The answer to a request: its result or an error."""
        try:
            if isinstance(request, Batch):
                await self._produce(request)
                return Done()
            transactions = self.host.required
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

    async def _produce(self, batch: Batch) -> None:
        """Like the Produce handler: membership, sequence and append are one step."""
        partition = self.leader(batch.tp)
        header = data_header(len(batch.rows), batch.producer_id, batch.sequence)
        is_open = self.members.open_member(header) is not None
        before = partition.ends.log_end_offset
        end = partition.append(header, batch.rows, is_open_member=is_open)
        self.members.appended(batch.producer_id, batch.tp, partition.ends.log_end_offset - before)
        await self.loop.until(lambda: partition.is_durable(end))
        if partition.is_deleted:
            raise UnknownTopicIdError("deleted")

    async def sweep(self) -> None:
        """Sweeps as the background task does."""
        async with self._alone("sweep"):
            await self.host.sweep()

    async def write_state(self) -> None:
        """Compacts the log: a snapshot of the state replaces it. The disk may refuse a piece of it."""
        async with self._alone("state"):
            self._pieces_left = self.rng.choice((-1, -1, -1, -1, 0, 1, 2))
            await self.host.compact()

    def is_idle(self, kind: str) -> bool:
        """True unless background work of this kind is under way."""
        return kind not in self._at_work

    @contextlib.asynccontextmanager
    async def _alone(self, kind: str) -> Any:
        while not self.is_idle(kind):
            await self.loop.until(lambda: self.is_idle(kind))
        self._at_work.add(kind)
        yield
        self._at_work.discard(kind)

    def take_piece(self) -> None:
        """Writes a piece of a state. Raises StorageError now and then."""
        self._pieces_left -= 1
        if self._pieces_left == -1:
            raise StorageError("no space")

    def flush_log(self) -> None:
        """Makes a random further part of the log durable."""
        self.disk.durable = self.rng.randint(self.disk.durable, len(self.disk.log))

    def delete(self, tp: TopicIdPartition) -> SimulatedPartition:
        """Deletes a partition's topic."""
        partition = self.disk.partitions.pop(tp)
        partition.is_deleted = True
        partition.core.deleted()
        self.members.forget(tp)
        return partition


@contextlib.contextmanager
def simulated(loop: SimulatedLoop, rng: random.Random) -> Iterator[None]:
    """Replaces the code's own waits by the loop's: sleeps, threads, waits for markers. Control batches are not encoded."""
    pieces = StateWriter.pieces

    async def pause(_: float) -> None:
        await loop.until()

    async def at_once(work: Callable[..., object], *arguments: object) -> object:
        return work(*arguments)

    async def markers_durable(broker: SimulatedBroker, waited: Any) -> dict[int, WireError]:
        return await broker.markers_durable(waited)

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
