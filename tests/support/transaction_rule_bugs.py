"""Bugs to plant in the decisions on transactions: commits, members, aborts, expiry. Each leaves out one rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.errors import AlreadyCommittedError
from brokerd.record.header import BatchHeader
from brokerd.server.transactions.transactions import Transactions
from brokerd.transaction.coordinator import ExecutionKey, TransactionCoordinator
from brokerd.transaction.records import Event
from brokerd.transaction.transactional_id import (
    CommitDecision,
    Execution,
    ExecutionOfRun,
    Held,
    HeldData,
    Progress,
    TransactionalIdState,
)
from brokerd.wire.v1.transaction_log_pb2 import CommitPrepared, MemberOpened, MembersAborted, VersionRepeated
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest, InitProducerIdRequest, TransactionMember
from tests.support.planting import plant
from tests.support.transaction_bugs import mutant, skip_the_wait, unprepared

# --- commit


def changed(commit: CommitPrepared, **fields: Any) -> CommitPrepared:
    """A commit with other values."""
    other = CommitPrepared()
    other.CopyFrom(commit)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def without_check(
    patch: pytest.MonkeyPatch, allowed: Callable[[TransactionalIdState, TransactionMember, Execution, int], bool]
) -> None:
    """A commit's check of a member is passed where `allowed` says so."""
    check = TransactionalIdState._problem

    def lenient(
        self: TransactionalIdState, report: TransactionMember, execution: Execution, found: HeldData, *, may_miss: bool
    ) -> str:
        problem = check(self, report, execution, found, may_miss=may_miss)
        return "" if problem and allowed(self, report, execution, found.records) else problem

    plant(patch.setattr, TransactionalIdState, "_problem", lenient)


@mutant
def a_commit_takes_members_that_are_not_open(patch: pytest.MonkeyPatch) -> None:
    without_check(patch, lambda state, report, _execution, _records: report.producer_id not in state.members)


@mutant
def a_commit_takes_members_whose_records_are_not_there(patch: pytest.MonkeyPatch) -> None:
    without_check(patch, lambda state, report, _execution, _records: report.producer_id in state.members)


@mutant
def a_commit_leaves_losers_open(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionalIdState, "ending", lambda _self, _version: [])


@mutant
def a_commit_ends_losers_of_its_own_version_alone(patch: pytest.MonkeyPatch) -> None:
    def narrow(self: TransactionalIdState, version: int) -> list[int]:
        return [pid for pid, member in self.members.items() if member.txn_version == version]

    plant(patch.setattr, TransactionalIdState, "ending", narrow)


@mutant
def a_commit_ends_newer_versions_too(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionalIdState, "ending", lambda self, _version: list(self.members))


