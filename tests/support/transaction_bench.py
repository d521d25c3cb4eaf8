"""A real TransactionCoordinator with everything around it in memory: its log is a list of bytes, the open data of partitions are
counts. One call is one request, decided and applied; `finish` replaces the writing of markers. Members have short names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from brokerd.coordinator.loading import load
from brokerd.coordinator.markers import RecordFor, control_records
from brokerd.coordinator.records import Event, decode, record_of
from brokerd.coordinator.transaction_coordinator import PIECE_ENTRIES_MAX, TransactionCoordinator, TransactionLimits
from brokerd.coordinator.transactional_id import NO_VERSION, CommitDecision, Held, HeldData, Progress
from brokerd.ids import TopicIdPartition
from brokerd.sharing import Shares
from brokerd.wire.v1 import control_pb2
from brokerd.wire.v1.coordinator_log_pb2 import CommitCompleted, CommitPrepared, MemberOpened, MembersAborted, VersionRepeated
from brokerd.wire.v1.transaction_pb2 import (
    EndTransactionRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    TransactionMember,
    TransactionPartition,
    TransactionTotals,
)
from tests.support.clock import START_WALL_MS

ID = "spark-q"
PRINCIPAL = "User:alice"
TIMEOUT_MS = 900_000
AGE_MAX_MS = 4 * TIMEOUT_MS
FIRST_PRODUCER_ID = 100
NOTHING = TransactionTotals()


class CountedSlots(Shares):
    """Slots counted without regard to the principal."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit
        self.taken = 0

    def has_room(self, _principal: str, count: int) -> bool:
        """True if there are `count` free slots."""
        return self.taken + count <= self.limit

    def add(self, _principal: str, count: int) -> None:
        """Takes slots, or returns them (negative `count`)."""
        self.taken += count
        assert self.taken >= 0, "more slots are returned than were taken"


class Execution(NamedTuple):
    """The message fields that identify an execution and its run."""

    txn_version: int
    execution_id: str
    run_id: str


class EndRequest(NamedTuple):
    """A principal's decision about a transaction."""

    principal: str
    asked: EndTransactionRequest


def execution(version: int, execution_id: str = "e1", run_id: str = "r1") -> Execution:
    """An execution with short names."""
    return Execution(version, execution_id, run_id)


def totals(rows: int, hash_sum: int | None = None) -> TransactionTotals:
    """The totals of `rows` rows; `hash_sum` makes them those of other rows."""
    key_hash_sum = rows * 1_000 if hash_sum is None else hash_sum
    return TransactionTotals(rows=rows, key_bytes=rows * 4, value_bytes=rows * 10, key_hash_sum=key_hash_sum)


def commit_of(of: Execution, **fields: object) -> CommitPrepared:
    """A commit as recorded in the log."""
    return CommitPrepared(**of._asdict(), **fields)  # type: ignore[arg-type]


def partition(number: int, topic: str = "t") -> TopicIdPartition:
    """A partition of a topic whose id contains its name."""
    return TopicIdPartition(topic.encode().ljust(16, b"\0"), number)


def summed(partitions: Iterable[Mapping[int, HeldData]]) -> dict[int, HeldData]:
    """The open data of members, summed over partitions."""
    sums: dict[int, HeldData] = {}
    for data in partitions:
        for producer_id, found in data.items():
            known = sums.get(producer_id, HeldData(0, True))
            sums[producer_id] = HeldData(known.records + found.records, known.is_durable and found.is_durable)
    return sums


def known_of(coordinator: TransactionCoordinator) -> list[object]:
    """A coordinator's whole state, for comparison."""
    for principal in {state.principal for state in coordinator.states.values()} | {"nobody"}:
        owned = {name: state for name, state in coordinator.states.items() if state.principal == principal}
        assert coordinator.states_of(principal) == owned, "the index by principal"
    states = [
        (name, state.principal, state.last, state.timestamp, state.is_prepared, state.repeats, dict(state.members))
        for name, state in coordinator.states.items()
    ]
    return [sorted(states, key=lambda state: state[0]), set(coordinator.open_members)]


