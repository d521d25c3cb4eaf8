"""The promises of transactions, checked against all events recorded, all answers given, and the contents of the logs.

`Answers`, for any kind of partition: answers agree with the recorded events. `Promises`, for partitions that are lists:

- Of a committed version, all winners' rows are visible or none, and no other rows. Rows that a reader has seen stay.
- No version is committed twice, and versions only increase. Of all writes of a run, only one is told that its rows are committed.
- No answer reveals anything that a crash could undo.
- A member ends only by its execution's abort or expiry, or by a commit of its version or a newer one.
- Once all is quiet, nothing holds back a reader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from brokerd.coordinator.records import Event
from brokerd.coordinator.transactional_id import Execution as NamesExecution
from brokerd.coordinator.transactional_id import ExecutionOfRun
from brokerd.errors import (
    AlreadyCommittedError,
    Fate,
    InvalidTxnStateError,
    ProducerFencedError,
    ReplayMismatchError,
    TxnAbortedError,
    TxnConflictError,
    WireError,
)
from brokerd.wire.v1 import control_pb2
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared, MemberOpened, MembersAborted, VersionRepeated
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, HeartbeatRequest, InitProducerIdRequest
from tests.support.simulated_transactions import AGE_MAX_MS, Batch, Done, Request
from tests.support.transaction_actors import TIMEOUT_MS, Driver, is_abort, is_commit, is_sign, totals_of
from tests.support.transaction_bench import Execution
from tests.support.transaction_partition import SimulatedPartition, check_is_readable

if TYPE_CHECKING:
    from tests.support.transaction_simulation import Simulation


class Recorded(NamedTuple):
    """An event and its position in the log."""

    at: int
    event: Event


class World(Protocol):
    """What the promises need of their simulation."""

    node_count: int
    rash_ids: set[int]

    @property
    def now_ms(self) -> int:
        """The simulation's clock."""


