"""Bugs that leave out one rule of transactions each, in the coordinator and in the code that executes its decisions. The random
schedules must find each; they prove nothing about a bug that they miss."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from brokerd.coordinator import transactional_id
from brokerd.coordinator.loading import Loading
from brokerd.coordinator.records import Event
from brokerd.coordinator.transaction_coordinator import ExecutionKey, StateWriter, TransactionCoordinator
from brokerd.coordinator.transactional_id import (
    Execution,
    ExecutionOfRun,
    Held,
    Progress,
    TransactionalIdState,
)
from brokerd.errors import AlreadyCommittedError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.internode.v1.internode_pb2 import WriteMarkersResponse
from brokerd.partition.core import Append, PartitionCore
from brokerd.partition.flush_state import FlushOutcome
from brokerd.record.header import BatchHeader
from brokerd.server.coordinator.host import CoordinatorHost
from brokerd.server.coordinator.leaders import Frozen, Leaders
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.coordinator.members import Members, OpenMember
from brokerd.server.coordinator.producer_ids import ProducerIds
from brokerd.server.coordinator.transactions import Transactions
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared, MemberOpened, MembersAborted, StateEnds, VersionRepeated
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, TransactionMember
from tests.support.mutants import Mutants
from tests.support.planting import Put, plant
from tests.support.simulated_transactions import SimulatedLog
from tests.support.transaction_simulation import run_seed

SEARCHED = 3_000
MUTANTS = Mutants()
mutant, rare, bug = MUTANTS.add, MUTANTS.rare, MUTANTS.method


@contextlib.contextmanager
def unprepared(state: TransactionalIdState) -> Iterator[None]:
    """Within the context, no transaction looks prepared."""
    is_prepared, state.is_prepared = state.is_prepared, False
    try:
        yield
    finally:
        state.is_prepared = is_prepared


def without(commit: CommitPrepared, field: str) -> CommitPrepared:
    """A copy of the commit with this field cleared."""
    changed = CommitPrepared()
    changed.CopyFrom(commit)
    changed.ClearField(field)
    return changed


def skip_the_wait(put: Put, method: str) -> None:
    """Makes this method of Transactions, and its callees, not wait for the coordinator's log to be durable."""
    original, durable = getattr(Transactions, method), SimulatedLog.durable
    is_hasty: ContextVar[bool] = ContextVar("is_hasty", default=False)

    async def hasty(self: Transactions, *args: Any) -> Any:
        token = is_hasty.set(True)
        try:
            return await original(self, *args)
        finally:
            is_hasty.reset(token)

    async def at_once(self: SimulatedLog) -> None:
        if not is_hasty.get():
            await durable(self)

    put(Transactions, method, hasty)
    plant(put, SimulatedLog, "durable", at_once)


async def written(markers: Any) -> asyncio.Task[None]:
    """The task that writes the markers, at the moment when they are written but not yet durable."""
    writing: asyncio.Task[None] = asyncio.ensure_future(markers)
    for _ in range(3):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future
    return writing


# --- what is durable before what


@mutant
def a_member_is_told_its_id_before_it_is_durable(put: Put) -> None:
    skip_the_wait(put, "init_member")


@mutant
def markers_are_written_before_the_commit_is_durable(put: Put) -> None:
    skip_the_wait(put, "_finish")


@mutant
def markers_are_written_before_the_abort_is_durable(put: Put) -> None:
    for method in ("_abort", "_expire"):
        skip_the_wait(put, method)


@rare(342)
def a_sweep_goes_by_what_is_not_durable(put: Put) -> None:
    skip_the_wait(put, "_end_unmarked")


@mutant
def a_heartbeat_is_refused_before_the_end_is_durable(put: Put) -> None:
    skip_the_wait(put, "heartbeat")


