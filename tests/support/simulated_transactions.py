"""A broker with transactions, in memory: the real Transactions with its own log and its leaders, over the real partitions' cores
and a disk that is a list. What waits for the disk, or lets others go between, waits for the loop's owner.

A crash drops all that is under way, cuts every log at any point that is not durable, and begins again with what is left.
"""

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
from brokerd.coordinator.snapshot import StateWriter
from brokerd.datadir.decided_members import DecidedMembers
from brokerd.errors import RequestTimedOutError, StorageError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.server.coordinator import local_leaders
from brokerd.server.coordinator.log import CoordinatorLog
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
        self.next_producer_id = 100

    def crash(self, rng: random.Random) -> None:
        """Loses some of what is not durable."""
        del self.log[rng.randint(self.durable, len(self.log)) :]
        self.durable = len(self.log)
        for partition in self.partitions.values():
            partition.crash(rng)


class Witness(NamedTuple):
    """Is told of each event that is recorded, and of each marker that is written."""

    recorded: Callable[[str, Event], None]
    marked: Callable[[ControlRecord], None]


class SimulatedLog(CoordinatorLog):
    """The coordinator's log on the disk's list; all else of it is real."""

    def __init__(self, broker: SimulatedBroker, parts: Any) -> None:
        super().__init__(parts, parts, parts, parts, purgatory=parts, admin=parts, clock=broker.clock)
        self._broker = broker
        self._disk = broker.disk
        self._end_offset = len(self._disk.log)
        self._partition = SimpleNamespace(name="log")  # type: ignore[assignment]

    def read(self) -> Iterator[CoordinatorRecord | None]:
        return (decode(data) for batch in self._disk.log for data in batch)

    def _append(self, records: Sequence[CoordinatorRecord]) -> None:
        if records[0].in_state or isinstance(event_of(records[0]), StateBegins | StateEnds):
            self._broker.take_piece()
        self._disk.log.append(tuple(record.SerializeToString() for record in records))
        self._end_offset += 1
        for record in records:
            event = event_of(record)
            if not (record.in_state or isinstance(event, StateBegins | StateEnds)):
                self._broker.witness.recorded(record.transactional_id, event)

    async def durable(self) -> None:
        end = self._end_offset
        await self._broker.loop.until(lambda: self._disk.durable >= end)

    def has_grown(self) -> bool:
        return bool(self._disk.log)  # as the real one, which never replaces an empty log

    @property
    def start_offset(self) -> int:
        return next((place for place, batch in enumerate(self._disk.log) if batch), 0)