class Answers(ABC):
    """Checks recorded events and answers against each other and against earlier ones."""

    def __init__(self, world: World) -> None:
        self._world: World = world
        self.commits: dict[tuple[str, int], Recorded] = {}  # by transactional id and version
        self.repeats: list[tuple[int, str, Execution]] = []  # (log position, transactional id, execution)
        self.told_runs: dict[tuple[str, int, str], str] = {}  # each run's execution that learned that its rows are committed
        self.opened: dict[int, tuple[int, str, MemberOpened]] = {}  # by producer id: (log position, transactional id, event)
        self.ended: dict[int, int] = {}  # by producer id: log position
        self.asked_to_abort: set[int] = set()
        self.signs: dict[tuple[str, int, str], int] = {}  # last sign of life in ms, by execution
        self.begun: dict[tuple[str, int, str], int] = {}  # when an execution's first member was opened, in ms
        self.told_ids: dict[tuple[str, bytes], int] = {}
        self.started_ms = 0
        self._taken_back: set[int] = set()  # members whose end was lost in a crash
        self._winners: dict[int, tuple[str, int]] = {}
        self._visible: set[tuple[str, int]] = set()  # commits of which a reader has seen a row
        self.has_state = False

    # --- recorded

    def recorded(self, name: str, event: Event, at_ms: int | None = None) -> None:
        """An event is in the log, since `at_ms` or now."""
        index, since_ms = self._newest(), self._world.now_ms if at_ms is None else at_ms
        if isinstance(event, MemberOpened):
            assert event.producer_id not in self.opened, f"producer id {event.producer_id} is given twice"
            self.opened[event.producer_id] = (index, name, event)
            self._add_sign(key_of(name, event), since_ms)
            self.begun.setdefault(key_of(name, event), since_ms)
        elif isinstance(event, MembersAborted):
            for producer_id in event.producer_ids:
                self._check_may_end(name, producer_id, since_ms)
                self.ended[producer_id] = index
        elif isinstance(event, CommitPrepared):
            self._prepared(name, event, index)
        elif isinstance(event, VersionRepeated):
            self.repeats.append((index, name, _execution(event)))

    def _check_may_end(self, name: str, producer_id: int, at_ms: int) -> None:
        _, owner, member = self.opened[producer_id]
        assert owner == name
        silent_ms = at_ms - max(self._last_sign_ms(key_of(name, member), at_ms), self.started_ms)
        age_ms = at_ms - max(self.begun[key_of(name, member)], self.started_ms)
        is_expired = silent_ms >= TIMEOUT_MS or age_ms >= AGE_MAX_MS
        assert producer_id in self.asked_to_abort or is_expired, f"member {producer_id} ends without a reason"
        assert producer_id not in self.ended, f"member {producer_id} ends twice"

    def _last_sign_ms(self, key: tuple[str, int, str], _at_ms: int) -> int:
        """When the coordinator that decided at `_at_ms` last had a sign of life of the execution."""
        return self.signs[key]

    def _prepared(self, name: str, event: CommitPrepared, index: int) -> None:
        version = event.txn_version
        newest = max((known for owner, known in self.commits if owner == name), default=-1)
        assert version > newest, f"version {version} of id {name} is committed after version {newest}"
        for producer_id in (*event.committed_producer_ids, *event.aborted_producer_ids):
            assert producer_id not in self.ended, f"member {producer_id} ends twice"
            _, owner, member = self.opened[producer_id]
            assert owner == name
            assert member.txn_version <= version, "a commit ends a member of a newer version"
            self.ended[producer_id] = index
        for producer_id, (_, owner, member) in self.opened.items():
            is_over = owner == name and member.txn_version <= version
            assert not is_over or producer_id in self.ended, f"member {producer_id} outlives the commit of its version"
        for producer_id in event.committed_producer_ids:
            self._winners[producer_id] = (name, version)
        self.commits[name, version] = Recorded(index, event)

    def _has_ended(self, producer_id: int) -> bool:
        """True if the member's end is durable."""
        return producer_id in self.ended and self._is_durable(self.ended[producer_id])

    @abstractmethod
    def _newest(self) -> int:
        """The log position of the event being recorded."""

    @abstractmethod
    def _is_durable(self, index: int) -> bool:
        """True if no crash can remove the event at this position."""

    @abstractmethod
    def _check_markers(self, committed: CommitPrepared) -> None:
        """Checks the markers of an answered commit."""

    # --- answers

    def told(self, request: Request, answer: object, asked_ms: int) -> None:
        """The broker answers a request: the answer must reveal nothing that a crash could undo."""
        if isinstance(request, InitProducerIdRequest):
            self._told_member(request, answer)
        elif isinstance(request, HeartbeatRequest) and isinstance(answer, InvalidTxnStateError):
            # After a crash, a member may reopen under another producer id while an older heartbeat is being answered.
            begun = [pid for pid, (_, _, member) in self.opened.items() if member.member_id == request.member_id]
            assert any(self._has_ended(pid) for pid in begun), "told of an end that is not durable"
        elif isinstance(request, Batch) and isinstance(answer, InvalidTxnStateError):
            self._check_refused(request.producer_id)
        elif is_abort(request) and isinstance(answer, Done):
            for member in request.members:
                assert self._has_ended(member.producer_id), "an abort is answered that is not durable"
        if isinstance(request, InitProducerIdRequest) or is_commit(request):
            self._told_version(request, answer)
        if isinstance(answer, TxnAbortedError):
            assert isinstance(request, EndTransactionRequest)
            gone = [one for one in request.members if self._may_be_gone(one.producer_id)]
            assert gone, f"{_execution(request)} cannot commit, but its members are open"
        if is_sign(request, answer):
            self._sign(request, asked_ms)

    def _may_be_gone(self, producer_id: int) -> bool:
        """True if a member has ended or may lack data."""
        return producer_id in self.ended or producer_id in self._world.rash_ids

    def _check_refused(self, producer_id: int) -> None:
        """A member's data is refused, so the member must have ended. With several nodes, its node may be killed while the answer is
        under way, which undoes an end that was not durable."""
        ended = self.ended if self._world.node_count == 1 else self._taken_back | self.ended.keys()
        assert producer_id in ended, f"data of member {producer_id} is refused, but it is open"

    def _told_member(self, request: InitProducerIdRequest, answer: object) -> None:
        key = (request.transactional_id, request.member_id)
        known = self.told_ids.get(key)
        if isinstance(answer, MemberOpened):
            index, _, _ = self.opened[answer.producer_id]
            assert self._is_durable(index), "a member is told its id before that is durable"
            if known is not None and known != answer.producer_id:
                is_late = self._world.node_count > 1 and answer.producer_id in self.ended  # under way when that member ended
                assert is_late or known in self.ended, "one open member has two producer ids"
                assert self.has_state, "a member that ended begins again"
                if is_late:
                    return
            self.told_ids[key] = answer.producer_id
        elif isinstance(answer, InvalidTxnStateError):
            lives = [self._has_ended(pid) for pid, (_, _, one) in self.opened.items() if one.member_id == request.member_id]
            # With several nodes, a coordinator that has forgotten the end may open the member while the answer is under way.
            is_late = self._world.node_count > 1 and self.has_state and any(lives)
            assert all(lives) or is_late, "told of an end that is not durable"

    def _told_version(self, request: InitProducerIdRequest | EndTransactionRequest, answer: object) -> None:
        name, execution = request.transactional_id, _execution(request)
        version = execution.txn_version
        recorded = self.commits.get((name, version))
        if isinstance(answer, ProducerFencedError):
            newer = [known for (owner, at), known in self.commits.items() if owner == name and at > version]
            assert any(self._is_durable(known.at) for known in newer), "fenced by nothing that is durable"
            if isinstance(request, EndTransactionRequest):
                self._check_fenced(request, recorded, answer)
        elif isinstance(answer, Done | AlreadyCommittedError | ReplayMismatchError | TxnConflictError):
            assert recorded is not None, f"version {version} is said to be committed"
            assert self._is_durable(recorded.at), "told of a commit that is not durable"
            assert isinstance(recorded.event, CommitPrepared)
            if not (isinstance(answer, TxnConflictError) and self._is_second_of_a_replay(name, execution)):
                self._check_verdict(recorded.event, execution, answer, request)
            if isinstance(answer, Done):
                self._check_markers(recorded.event)
            if isinstance(answer, Done) and isinstance(request, EndTransactionRequest) and request.totals.rows:
                first = self.told_runs.setdefault((name, version, execution.run_id), execution.execution_id)
                assert first == execution.execution_id, f"two writes of one run are told that their rows are committed: {execution}"

    def _check_fenced(self, asked: EndTransactionRequest, recorded: Recorded | None, error: ProducerFencedError) -> None:
        """With so few versions, all are remembered: the error states the fate, and an execution that has committed is never
        fenced."""
        assert error.fate is Fate.NOT_APPENDED, f"{_execution(asked)}: whether it was committed is not known"
        if recorded is not None:
            assert isinstance(recorded.event, CommitPrepared)
            assert _execution(recorded.event) != _execution(asked), f"{_execution(asked)} is fenced, but it is committed"

    def _is_second_of_a_replay(self, name: str, execution: Execution) -> bool:
        """True for another write of a run that has durably repeated this version."""
        return any(
            owner == name and known[::2] == execution[::2] and known != execution and self._is_durable(index)
            for index, owner, known in self.repeats
        )

    def _check_verdict(self, committed: CommitPrepared, execution: Execution, answer: object, request: object) -> None:
        winner = _execution(committed)
        is_second = execution.run_id == winner.run_id and execution.execution_id != winner.execution_id
        if isinstance(request, EndTransactionRequest):
            is_equal = request.totals == committed.totals
            if is_second and request.totals.rows:
                expected: type = TxnConflictError
            else:
                expected = Done if is_second or is_equal else ReplayMismatchError
        else:
            expected = TxnConflictError if is_second else AlreadyCommittedError
        assert isinstance(answer, expected), f"{execution} is answered with {answer!r} after {committed}"

    def _sign(self, request: Request, asked_ms: int) -> None:
        if isinstance(request, Batch) and self._world.node_count > 1:
            return  # leaders do not inform the coordinator; heartbeats do
        if isinstance(request, Batch):
            known = self.opened.get(request.producer_id)
            key = key_of(known[1], known[2]) if known is not None else None
        else:
            assert isinstance(request, InitProducerIdRequest | HeartbeatRequest)
            key = key_of(request.transactional_id, request)
        if key is not None:
            self._add_sign(key, asked_ms)

    def _add_sign(self, key: tuple[str, int, str], at_ms: int) -> None:
        self.signs[key] = max(self.signs.get(key, 0), at_ms)