@bug(Leaders, "write_markers")
async def a_commit_is_answered_before_its_markers_are_durable(write: Any, self: Leaders, *asked: Any) -> None:
    writing = await written(write(self, *asked))
    if writing.done():
        writing.result()


@bug(PartitionCore, "written")
def data_is_acknowledged_before_it_is_durable(write: Any, self: PartitionCore, append: Append) -> Any:
    moved = write(self, append)
    plan = self.begin_flush()
    return moved if plan is None else self.flushed(plan, FlushOutcome())


# The commit would trust a task that reports records before they are acknowledged.
@rare(850)
def a_commit_takes_data_that_is_not_durable(put: Put) -> None:
    async def at_once(_self: Members, _tps: object, _producer_ids: object) -> None:
        pass

    plant(put, Members, "_not_durable", lambda _self: set())
    plant(put, Members, "_until_durable", at_once)


# --- markers


MUTANTS.instead("a_commit_holds_nothing_back", Members, "hold", lambda _self, _name, _version, _tp, _first: None, first=740)


@bug(Leaders, "write_markers")
async def markers_of_a_commit_count_one_by_one(write: Any, self: Leaders, name: str, commit: CommitPrepared) -> None:
    writing = await written(write(self, name, commit))
    for one in commit.held_back[:1]:
        partition = self._members.partitions.get(TopicIdPartition(one.topic_id, one.partition))
        if partition is not None:
            self._members.partitions.release([(name, partition)])
    await writing


@bug(Members, "write_markers", first=2_090)
async def markers_of_a_failed_attempt_are_not_waited_for(write: Any, self: Members, asked: Any) -> Any:
    held = {producer_id for producer_ids in self._partitions.values() for producer_id in producer_ids}
    if held.isdisjoint((*asked.committed_producer_ids, *asked.aborted_producer_ids)):
        return WriteMarkersResponse()
    return await write(self, asked)


@bug(Leaders, "write_markers")
async def a_marker_that_cannot_be_written_is_let_go(write: Any, self: Leaders, *asked: Any) -> None:
    with contextlib.suppress(WireError):
        await write(self, *asked)


@bug(TransactionalIdState, "apply")
def losers_get_no_marker(apply: Any, self: TransactionalIdState, event: Event, timestamp: int) -> Any:
    ended = apply(self, event, timestamp)
    if self.last is not None and isinstance(event, CommitPrepared):
        self.last = without(self.last, "aborted_producer_ids")
    return ended


@bug(Leaders, "write_markers")
async def markers_go_where_the_driver_says_alone(write: Any, self: Leaders, name: str, commit: CommitPrepared) -> None:
    named = {(one.topic_id, one.partition) for one in commit.partitions}
    some = without(commit, "held_back")
    some.held_back.extend(one for one in commit.held_back if (one.topic_id, one.partition) in named)
    await write(self, name, some)


@bug(Leaders, "freeze", first=126)
async def a_deleted_topic_is_waited_for(freeze: Any, self: Leaders, producer_ids: Any, partitions: Any) -> Any:
    frozen: Frozen = await freeze(self, producer_ids, partitions)
    return frozen._replace(held=frozen.held._replace(missing=()))


# --- recovery


MUTANTS.instead("a_recovery_holds_nothing_back", CoordinatorHost, "_hold", lambda _self, _transactions: None, first=2_160)


@bug(Transactions, "_record_of")
def it_is_not_recorded_what_a_commit_holds_back(record_of: Any, self: Transactions, name: str, principal: str, event: Event) -> Any:
    return record_of(self, name, principal, without(event, "held_back") if isinstance(event, CommitPrepared) else event)


@bug(TransactionalIdState, "events", first=617)
def a_state_forgets_what_a_commit_holds_back(events: Any, self: TransactionalIdState) -> Any:
    return [
        (timestamp, without(event, "held_back") if isinstance(event, CommitPrepared) else event)
        for timestamp, event in events(self)
    ]