class TransactionBench:
    """See the module."""

    def __init__(self, *, ids: int = 100, members: int = 100) -> None:
        self.ids, self.members = CountedSlots(ids), CountedSlots(members)
        self.log: list[bytes] = []
        self.now_ms = 0
        self.next_producer_id = FIRST_PRODUCER_ID
        self.known: dict[str, MemberOpened] = {}  # by name: members that were given a producer id
        self.data: dict[TopicIdPartition, dict[int, HeldData]] = {}
        self.deleted: set[TopicIdPartition] = set()
        self.coordinator = self._new()

    def _new(self) -> TransactionCoordinator:
        return TransactionCoordinator(TransactionLimits(self.ids, self.members, 3_600_000, AGE_MAX_MS))

    def record(self, event: Event, name: str = ID, principal: str = PRINCIPAL) -> None:
        """Appends an event and applies it."""
        record = record_of(name, principal, START_WALL_MS + self.now_ms, event)
        self.log.append(record.SerializeToString())
        self.coordinator.apply(record, self.now_ms)

    def init(
        self, who: str, of: Execution, *, name: str = ID, principal: str = PRINCIPAL, timeout_ms: int = TIMEOUT_MS
    ) -> MemberOpened:
        """Opens a member, or returns the open one."""
        member_id = who.encode().ljust(16, b"\0")
        asked = InitProducerIdRequest(
            transactional_id=name, member_id=member_id, owner=f"task {who}", timeout_ms=timeout_ms, **of._asdict()
        )
        member = self.known[who] = self.coordinator.init(principal, asked, self.now_ms, self.next_producer_id)
        if member.producer_id == self.next_producer_id:
            self.next_producer_id += 1
            self.record(member, name, principal)
        return member

    def heartbeat(self, of: Execution, member_id: bytes, *, principal: str = PRINCIPAL) -> None:
        """A member's heartbeat."""
        asked = HeartbeatRequest(transactional_id=ID, txn_version=of.txn_version, execution_id=of.execution_id, member_id=member_id)
        self.coordinator.heartbeat(principal, asked, self.now_ms)

    def expires_at(self, who: str) -> int:
        """When the execution of an open member expires, in ms."""
        return self.coordinator.expires_at(self.coordinator.open_members[self.known[who].producer_id].execution)

    def wrote(self, who: str, records: int, to: TopicIdPartition | None = None, *, is_durable: bool = True) -> None:
        """Sets the number of a member's open records in a partition."""
        self.data.setdefault(to or partition(0), {})[self.known[who].producer_id] = HeldData(records, is_durable)

    def end_request(
        self,
        of: Execution,
        members: dict[str, int] | None = None,
        of_totals: TransactionTotals | None = None,
        *,
        name: str = ID,
        principal: str = PRINCIPAL,
        skipped: bool = False,
        is_one_write: bool = False,
    ) -> EndRequest:
        """A driver's decision; `members` maps names to reported record counts."""
        reports = [
            TransactionMember(producer_id=self.known[who].producer_id, records=records) for who, records in (members or {}).items()
        ]
        whole = totals(sum(report.records for report in reports)) if of_totals is None else of_totals
        asked = EndTransactionRequest(
            transactional_id=name,
            members=reports,
            partitions=[TransactionPartition(**tp._asdict()) for tp in (*self.data, *sorted(self.deleted))],
            totals=whole,
            any_skipped=skipped,
            one_write=is_one_write,
            **of._asdict(),
        )
        return EndRequest(principal, asked)

    def commit(self, request: EndRequest) -> CommitDecision:
        """Decides a driver's commit and applies it if new."""
        principal, asked = request
        held = summed(data for tp, data in self.data.items() if tp not in self.deleted)
        decided = self.coordinator.commit(principal, asked, Held(held, self.deleted))
        if isinstance(decided, VersionRepeated):
            self.record(decided, asked.transactional_id, principal)
            return self.commit(request)
        if isinstance(decided, CommitPrepared):
            self.record(decided, asked.transactional_id, principal)
        return decided

    def finish(self, name: str = ID) -> dict[TopicIdPartition, control_pb2.ControlRecord]:
        """Writes the markers of a prepared commit and completes it."""
        prepared = self.coordinator.states[name].prepared
        assert prepared is not None, "nothing is prepared"
        winners, losers = prepared.committed_producer_ids, prepared.aborted_producer_ids
        records = self._ended(control_records(name, prepared.txn_version, committed=winners, aborted=losers))
        self.record(CommitCompleted(txn_version=prepared.txn_version), name)
        return records

    def commit_all(self, request: EndRequest) -> CommitDecision:
        """Commits with markers; returns the response. Raises as the coordinator does."""
        decided = self.commit(request)
        while decided is not Progress.COMPLETE:
            self.finish(request.asked.transactional_id)
            decided = self.commit(request)
        return decided

    def abort(self, request: EndRequest) -> list[int]:
        """Aborts; returns the ended producer ids."""
        return self.end(self.coordinator.abort(*request), request.asked.transactional_id)

    def end(self, event: MembersAborted | None, name: str = ID) -> list[int]:
        """Applies the event of an abort or an expiry; returns the ended producer ids."""
        if event is None:
            return []
        self.record(event, name)
        self._ended(control_records(name, NO_VERSION, aborted=event.producer_ids))
        return list(event.producer_ids)

    def expire(self) -> list[int]:
        """Ends expired executions; returns the ended producer ids."""
        keys = self.coordinator.expired(self.now_ms)
        return [pid for key in keys for pid in self.end(self.coordinator.expire(key, self.now_ms), key.transactional_id)]

    def restart(self) -> None:
        """Loads a new coordinator from the log. Raises CorruptMessageError."""
        self.ids.taken = self.members.taken = 0
        self.coordinator = load(map(decode, self.log), 0, self._new, self.now_ms)

    def compact(self) -> None:
        """Replaces the log by a state."""
        self.log = [value for piece in self.state_pieces() for value in piece]

    def state_pieces(self, entries_max: int = PIECE_ENTRIES_MAX) -> Iterator[list[bytes]]:
        """The batches of a state, in order."""
        with self.coordinator.writing_state(START_WALL_MS + self.now_ms) as state:
            for piece in state.pieces(entries_max):
                yield [record.SerializeToString() for record in piece]

    def _ended(self, record_for: RecordFor) -> dict[TopicIdPartition, control_pb2.ControlRecord]:
        made = {tp: record for tp, data in self.data.items() if (record := record_for(data)) is not None}
        for tp, record in made.items():
            for producer_id in (*record.committed_producer_ids, *record.aborted_producer_ids):
                del self.data[tp][producer_id]
        return made