class SimulatedBroker:
    """See the module. It stands for the parts that its Transactions use."""

    has_next = True

    def __init__(self, loop: SimulatedLoop, disk: Disk, rng: random.Random, clock: Clock, witness: Witness) -> None:
        self.loop = loop
        self.disk = disk
        self.rng = rng
        self.clock = clock
        self.witness = witness
        self.is_serving = False
        self.fails_markers = False
        self._at_work: set[str] = set()  # background work, of each kind one at a time
        self._pieces_left = -1  # of the state that is being written, until the disk refuses one; -1: it refuses none
        config = dataclasses.replace(BrokerConfig(), transaction_max_age_ms=AGE_MAX_MS)
        own: Any = self
        groups: Any = SimpleNamespace(table=SimpleNamespace(pieces=tuple), loaded=lambda: None)
        log, leaders = SimulatedLog(self, own), local_leaders.LocalLeaders(own, own, own, coordinator_epoch=1)
        self.transactions = Transactions(config, log, leaders, groups, own, own, clock, decided_members=DecidedMembers((), ()))

    @property
    def coordinator(self) -> Any:
        """As it is now: a start makes another."""
        return self.transactions.coordinator

    # As ProducerIds, DirectoryTime and Retention

    @property
    def next_id(self) -> int:
        return self.disk.next_producer_id

    def take(self) -> int:
        self.disk.next_producer_id += 1
        return self.disk.next_producer_id - 1

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

    @property
    def coordinator_log(self) -> None:
        pass

    def of_clients(self) -> list[SimulatedPartition]:
        return list(self.disk.partitions.values())

    def get(self, tp: TopicIdPartition) -> SimulatedPartition | None:
        partition = self.disk.partitions.get(tp)
        if partition is not None:
            partition.before_marker = self._before_marker
        return partition

    def leader(self, tp: TopicIdPartition) -> SimulatedPartition:
        partition = self.get(tp)
        if partition is None:
            raise UnknownTopicIdError("deleted")
        return partition

    def _before_marker(self, partition: SimulatedPartition, record: ControlRecord) -> None:
        if self.fails_markers and self.rng.random() < 0.4:
            raise StorageError(f"{partition.tp}: no space")
        self.witness.marked(record)

    def release(self, commit: str, partitions: Iterable[SimulatedPartition]) -> None:
        for partition in partitions:
            partition.core.ends.release(commit)

    async def markers_durable(self, markers: Iterable[tuple[SimulatedPartition, int, int]]) -> dict[int, WireError]:
        """As wait_durable, whose patience is over at times."""
        waited = list(markers)
        is_patient = not self.fails_markers or self.rng.random() < 0.3
        await self.loop.until(lambda: not is_patient or all(partition.is_durable(offset + 1) for partition, offset, _ in waited))
        errors: dict[int, WireError] = {}
        for place, (partition, offset, _) in enumerate(waited):
            if partition.is_deleted:
                errors[place] = UnknownTopicIdError("deleted")
            elif not partition.is_durable(offset + 1):
                errors[place] = RequestTimedOutError("not durable in time")
        return errors

    # Life

    async def start(self) -> None:
        """Recovers; serves once that is done."""
        await self.transactions.start()
        self.is_serving = True

    async def handle(self, request: Request) -> object:
        """The answer to a request: what is asked for, or an error."""
        try:
            if isinstance(request, InitProducerIdRequest):
                return await self.transactions.init_member(ALICE, request, lambda number: number)
            if isinstance(request, Batch):
                await self._produce(request)
            elif isinstance(request, HeartbeatRequest):
                await self.transactions.heartbeat(ALICE, request)
            elif request.decision == TRANSACTION_DECISION_COMMIT:
                await self.transactions.commit(ALICE, request)
            else:
                await self.transactions.abort(ALICE, request)
        except WireError as error:
            return error
        return Done()

    async def _produce(self, batch: Batch) -> None:
        """As the handler: membership, sequence and append are one step."""
        partition = self.leader(batch.tp)
        header = data_header(len(batch.rows), batch.producer_id, batch.sequence)
        is_open = self.transactions.is_open_member(header)
        before = partition.ends.log_end_offset
        end = partition.append(header, batch.rows, is_open_member=is_open)
        self.transactions.appended(batch.producer_id, batch.tp, partition.ends.log_end_offset - before)
        await self.loop.until(lambda: partition.is_durable(end))
        if partition.is_deleted:
            raise UnknownTopicIdError("deleted")

    async def sweep(self) -> None:
        """As the background does it."""
        async with self._alone("sweep"):
            await self.transactions.sweep()

    async def write_state(self) -> None:
        """A state of everything takes the place of the log. The disk may refuse a piece of it."""
        async with self._alone("state"):
            self._pieces_left = self.rng.choice((-1, -1, -1, -1, 0, 1, 2))
            await self.transactions.compact()

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
        self.transactions.leaders.forget(tp)
        return partition


@contextlib.contextmanager
def simulated(loop: SimulatedLoop, rng: random.Random) -> Iterator[None]:
    """The code's own waits are the loop's: between pieces of work, for a thread, for markers. Control batches are not encoded."""
    pieces = StateWriter.pieces

    async def pause(_: float) -> None:
        await loop.until()

    async def at_once(work: Callable[[], object]) -> object:
        return work()

    async def markers_durable(broker: SimulatedBroker, markers: Any) -> dict[int, WireError]:
        return await broker.markers_durable(markers)

    def encode(record: ControlRecord, _tp: object, timestamp_ms: int) -> ControlRecord:
        return record

    with (
        loop.running(),
        mock.patch.object(asyncio, "sleep", pause),
        mock.patch.object(asyncio, "to_thread", at_once),
        mock.patch.object(local_leaders, "wait_durable", markers_durable),
        mock.patch.object(local_leaders, "encode_control", encode),
        mock.patch.object(StateWriter, "pieces", lambda self, **groups: pieces(self, rng.choice((1, 2, 100, 100)), **groups)),
    ):
        yield