MUTANTS.instead("nobody_presumes_an_abort", TransactionCoordinator, "presumed_aborted", lambda _self, _producer_ids: [])


@bug(TransactionCoordinator, "presumed_aborted")
def open_members_are_presumed_aborted(_original: Any, self: TransactionCoordinator, producer_ids: Iterable[int]) -> Any:
    prepared = {pid for _, commit in self.prepared() for pid in (*commit.committed_producer_ids, *commit.aborted_producer_ids)}
    return [pid for pid in producer_ids if pid not in prepared]


@bug(TransactionCoordinator, "presumed_aborted", first=2_570)
def prepared_members_are_presumed_aborted(_original: Any, self: TransactionCoordinator, producer_ids: Iterable[int]) -> Any:
    return [pid for pid in producer_ids if pid not in self.open_members]


@bug(Loading, "_give_up_state")
def a_torn_state_counts(_original: Any, self: Loading) -> None:
    if self._state is not None:
        self._adopt(self._state)
    self._state = None


@bug(Loading, "_adopt")
def events_among_the_pieces_of_a_state_are_lost(adopt: Any, self: Loading, state: Any) -> None:
    state.later.clear()
    adopt(self, state)


MUTANTS.instead("a_state_is_of_the_moment_when_an_id_has_its_turn", StateWriter, "keep", lambda _self, _transactional_id: None)


@bug(StateWriter, "pieces")
def parts_of_a_state_bear_no_mark(pieces: Any, self: StateWriter, *arguments: Any, **groups: Any) -> Any:
    for piece in pieces(self, *arguments, **groups):
        for record in piece:
            record.in_state = False
        yield piece


@mutant
def the_log_goes_before_its_state_is_durable(put: Put) -> None:
    write, durable = CoordinatorLog._write, SimulatedLog.durable
    is_writing: ContextVar[bool] = ContextVar("is_writing", default=False)

    async def hasty(self: CoordinatorLog, pieces: Any) -> int:
        token = is_writing.set(True)
        try:
            return await write(self, pieces)
        finally:
            is_writing.reset(token)

    async def at_once(self: SimulatedLog) -> None:
        if not is_writing.get():
            await durable(self)

    plant(put, CoordinatorLog, "_write", hasty)
    plant(put, SimulatedLog, "durable", at_once)


def end_state_without_a_count(self: Loading, _end: StateEnds) -> None:
    """Ends a state without checking its count."""
    state, self._state = self._state, None
    assert state is not None
    self._adopt(state)


def state_without(put: Put, kind: type) -> None:
    events = TransactionalIdState.events

    def forgetful(self: TransactionalIdState) -> list[tuple[int, Event]]:
        return [known for known in events(self) if not isinstance(known[1], kind)]

    plant(put, TransactionalIdState, "events", forgetful)
    # The count of ids would reveal the bug.
    put(Loading, "_end_state", end_state_without_a_count)


@mutant
def a_state_forgets_open_members(put: Put) -> None:
    state_without(put, MemberOpened)


@mutant
def a_state_forgets_the_last_version(put: Put) -> None:
    state_without(put, CommitPrepared)


@bug(TransactionalIdState, "events", first=3_310)
def a_state_takes_what_is_prepared_for_complete(events: Any, self: TransactionalIdState) -> Any:
    with unprepared(self):
        return events(self)


@bug(Loading, "__init__")
def a_restart_grants_no_time(init: Any, self: Loading, new: Any, _now_ms: int, **beginning: bool) -> None:
    init(self, new, 0, **beginning)


# --- commit


def changed(commit: CommitPrepared, **fields: Any) -> CommitPrepared:
    """A copy of the commit with other values."""
    other = CommitPrepared()
    other.CopyFrom(commit)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


@bug(TransactionalIdState, "_why_not_open")
def a_commit_takes_members_that_are_not_open(
    why: Any, self: TransactionalIdState, report: TransactionMember, execution: Execution
) -> Any:
    return why(self, report, execution) if report.producer_id in self.members else ""


