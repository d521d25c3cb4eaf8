"""A broker with transactions, in memory: the real coordinator and the real partitions' cores, and the order of durable steps.

Each request is a generator that yields what it waits for, so that anything may happen in between. A crash drops all of them, cuts
every log at any point that is not durable, and begins again with what is left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Generator, Iterable
from typing import NamedTuple

from brokerd.errors import StorageError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.transaction.coordinator import Coordinator, Limits
from brokerd.transaction.loading import load
from brokerd.transaction.markers import RecordFor, control_records
from brokerd.transaction.records import Event, decode, record_of
from brokerd.transaction.transactional_id import NO_VERSION, Held, HeldData, Progress
from brokerd.wire.v1 import control_pb2
from brokerd.wire.v1.transaction_log_pb2 import (
    CommitCompleted,
    CommitPrepared,
    HeldBack,
    MembersAborted,
    TransactionLogRecord,
    VersionRepeated,
)
from brokerd.wire.v1.transaction_pb2 import (
    TRANSACTION_DECISION_COMMIT,
    EndTransactionRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
)
from tests.support.clock import START_WALL_MS
from tests.support.transaction_bench import CountedSlots, summed
from tests.support.transaction_partition import SimulatedPartition

Condition = Callable[[], bool]
Steps = Generator[Condition, None, object]  # what a request waits for, and its answer
AGE_MAX_MS = 6_000
_MANY = 10_000
ALICE = "User:alice"


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
        self.log: list[tuple[bytes, ...]] = []  # of the transactions, batch by batch; one that is removed is empty
        self.durable = 0  # so many of them
        self.next_producer_id = 100

    def crash(self, rng: random.Random) -> None:
        """Loses some of what is not durable."""
        del self.log[rng.randint(self.durable, len(self.log)) :]
        self.durable = len(self.log)
        for partition in self.partitions.values():
            partition.crash(rng)


class SimulatedBroker:
    """See the module. Two witnesses are told of every event that is recorded, and of every marker that is written."""

    def __init__(
        self,
        disk: Disk,
        rng: random.Random,
        now_ms: int,
        witness: Callable[[str, Event], None],
        marker_witness: Callable[[control_pb2.ControlRecord], None],
    ) -> None:
        self.disk = disk
        self.rng = rng
        self.now_ms = now_ms
        self.is_serving = False
        self.fails_markers = False
        self._witness = witness
        self._marker_witness = marker_witness
        self._locked: set[str] = set()
        self._markers: dict[str, dict[TopicIdPartition, int]] = {}  # of commits that are not finished
        self._is_writing_state = False
        self._states: list[tuple[int, int]] = []  # where whole states begin and end in the log, of which none is durable yet
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> Coordinator:
        """One that knows nothing."""
        return Coordinator(Limits(CountedSlots(_MANY), CountedSlots(_MANY), 3_600_000, AGE_MAX_MS))

    # --- life

    def start(self) -> Steps:
        """Recovers; serves once that is done."""
        self.coordinator = load((decode(data) for batch in self.disk.log for data in batch), self.new_coordinator, self.now_ms)
        self.hold_back_prepared()
        yield from self.finish_prepared()
        yield from self.void_unknown()
        self.is_serving = True
        return Done()

    def hold_back_prepared(self) -> None:
        """Markers that survived the crash would count at once, and readers see one part of a commit without the rest."""
        for name, prepared in self.coordinator.prepared():
            self.hold_back(name, prepared.held_back)

    def handle(self, request: Request) -> Steps:
        """The steps of a request."""
        if isinstance(request, InitProducerIdRequest):
            return self.init(request)
        if isinstance(request, Batch):
            return self.produce(request)
        if isinstance(request, HeartbeatRequest):
            return self.heartbeat(request)
        return self.commit(request) if request.decision == TRANSACTION_DECISION_COMMIT else self.abort(request)

    # --- the log

    def record(self, name: str, event: Event) -> None:
        """Appends an event and applies it."""
        record = record_of(name, ALICE, START_WALL_MS, event)
        self.disk.log.append((record.SerializeToString(),))
        self._witness(name, event)
        self.coordinator.apply(record, self.now_ms)

    def log_durable(self) -> Condition:
        """All that is in the log now."""
        end, disk = len(self.disk.log), self.disk
        return lambda: disk.durable >= end

    def flush_log(self) -> None:
        """Some more of the log becomes durable."""
        self.disk.durable = self.rng.randint(self.disk.durable, len(self.disk.log))
        self.retire_log()

    def retire_log(self) -> None:
        """Drops the log before a durable state, at times."""
        for begin, end in self._states:
            if end <= self.disk.durable and self.rng.random() < 0.5:
                self.disk.log[:begin] = [()] * begin
                self._states = [state for state in self._states if state[0] > begin]
                return

    def write_state(self) -> Steps:
        """A state of everything, piece by piece. A disk may refuse one of them."""
        if self._is_writing_state:
            return Done()
        self._is_writing_state = True
        refused_at = self.rng.choice((-1, -1, -1, -1, 0, 1, 2))
        begin = len(self.disk.log)
        with self.coordinator.writing_state(START_WALL_MS) as state:
            for number, piece in enumerate(state.pieces(self.rng.choice((1, 2, 100, 100)))):
                if number == refused_at:
                    self._is_writing_state = False
                    return StorageError("no space")
                self.append_piece(piece)
                yield lambda: True  # others come between
        self._is_writing_state = False
        self._states.append((begin, len(self.disk.log)))
        return Done()

    def append_piece(self, piece: list[TransactionLogRecord]) -> None:
        """A piece of a state is one batch."""
        self.disk.log.append(tuple(record.SerializeToString() for record in piece))

    # --- partitions

    def open_data(self, producer_ids: Iterable[int]) -> dict[TopicIdPartition, dict[int, HeldData]]:
        """Open data of these members, by partition."""
        data: dict[TopicIdPartition, dict[int, HeldData]] = {}
        wanted = set(producer_ids)
        for tp, partition in self.disk.partitions.items():
            found = {
                pid: HeldData(open_data.records, open_data.is_durable)
                for pid in partition.core.open_producer_ids()
                if pid in wanted and (open_data := partition.core.open_data(pid))
            }
            if found:
                data[tp] = found
        return data

    def held(self, asked: EndTransactionRequest) -> Held:
        """The open data of the listed members, and which of the partitions that their driver names are deleted."""
        listed = [member.producer_id for member in asked.members]
        named = [TopicIdPartition(one.topic_id, one.partition) for one in asked.partitions]
        missing = [tp for tp in named if tp not in self.disk.partitions]
        return Held(summed(self.open_data(listed).values()), missing)

    def records(self, record_for: RecordFor, producer_ids: Iterable[int]) -> dict[TopicIdPartition, control_pb2.ControlRecord]:
        """The control records for the partitions that have data of these members."""
        data = self.open_data(producer_ids)
        return {tp: record for tp, found in data.items() if (record := record_for(found)) is not None}

    def held_back(self, producer_ids: Collection[int]) -> list[HeldBack]:
        """Where the data of these members begins, by partition."""
        found = {tp: partition.core.first_open_offset(producer_ids) for tp, partition in self.disk.partitions.items()}
        return [
            HeldBack(**tp._asdict(), first_offset=first_offset) for tp, first_offset in found.items() if first_offset is not None
        ]

    def hold_back(self, name: str, held_back: Iterable[HeldBack]) -> None:
        """Readers do not pass these offsets until the commit is released."""
        for one in held_back:
            partition = self.disk.partitions.get(TopicIdPartition(one.topic_id, one.partition))
            if partition is not None:
                partition.core.ends.hold_back(name, one.first_offset)

    def write_markers(
        self, records: dict[TopicIdPartition, control_pb2.ControlRecord], markers: dict[TopicIdPartition, int]
    ) -> None:
        """A control batch for each partition, noted in `markers`. Raises StorageError in the middle of it, at times."""
        for tp, record in records.items():
            if self.fails_markers and self.rng.random() < 0.3:
                raise StorageError(f"{tp}: no space")
            partition = self.disk.partitions.get(tp)
            if partition is not None:
                self._marker_witness(record)
                markers[tp] = partition.append_marker(record)

    def markers_durable(self, markers: dict[TopicIdPartition, int]) -> Condition:
        """All of them are, or their topics deleted."""
        waited = [(self.disk.partitions[tp], offset) for tp, offset in markers.items() if tp in self.disk.partitions]
        return lambda: all(partition.is_durable(offset + 1) for partition, offset in waited)

    def release(self, name: str, held_back: Iterable[HeldBack]) -> None:
        """Its markers count, in one step."""
        for one in held_back:
            partition = self.disk.partitions.get(TopicIdPartition(one.topic_id, one.partition))
            if partition is not None:
                partition.core.ends.release(name)

    # --- requests

    def init(self, asked: InitProducerIdRequest) -> Steps:
        """InitProducerId of a member."""
        try:
            member = self.coordinator.init(ALICE, asked, self.now_ms, self.disk.next_producer_id)
        except WireError as error:
            yield self.log_durable()
            return error
        if member.producer_id not in self.coordinator.open_members:
            self.record(asked.transactional_id, member)
            self.disk.next_producer_id += 1
        yield self.log_durable()
        return member

    def produce(self, batch: Batch) -> Steps:
        """A member's batch: membership, sequence and append are one step."""
        partition = self.disk.partitions.get(batch.tp)
        if partition is None:
            return UnknownTopicIdError("deleted")
        is_open = self.is_open(batch.producer_id)
        try:
            end = partition.append(batch.producer_id, batch.sequence, batch.rows, is_open_member=is_open)
        except WireError as error:
            return error
        self.coordinator.renew(batch.producer_id, self.now_ms)
        yield lambda: partition.is_durable(end)
        return UnknownTopicIdError("deleted") if partition.is_deleted else Done()

    def is_open(self, producer_id: int) -> bool:
        """True if this is an open member."""
        return producer_id in self.coordinator.open_members

    def heartbeat(self, beat: HeartbeatRequest) -> Steps:
        """A sign of life."""
        try:
            self.coordinator.heartbeat(ALICE, beat, self.now_ms)
        except WireError as error:
            yield self.log_durable()
            return error
        return Done()

    def commit(self, asked: EndTransactionRequest) -> Steps:
        """A driver's COMMIT."""
        name = asked.transactional_id
        yield from self.lock(name)
        try:
            while True:
                decided = self.coordinator.commit(ALICE, asked, self.held(asked))
                if isinstance(decided, VersionRepeated):
                    self.record(name, decided)
                    continue
                if decided is Progress.COMPLETE:
                    yield self.log_durable()
                    return Done()
                if isinstance(decided, CommitPrepared):
                    self.prepare(name, decided)
                yield from self.finish(name)
        except WireError as error:
            yield self.log_durable()
            return error
        finally:
            self._locked.discard(name)

    def prepare(self, name: str, event: CommitPrepared) -> None:
        """Records a commit with what it holds back."""
        event.held_back.extend(self.held_back((*event.committed_producer_ids, *event.aborted_producer_ids)))
        self.record(name, event)
        self.hold_back(name, event.held_back)

    def lock(self, name: str) -> Generator[Condition, None, None]:
        """Waits for the id's lock, and takes it."""
        while name in self._locked:
            yield lambda: name not in self._locked
        self._locked.add(name)

    def finish(self, name: str) -> Generator[Condition, None, None]:
        """The markers of what is prepared; the lock is held. Raises StorageError."""
        state = self.coordinator.states.get(name)
        if state is None or state.prepared is None:
            return
        prepared = state.prepared
        yield self.log_durable()
        winners, losers = prepared.committed_producer_ids, prepared.aborted_producer_ids
        records = self.records(control_records(name, prepared.txn_version, committed=winners, aborted=losers), (*winners, *losers))
        markers = self._markers.setdefault(name, {})
        self.write_markers(records, markers)
        yield self.markers_durable(markers)
        self.release(name, prepared.held_back)
        del self._markers[name]
        self.record(name, CommitCompleted(txn_version=prepared.txn_version))

    def abort(self, asked: EndTransactionRequest) -> Steps:
        """A driver's ABORT."""
        try:
            event = self.coordinator.abort(ALICE, asked)
        except WireError as error:
            yield self.log_durable()
            return error
        yield from self.end(asked.transactional_id, event)
        return Done()

    def end(self, name: str, event: MembersAborted | None) -> Generator[Condition, None, None]:
        """Members end without a commit."""
        if event is not None:
            self.record(name, event)
        yield self.log_durable()
        if event is not None:
            self.void(name, event.producer_ids)

    def void(self, name: str, producer_ids: Collection[int]) -> None:
        """Markers for members that ended for good. What cannot be written now, the sweep writes."""
        try:
            self.write_markers(self.records(control_records(name, NO_VERSION, aborted=producer_ids), producer_ids), {})
        except StorageError:
            return

    # --- time

    def expire(self) -> Steps:
        """Executions that were silent for too long."""
        for key in self.coordinator.expired(self.now_ms):
            yield lambda: True  # others come between
            yield from self.end(key.transactional_id, self.coordinator.expire(key, self.now_ms))
        return Done()

    def sweep(self) -> Steps:
        """Finishes commits that are prepared, and voids data that nobody answers for."""
        yield from self.finish_prepared()
        yield from self.void_unknown()
        return Done()

    def finish_prepared(self) -> Generator[Condition, None, None]:
        """Commits whose markers are missing."""
        for name, _ in self.coordinator.prepared():
            yield from self.lock(name)
            try:
                yield from self.finish(name)
            except StorageError:
                continue
            finally:
                self._locked.discard(name)

    def void_unknown(self) -> Generator[Condition, None, None]:
        """Data of members that are neither open nor prepared."""
        found = {pid for partition in self.disk.partitions.values() for pid in partition.core.open_producer_ids()}
        unknown = self.coordinator.presumed_aborted(found)
        if unknown:
            yield self.log_durable()
            self.void("", unknown)


__all__ = ["Batch", "CommitPrepared", "Disk", "Done", "Request", "SimulatedBroker", "Steps"]
