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
from brokerd.transaction.log_records import Record, decode_entry, encode_entry
from brokerd.transaction.markers import RecordFor, abort_records, commit_records
from brokerd.transaction.model import (
    AlreadyCommitted,
    CommitCompleted,
    CommitPrepared,
    EndRequest,
    Event,
    Execution,
    Held,
    HeldBack,
    HeldData,
    InitMember,
    LogEntry,
    MembersAborted,
    Opened,
    Prepare,
    Repeat,
)
from brokerd.wire.v1 import control_pb2
from tests.support.clock import START_WALL_MS
from tests.support.transaction_bench import CountedSlots, summed
from tests.support.transaction_partition import SimulatedPartition

Condition = Callable[[], bool]
Steps = Generator[Condition, None, object]  # what a request waits for, and its answer
AGE_MAX_MS = 6_000
_MANY = 10_000


class Batch(NamedTuple):
    """A member's batch on its way."""

    tp: TopicIdPartition
    producer_id: int
    sequence: int
    rows: tuple[int, ...]


class Heartbeat(NamedTuple):
    """A member's sign of life."""

    transactional_id: str
    principal: str
    execution: Execution
    member_id: bytes


class Abort(NamedTuple):
    """A driver's ABORT."""

    asked: EndRequest


class Done(NamedTuple):
    """Answer of what has nothing else to say."""