@mutant
def a_commit_takes_members_whose_records_are_not_there(put: Put) -> None:
    put(transactional_id, "_problem", lambda _report, _found, *, may_miss: "")


MUTANTS.instead("a_commit_leaves_losers_open", TransactionalIdState, "ending", lambda _self, _version: [])


@bug(TransactionalIdState, "ending")
def a_commit_ends_losers_of_its_own_version_alone(_original: Any, self: TransactionalIdState, version: int) -> Any:
    return [pid for pid, member in self.members.items() if member.txn_version == version]


MUTANTS.instead("a_commit_ends_newer_versions_too", TransactionalIdState, "ending", lambda self, _version: list(self.members))


@bug(TransactionalIdState, "decide_commit")
def a_second_commit_wins(decide: Any, self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> Any:
    last = self.last
    is_other = last is not None and last.execution_id != asked.execution_id
    if last is not None and is_other and asked.txn_version == self.last_version and not self.is_prepared:
        self.last = changed(last, txn_version=last.txn_version - 1)
    try:
        return decide(self, asked, held)
    finally:
        self.last = last


@bug(TransactionalIdState, "decide_commit")
def a_commit_does_not_wait_for_the_one_before(decide: Any, self: TransactionalIdState, asked: Any, held: Any) -> Any:
    with unprepared(self):
        return decide(self, asked, held)


MUTANTS.instead("a_replay_is_not_compared", TransactionalIdState, "_check_replay", lambda _self, _asked, _last: None)


MUTANTS.instead(
    "a_second_write_of_a_run_is_no_conflict", TransactionalIdState, "_is_another_write", lambda _self, _execution: False
)


@bug(TransactionalIdState, "decide_commit")
def a_repetition_is_not_recorded(decide: Any, self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> Any:
    decided = decide(self, asked, held)
    return Progress.COMPLETE if isinstance(decided, VersionRepeated) else decided


@bug(TransactionalIdState, "events", first=75)
def a_repetition_is_no_part_of_a_state(events: Any, self: TransactionalIdState) -> Any:
    return [(at, event) for at, event in events(self) if not isinstance(event, VersionRepeated)]


@mutant
def a_repetition_is_told_before_it_is_durable(put: Put) -> None:
    skip_the_wait(put, "_commit")


@bug(TransactionalIdState, "_of_its_run")
def a_repetition_hides_the_run_that_committed(known: Any, self: TransactionalIdState, execution: ExecutionOfRun) -> Any:
    return [one for one in known(self, execution) if one in self.repeats or not self.repeats]


@bug(TransactionalIdState, "decide_commit")
def an_older_version_is_not_fenced(commit: Any, self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> Any:
    last = self.last
    self.last = None if asked.txn_version < self.last_version else last
    try:
        return commit(self, asked, held)
    finally:
        self.last = last


MUTANTS.instead("a_commit_before_the_last_one_is_forgotten", TransactionalIdState, "_history", lambda _self: (), first=150)


MUTANTS.instead("any_older_version_counts_as_committed", TransactionalIdState, "_check_earlier", lambda _self, _asked: None)


@bug(TransactionalIdState, "decide_commit")
def a_commit_without_rows_is_not_recorded(decide: Any, self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> Any:
    decided = decide(self, asked, held)
    if isinstance(decided, CommitPrepared) and not decided.totals.rows:
        return Progress.COMPLETE
    return decided


# --- members


@bug(Transactions, "init_member")
async def the_members_of_others_are_aborted_at_init(init: Any, self: Transactions, principal: Any, asked: Any, own_id: Any) -> Any:
    state = self.coordinator.states.get(asked.transactional_id)
    others = [
        pid
        for pid, member in (state.members.items() if state is not None else ())
        if member.txn_version == asked.txn_version and member.execution_id != asked.execution_id
    ]
    if others:
        self._record(asked.transactional_id, principal, MembersAborted(producer_ids=others))
    return await init(self, principal, asked, own_id)


@bug(TransactionalIdState, "decide_init")
def a_committed_version_takes_members(decide: Any, self: TransactionalIdState, asked: Any, next_producer_id: Any) -> Any:
    try:
        return decide(self, asked, next_producer_id)
    except AlreadyCommittedError:
        return MemberOpened(
            member_id=asked.member_id,
            producer_id=next_producer_id,
            txn_version=asked.txn_version,
            execution_id=asked.execution_id,
            run_id=asked.run_id,
            timeout_ms=asked.timeout_ms,
        )


@bug(TransactionalIdState, "decide_init")
def a_repeated_member_gets_another_id(decide: Any, self: TransactionalIdState, asked: Any, next_producer_id: Any) -> Any:
    another = MemberOpened()
    another.CopyFrom(decide(self, asked, next_producer_id))
    another.producer_id = next_producer_id
    return another


MUTANTS.instead("an_ended_member_begins_again", TransactionCoordinator, "_remember_ended", lambda _self, _name, _members: None)


@bug(Transactions, "init_member")
async def producer_ids_are_used_again(init: Any, self: Transactions, principal: Any, asked: Any, own_id: Any) -> Any:
    return await init(self, principal, asked, lambda number: own_id(number & ~1))


MUTANTS.instead("a_state_forgets_the_producer_ids", ProducerIds, "pieces", lambda _self: iter(()))
MUTANTS.instead("anybody_may_write", Members, "open_member", lambda _self, _header: OpenMember("", b""))


@mutant
def membership_is_looked_up_before_the_append(put: Put) -> None:
    look_up, known = Members.open_member, dict[int, OpenMember]()

    def early(self: Members, header: BatchHeader) -> OpenMember | None:
        member = look_up(self, header)
        if member is not None:
            known[header.producer_id] = member
        return known.get(header.producer_id)

    plant(put, Members, "open_member", early)


# --- abort and expiry


@bug(TransactionalIdState, "decide_abort")
def an_abort_ends_all_members_of_the_version(_original: Any, self: TransactionalIdState, asked: EndTransactionRequest) -> Any:
    if asked.txn_version <= self.last_version:
        return None
    ended = [pid for pid, member in self.members.items() if member.txn_version == asked.txn_version]
    return MembersAborted(producer_ids=ended) if ended else None


@bug(Transactions, "abort")
async def an_abort_undoes_a_commit(abort: Any, self: Transactions, principal: str, asked: EndTransactionRequest) -> None:
    await self._void(asked.transactional_id, [member.producer_id for member in asked.members])
    await abort(self, principal, asked)


MUTANTS.instead(
    "an_execution_expires_by_its_first_member", TransactionCoordinator, "renew", lambda _self, _producer_id, _now_ms: None
)


@mutant
def an_expiry_is_not_decided_again(put: Put) -> None:
    expired, expire = TransactionCoordinator.expired, TransactionCoordinator.expire
    due: dict[ExecutionKey, MembersAborted | None] = {}

    def noted(self: TransactionCoordinator, now_ms: int) -> list[ExecutionKey]:
        keys = expired(self, now_ms)
        due.update((key, expire(self, key, now_ms)) for key in keys)
        return keys

    plant(put, TransactionCoordinator, "expired", noted)
    plant(put, TransactionCoordinator, "expire", lambda _self, key, _now_ms: due[key])


@bug(TransactionCoordinator, "expire")
def all_executions_of_an_id_expire_together(expire: Any, self: TransactionCoordinator, key: ExecutionKey, now_ms: int) -> Any:
    return self.abort_all(key.transactional_id) if expire(self, key, now_ms) is not None else None


MUTANTS.instead("nobody_expires", TransactionCoordinator, "expired", lambda _self, _now_ms: [])


# --- the search


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)