class Promises(Answers):
    """The promises of a broker whose logs are lists; see the module."""

    def __init__(self, world: Simulation) -> None:
        super().__init__(world)
        self._lists = world

    def _newest(self) -> int:
        return len(self._lists.disk.log) - 1

    def _is_durable(self, index: int) -> bool:
        return index < self._lists.disk.durable

    def marked(self, record: control_pb2.ControlRecord) -> None:
        """A marker is written: its members' ends must be durable. Members never opened durably have no data."""
        for producer_id in (*record.committed_producer_ids, *record.aborted_producer_ids):
            assert self._has_ended(producer_id), f"a marker for member {producer_id}, whose end is not durable"

    def crashed(self) -> None:
        """Forgets events that are no longer in the log."""
        end = len(self._lists.disk.log)
        for commit in [key for key, recorded in self.commits.items() if recorded.at >= end]:
            del self.commits[commit]
            assert commit not in self._visible, "what is visible is lost"
        self.repeats = [repeat for repeat in self.repeats if repeat[0] < end]
        self._taken_back |= {pid for pid, index in self.ended.items() if index >= end}
        self.ended = {pid: index for pid, index in self.ended.items() if index < end}
        self._winners = {pid: commit for pid, commit in self._winners.items() if commit in self.commits}
        self.opened = {pid: known for pid, known in self.opened.items() if known[0] < end}
        self.started_ms = self._world.now_ms

    def _check_markers(self, committed: CommitPrepared) -> None:
        """Checks that all markers of an answered commit are durable."""
        ended = {*committed.committed_producer_ids, *committed.aborted_producer_ids}
        for partition in self._lists.disk.partitions.values():
            markers = [stored for stored in partition.log if stored.marker is not None and ended & set(stored.marker.producer_ids)]
            late = [stored for stored in markers if stored.header.next_offset > partition.ends.high_watermark]
            assert not late, f"{partition.tp}: a commit is answered before its marker is durable"

    def told_committed(self, driver: Driver) -> None:
        """A driver learns that its version is committed: checks that all its rows are there."""
        commit = driver.name, driver.version
        recorded = self.commits[commit]
        event = recorded.event
        assert isinstance(event, CommitPrepared)
        if driver.rows:
            assert event.totals == totals_of(driver.rows)
            self._check_rows(commit, driver.rows)

    # --- seen

    def check_readers(self) -> None:
        """Checks the rows that became visible to readers."""
        for partition in self._lists.disk.partitions.values():
            self._check_ends(partition)
            for row in partition.read():
                commit = self._winners.get(row.producer_id)
                assert commit is not None, f"row {row} is visible, but nobody committed it"
                assert self._is_durable(self.commits[commit].at), "visible before the commit is durable"
                if commit not in self._visible:
                    self._visible.add(commit)
                    self._check_all_decided(commit)

    def _check_ends(self, partition: SimulatedPartition) -> None:
        stable = partition.core.ends.last_stable_offset
        first = next(iter(partition.open.values()), None)
        assert stable <= partition.core.ends.high_watermark
        assert first is None or stable <= first, (
            f"{partition.tp}: the last stable offset {stable} passes an open transaction at {first}"
        )

    def _check_all_decided(self, commit: tuple[str, int]) -> None:
        """One row of a commit is visible: so are all others, unless another transaction holds them back."""
        event = self.commits[commit].event
        assert isinstance(event, CommitPrepared)
        ended = {*event.committed_producer_ids, *event.aborted_producer_ids}
        others = [name for name, prepared in self._lists.broker.coordinator.prepared() if (name, prepared.txn_version) != commit]
        for partition in self._lists.disk.partitions.values():
            assert not ended & partition.open.keys(), f"{partition.tp} has no marker for some members of {commit}"
            core = partition.core
            if partition.open or core.ends.high_watermark < core.ends.log_end_offset or others or len(self._lists.names) > 1:
                continue
            assert core.ends.last_stable_offset == core.ends.log_end_offset, f"{partition.tp} is behind when {commit} is visible"
        wanted = event.totals
        found = [row for row, pid in self._decided_rows() if self._winners.get(pid) == commit]
        lost = self._lost_rows(set(event.committed_producer_ids))
        assert wanted == totals_of(tuple(found)) or lost, f"{commit} is visible with {sorted(found)}, not {wanted}"

    def _check_rows(self, commit: tuple[str, int], rows: tuple[int, ...]) -> None:
        event = self.commits[commit].event
        assert isinstance(event, CommitPrepared)
        found = Counter(row for row, pid in self._decided_rows() if self._winners.get(pid) == commit)
        lost = self._lost_rows(set(event.committed_producer_ids))
        missing = Counter(rows) - found
        assert not found - Counter(rows), f"{commit} has rows {found - Counter(rows)} too much"
        assert not missing - lost, f"{commit} is said to be committed, but {missing - lost} are missing"
        ended = {*event.committed_producer_ids, *event.aborted_producer_ids}
        for partition in self._lists.disk.partitions.values():
            held = ended & partition.core.producers.open_transactions.keys()
            assert not held, f"{partition.tp} holds data of {held} after the commit of {commit}"

    def _decided_rows(self) -> list[tuple[int, int]]:
        return [
            (row.number, row.producer_id) for partition in self._lists.disk.partitions.values() for row in partition.decided()[0]
        ]

    def _lost_rows(self, producer_ids: set[int]) -> Counter[int]:
        """Rows of these members in deleted partitions."""
        return Counter(
            row
            for partition in self._lists.deleted
            for stored in partition.log
            if stored.header.producer_id in producer_ids
            for row in stored.rows
        )

    # --- the end

    def check_quiet(self) -> None:
        """Checks the final state: no member is open, nothing holds back a reader, and everything committed is visible."""
        world = self._lists
        assert not world.broker.coordinator.open_members, "members are open for ever"
        assert not world.broker.coordinator.prepared(), "a commit is never finished"
        for partition in world.disk.partitions.values():
            check_is_readable(partition)
            _check_order(partition)
            core = partition.core
            assert core.ends.last_stable_offset == core.ends.log_end_offset, (
                f"{partition.tp} hangs at {core.ends.last_stable_offset}, held back by {core.ends.held_back}"
            )
        seen = Counter(row.number for partition in world.disk.partitions.values() for row in partition.seen)
        wanted: Counter[int] = Counter()
        for commit, recorded in self.commits.items():
            assert isinstance(recorded.event, CommitPrepared)
            rows = [row for row, pid in self._decided_rows() if self._winners.get(pid) == commit]
            lost = self._lost_rows(set(recorded.event.committed_producer_ids))
            assert recorded.event.totals == totals_of(tuple(rows)) or lost, f"{commit} has {sorted(rows)}"
            wanted.update(rows)
        assert seen == wanted, f"seen {seen - wanted} too much, {wanted - seen} not at all"
        for error in (driver.outcome for driver in world.drivers):
            assert error is None or issubclass(error, WireError)


def _check_order(partition: SimulatedPartition) -> None:
    """Checks that each task's rows are in the order in which it read them."""
    by_member: dict[int, list[int]] = {}
    for row in partition.seen:
        by_member.setdefault(row.producer_id, []).append(row.number)
    assert all(numbers == sorted(numbers) for numbers in by_member.values()), f"{partition.tp}: out of order: {by_member}"


def key_of(name: str, execution: NamesExecution) -> tuple[str, int, str]:
    """The key of an execution: transactional id, version, execution id."""
    return name, execution.txn_version, execution.execution_id


def _execution(of: ExecutionOfRun) -> Execution:
    return Execution(of.txn_version, of.execution_id, of.run_id)