Request = InitMember | Batch | EndRequest | Abort | Heartbeat


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
        self.coordinator = Coordinator(Limits(CountedSlots(_MANY), CountedSlots(_MANY), 3_600_000, AGE_MAX_MS))

    # --- life

    def start(self) -> Steps:
        """Recovers; serves once that is done."""
        self.coordinator.load((decode_entry(data) for batch in self.disk.log for data in batch), self.now_ms)
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
        if isinstance(request, InitMember):
            return self.init(request)
        if isinstance(request, Batch):
            return self.produce(request)
        if isinstance(request, EndRequest):
            return self.commit(request)
        if isinstance(request, Abort):
            return self.abort(request.asked)
        return self.heartbeat(request)

    # --- the log

    def record(self, name: str, event: Event) -> None:
        """Appends an event and applies it."""
        entry = LogEntry(name, "User:alice", START_WALL_MS, event)
        self.disk.log.append((encode_entry(entry),))
        self._witness(name, event)
        self.coordinator.apply(entry, self.now_ms)

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
        with self.coordinator.snapshot(START_WALL_MS) as state:
            for number, piece in enumerate(state.pieces(self.rng.choice((1, 2, 100, 100)))):
                if number == refused_at:
                    self._is_writing_state = False
                    return StorageError("no space")
                self.append_piece(piece)
                yield lambda: True  # others come between
        self._is_writing_state = False
        self._states.append((begin, len(self.disk.log)))
        return Done()

    def append_piece(self, piece: list[Record]) -> None:
        """A piece of a state is one batch."""
        self.disk.log.append(tuple(record.value for record in piece))

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

    def held(self, asked: EndRequest) -> Held:
        """The open data of the listed members, and which of the partitions that their driver names are deleted."""
        listed = [member.producer_id for member in asked.members]
        missing = [tp for tp in asked.partitions if tp not in self.disk.partitions]
        return Held(summed(self.open_data(listed).values()), missing)

    def records(self, record_for: RecordFor, producer_ids: Iterable[int]) -> dict[TopicIdPartition, control_pb2.ControlRecord]:
        """The control records for the partitions that have data of these members."""
        data = self.open_data(producer_ids)
        return {tp: record for tp, found in data.items() if (record := record_for(found)) is not None}

    def held_back(self, producer_ids: Collection[int]) -> list[HeldBack]:
        """Where the data of these members begins, by partition."""
        found = {tp: partition.core.first_open_offset(producer_ids) for tp, partition in self.disk.partitions.items()}
        return [HeldBack(tp, first_offset) for tp, first_offset in found.items() if first_offset is not None]

    def hold_back(self, name: str, held_back: Iterable[HeldBack]) -> None:
        """Readers do not pass these offsets until the commit is released."""
        for tp, first_offset in held_back:
            if tp in self.disk.partitions:
                self.disk.partitions[tp].core.ends.hold_back(name, first_offset)

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
        for tp, _ in held_back:
            if tp in self.disk.partitions:
                self.disk.partitions[tp].core.ends.release(name)

    # --- requests

    def init(self, asked: InitMember) -> Steps:
        """InitProducerId of a member."""
        try:
            decided = self.coordinator.init(asked, self.now_ms, self.disk.next_producer_id)
        except WireError as error:
            yield self.log_durable()
            return error
        if isinstance(decided, Opened):
            self.record(asked.transactional_id, decided.event)
            self.disk.next_producer_id += 1
        yield self.log_durable()
        return decided.member

    def produce(self, batch: Batch) -> Steps:
        """A member's batch: membership, sequence and append are one step."""
        partition = self.disk.partitions.get(batch.tp)
        if partition is None:
            return UnknownTopicIdError("deleted")
        is_open = self.coordinator.is_open(batch.producer_id, 0)
        try:
            end = partition.append(batch.producer_id, batch.sequence, batch.rows, is_open_member=is_open)
        except WireError as error:
            return error
        self.coordinator.renew(batch.producer_id, self.now_ms)
        yield lambda: partition.is_durable(end)
        return UnknownTopicIdError("deleted") if partition.is_deleted else Done()

    def heartbeat(self, beat: Heartbeat) -> Steps:
        """A sign of life."""
        try:
            self.coordinator.heartbeat(*beat, self.now_ms)
        except WireError as error:
            yield self.log_durable()
            return error
        return Done()

    def commit(self, asked: EndRequest) -> Steps:
        """A driver's COMMIT."""
        name = asked.transactional_id
        yield from self.lock(name)
        try:
            while True:
                decided = self.coordinator.commit(asked, self.held(asked))
                if isinstance(decided, Repeat):
                    self.record(name, decided.event)
                    continue
                if isinstance(decided, AlreadyCommitted):
                    yield self.log_durable()
                    return decided
                if isinstance(decided, Prepare):
                    self.prepare(name, decided.event)
                yield from self.finish(name)
        except WireError as error:
            yield self.log_durable()
            return error
        finally:
            self._locked.discard(name)

    def prepare(self, name: str, event: CommitPrepared) -> None:
        """Records a commit with what it holds back."""
        held_back = self.held_back((*event.committed_ids, *event.aborted_ids))
        self.record(name, event._replace(held_back=held_back))
        self.hold_back(name, held_back)

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
        records = self.records(commit_records(name, prepared), (*prepared.committed_ids, *prepared.aborted_ids))
        markers = self._markers.setdefault(name, {})
        self.write_markers(records, markers)
        yield self.markers_durable(markers)
        self.release(name, prepared.held_back)
        del self._markers[name]
        self.record(name, CommitCompleted(prepared.execution.version))

    def abort(self, asked: EndRequest) -> Steps:
        """A driver's ABORT."""
        try:
            events = self.coordinator.abort(asked)
        except WireError as error:
            yield self.log_durable()
            return error
        yield from self.end(asked.transactional_id, events)
        return Done()

    def end(self, name: str, events: tuple[MembersAborted, ...]) -> Generator[Condition, None, None]:
        """Members end without a commit."""
        for event in events:
            self.record(name, event)
        yield self.log_durable()
        for event in events:
            self.void(name, event.producer_ids)

    def void(self, name: str, producer_ids: Collection[int]) -> None:
        """Markers for members that ended for good. What cannot be written now, the sweep writes."""
        try:
            self.write_markers(self.records(abort_records(name, producer_ids), producer_ids), {})
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


__all__ = ["Abort", "Batch", "CommitPrepared", "Disk", "Done", "Heartbeat", "Request", "SimulatedBroker", "Steps"]
