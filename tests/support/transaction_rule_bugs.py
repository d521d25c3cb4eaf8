"""Bugs to plant in the decisions on transactions: commits, members, aborts, expiry. Each leaves out one rule."""

from __future__ import annotations

from typing import Any

from brokerd.coordinator import transactional_id
from brokerd.coordinator.transaction_coordinator import ExecutionKey, TransactionCoordinator
from brokerd.coordinator.transactional_id import (
    Execution,
    ExecutionOfRun,
    Held,
    Progress,
    TransactionalIdState,
)
from brokerd.errors import AlreadyCommittedError
from brokerd.record.header import BatchHeader
from brokerd.server.coordinator.members import Members, OpenMember
from brokerd.server.coordinator.producer_ids import ProducerIds
from brokerd.server.coordinator.transactions import Transactions
from brokerd.wire.v1.coordinator_log_pb2 import CommitPrepared, MemberOpened, MembersAborted, VersionRepeated
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, TransactionMember
from tests.support.planting import Put, plant
from tests.support.transaction_bugs import MUTANTS, bug, mutant, skip_the_wait, unprepared

# --- commit


def changed(commit: CommitPrepared, **fields: Any) -> CommitPrepared:
    """A commit with other values."""
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