@mutant
def a_second_commit_wins(patch: pytest.MonkeyPatch) -> None:
    decide = TransactionalIdState.decide_commit

    def lenient(self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> CommitDecision:
        last = self.last
        is_other = last is not None and last.execution_id != asked.execution_id
        if last is not None and is_other and asked.txn_version == self.last_version and not self.is_prepared:
            self.last = changed(last, txn_version=last.txn_version - 1)
        try:
            return decide(self, asked, held)
        finally:
            self.last = last

    plant(patch.setattr, TransactionalIdState, "decide_commit", lenient)


@mutant
def a_commit_does_not_wait_for_the_one_before(patch: pytest.MonkeyPatch) -> None:
    decide = TransactionalIdState.decide_commit

    def hasty(self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> CommitDecision:
        with unprepared(self):
            return decide(self, asked, held)

    plant(patch.setattr, TransactionalIdState, "decide_commit", hasty)


@mutant
def a_replay_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionalIdState, "_check_replay", lambda _self, _asked, _last: None)


@mutant
def a_second_write_of_a_run_is_no_conflict(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionalIdState, "_is_another_write", lambda _self, _execution: False)


@mutant
def a_repetition_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    decide = TransactionalIdState.decide_commit

    def forgetful(self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> CommitDecision:
        decided = decide(self, asked, held)
        return Progress.COMPLETE if isinstance(decided, VersionRepeated) else decided

    plant(patch.setattr, TransactionalIdState, "decide_commit", forgetful)


@mutant
def a_repetition_is_no_part_of_a_state(patch: pytest.MonkeyPatch) -> None:
    events = TransactionalIdState.events

    def forgetful(self: TransactionalIdState) -> list[tuple[int, Event]]:
        return [(at, event) for at, event in events(self) if not isinstance(event, VersionRepeated)]

    plant(patch.setattr, TransactionalIdState, "events", forgetful)


@mutant
def a_repetition_is_told_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    skip_the_wait(patch, "_commit")


@mutant
def a_repetition_hides_the_run_that_committed(patch: pytest.MonkeyPatch) -> None:
    known = TransactionalIdState._of_its_run

    def newest(self: TransactionalIdState, execution: ExecutionOfRun) -> list[ExecutionOfRun]:
        return [one for one in known(self, execution) if one in self.repeats or not self.repeats]

    plant(patch.setattr, TransactionalIdState, "_of_its_run", newest)


@mutant
def an_older_version_is_not_fenced(patch: pytest.MonkeyPatch) -> None:
    commit = TransactionalIdState.decide_commit

    def lenient(self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> CommitDecision:
        last = self.last
        self.last = None if asked.txn_version < self.last_version else last
        try:
            return commit(self, asked, held)
        finally:
            self.last = last

    plant(patch.setattr, TransactionalIdState, "decide_commit", lenient)


@mutant
def a_commit_before_the_last_one_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionalIdState, "_history", lambda _self: ())


@mutant
def any_older_version_counts_as_committed(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionalIdState, "_check_earlier", lambda _self, _asked: None)


@mutant
def a_commit_without_rows_is_not_recorded(patch: pytest.MonkeyPatch) -> None:
    decide = TransactionalIdState.decide_commit

    def lazy(self: TransactionalIdState, asked: EndTransactionRequest, held: Held) -> CommitDecision:
        decided = decide(self, asked, held)
        if isinstance(decided, CommitPrepared) and not decided.totals.rows:
            return Progress.COMPLETE
        return decided

    plant(patch.setattr, TransactionalIdState, "decide_commit", lazy)


# --- members


@mutant
def the_members_of_others_are_aborted_at_init(patch: pytest.MonkeyPatch) -> None:
    init = Transactions.init_member

    async def jealous(
        self: Transactions, principal: str, asked: InitProducerIdRequest, own_id: Callable[[int], int]
    ) -> MemberOpened:
        state = self.coordinator.states.get(asked.transactional_id)
        others = [
            pid
            for pid, member in (state.members.items() if state is not None else ())
            if member.txn_version == asked.txn_version and member.execution_id != asked.execution_id
        ]
        if others:
            self._record(asked.transactional_id, principal, MembersAborted(producer_ids=others))
        return await init(self, principal, asked, own_id)

    plant(patch.setattr, Transactions, "init_member", jealous)


@mutant
def a_committed_version_takes_members(patch: pytest.MonkeyPatch) -> None:
    decide = TransactionalIdState.decide_init

    def lenient(self: TransactionalIdState, asked: InitProducerIdRequest, next_producer_id: int) -> MemberOpened:
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

    plant(patch.setattr, TransactionalIdState, "decide_init", lenient)


@mutant
def a_repeated_member_gets_another_id(patch: pytest.MonkeyPatch) -> None:
    decide = TransactionalIdState.decide_init

    def forgetful(self: TransactionalIdState, asked: InitProducerIdRequest, next_producer_id: int) -> MemberOpened:
        another = MemberOpened()
        another.CopyFrom(decide(self, asked, next_producer_id))
        another.producer_id = next_producer_id
        return another

    plant(patch.setattr, TransactionalIdState, "decide_init", forgetful)


@mutant
def an_ended_member_begins_again(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionCoordinator, "_remember_ended", lambda _self, _name, _members: None)


@mutant
def producer_ids_are_used_again(patch: pytest.MonkeyPatch) -> None:
    init = Transactions.init_member

    async def forgetful(
        self: Transactions, principal: str, asked: InitProducerIdRequest, own_id: Callable[[int], int]
    ) -> MemberOpened:
        return await init(self, principal, asked, lambda number: own_id(number & ~1))

    plant(patch.setattr, Transactions, "init_member", forgetful)


@mutant
def anybody_may_write(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, Transactions, "is_open_member", lambda _self, _header: True)


@mutant
def membership_is_looked_up_before_the_append(patch: pytest.MonkeyPatch) -> None:
    look_up, known = Transactions.is_open_member, set[int]()

    def early(self: Transactions, header: BatchHeader) -> bool:
        if look_up(self, header):
            known.add(header.producer_id)
        return header.producer_id in known

    plant(patch.setattr, Transactions, "is_open_member", early)


# --- abort and expiry


@mutant
def an_abort_ends_all_members_of_the_version(patch: pytest.MonkeyPatch) -> None:
    def broad(self: TransactionalIdState, asked: EndTransactionRequest) -> MembersAborted | None:
        if asked.txn_version <= self.last_version:
            return None
        ended = [pid for pid, member in self.members.items() if member.txn_version == asked.txn_version]
        return MembersAborted(producer_ids=ended) if ended else None

    plant(patch.setattr, TransactionalIdState, "decide_abort", broad)


@mutant
def an_abort_undoes_a_commit(patch: pytest.MonkeyPatch) -> None:
    abort = Transactions.abort

    async def rash(self: Transactions, principal: str, asked: EndTransactionRequest) -> None:
        await self._void(asked.transactional_id, [member.producer_id for member in asked.members])
        await abort(self, principal, asked)

    plant(patch.setattr, Transactions, "abort", rash)


@mutant
def an_execution_expires_by_its_first_member(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionCoordinator, "renew", lambda _self, _producer_id, _now_ms: None)


@mutant
def an_expiry_is_not_decided_again(patch: pytest.MonkeyPatch) -> None:
    expired, expire = TransactionCoordinator.expired, TransactionCoordinator.expire
    due: dict[ExecutionKey, MembersAborted | None] = {}

    def noted(self: TransactionCoordinator, now_ms: int) -> list[ExecutionKey]:
        keys = expired(self, now_ms)
        due.update((key, expire(self, key, now_ms)) for key in keys)
        return keys

    plant(patch.setattr, TransactionCoordinator, "expired", noted)
    plant(patch.setattr, TransactionCoordinator, "expire", lambda _self, key, _now_ms: due[key])


@mutant
def all_executions_of_an_id_expire_together(patch: pytest.MonkeyPatch) -> None:
    expire = TransactionCoordinator.expire

    def broad(self: TransactionCoordinator, key: ExecutionKey, now_ms: int) -> MembersAborted | None:
        return self.abort_all(key.transactional_id) if expire(self, key, now_ms) is not None else None

    plant(patch.setattr, TransactionCoordinator, "expire", broad)


@mutant
def nobody_expires(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, TransactionCoordinator, "expired", lambda _self, _now_ms: [])
