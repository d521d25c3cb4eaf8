"""Bugs to plant in what makes a group's offsets go with a transaction. Each leaves out one rule; the test is
tests/model/test_offsets_with_transactions.py."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from brokerd.groups import group_table
from brokerd.groups.decided import Decided
from brokerd.groups.group_table import Group, GroupTable, NameOf
from brokerd.groups.records import offsets_committed
from brokerd.ids import TopicIdPartition
from brokerd.server.groups import AskedOffsets, Groups
from brokerd.server.transactions.transactions import Transactions
from brokerd.transaction.records import Event
from brokerd.transaction.transactional_id import TransactionalIdState
from brokerd.wire.v1.group_log_pb2 import GroupLogRecord
from brokerd.wire.v1.transaction_log_pb2 import CommitPrepared
from tests.support.mutants import Mutants
from tests.support.offsets_simulation import Log
from tests.support.planting import Put, plant

MUTANTS = Mutants()
mutant, rare, bug = MUTANTS.add, MUTANTS.rare, MUTANTS.method


# --- zombies


@mutant
def a_transaction_is_committed_wherever_the_group_is(put: Put) -> None:
    put(group_table, "_check_expected", lambda *_: None)


@mutant
def only_a_group_that_has_an_offset_can_have_another_one(put: Put) -> None:
    original = group_table._check_expected

    def check(group_id: str, group: Group | None, expected: Mapping[TopicIdPartition, int], name_of: NameOf) -> None:
        known = {tp: offset for tp, offset in expected.items() if group is not None and group.offset(tp)}
        original(group_id, group, known, name_of)

    put(group_table, "_check_expected", check)


@mutant
def a_group_that_has_an_offset_is_taken_for_one_that_the_program_began(put: Put) -> None:
    original = group_table._check_expected

    def check(group_id: str, group: Group | None, expected: Mapping[TopicIdPartition, int], name_of: NameOf) -> None:
        original(group_id, group, {tp: offset for tp, offset in expected.items() if offset >= 0}, name_of)

    put(group_table, "_check_expected", check)


# --- what comes before what


@bug(Groups, "bring_in")
async def offsets_are_brought_in_before_the_commit_is_durable(original: Any, self: Groups) -> None:
    async def at_once() -> None:
        pass

    self.decisions_durable, before = at_once, self.decisions_durable
    try:
        await original(self)
    finally:
        self.decisions_durable = before


@mutant
def a_commit_is_complete_before_its_offsets_are_durable(put: Put) -> None:
    original, durable = Transactions._finish, Log.durable
    is_finishing: ContextVar[bool] = ContextVar("is_finishing", default=False)

    async def finish(self: Transactions, name: str) -> None:
        token = is_finishing.set(True)
        try:
            await original(self, name)
        finally:
            is_finishing.reset(token)

    async def hasty(self: Log) -> None:
        if self.name != "groups" or not is_finishing.get():
            await durable(self)

    plant(put, Transactions, "_finish", finish)
    plant(put, Log, "durable", hasty)


@bug(Groups, "settled")
@contextlib.asynccontextmanager
async def whoever_asks_is_told_of_an_offset_of_before_the_decision(_original: Any, self: Groups, group_id: str = "") -> Any:
    try:
        yield self.table
    finally:
        await self.log.durable()


@bug(Groups, "settled")
@contextlib.asynccontextmanager
async def whoever_asks_is_told_of_an_offset_that_is_not_durable(_original: Any, self: Groups, group_id: str = "") -> Any:
    if self.decided.is_waiting(group_id):
        await self.bring_in()
    await self.log.durable()
    yield self.table


@mutant
def a_plain_commit_does_not_wait_for_what_is_decided(put: Put) -> None:
    original, is_waiting = Groups._recorded, Decided.is_waiting
    is_plain: ContextVar[bool] = ContextVar("is_plain", default=False)

    async def recorded(self: Groups, group_id: str, decide: Any) -> GroupLogRecord:
        token = is_plain.set(True)
        try:
            return await original(self, group_id, decide)
        finally:
            is_plain.reset(token)

    plant(put, Groups, "_recorded", recorded)
    plant(put, Decided, "is_waiting", lambda self, group_id: not is_plain.get() and is_waiting(self, group_id))


@bug(Groups, "renew")
async def a_renewal_repeats_offsets_of_before(_original: Any, self: Groups, group_id: str) -> None:
    self._check_usable()
    if group_id in self.table.groups:
        entry = self.table.renew(group_id, 1, 0)
        await self.bring_in()
        self._record(entry)
        await self.log.durable()


@bug(Groups, "ready")
async def a_decision_rests_on_offsets_that_are_not_durable(_original: Any, self: Groups, asked: AskedOffsets) -> None:
    while self.decided.is_waiting(asked.group_id):
        await self.bring_in()


# --- recovery


@bug(Transactions, "start")
async def a_start_forgets_what_is_decided(original: Any, self: Transactions) -> None:
    with pytest.MonkeyPatch.context() as blind:
        blind.setattr(self._groups.decided, "add", lambda _: None)
        await original(self)


@bug(Decided, "add")
def a_start_brings_in_what_is_there_already(original: Any, self: Decided, record: GroupLogRecord) -> None:
    known, self._table.decision = self._table.decision, 0
    original(self, record)
    self._table.decision = known


@mutant
def a_start_brings_in_the_newest_first(put: Put) -> None:
    original = Transactions.start

    async def start(self: Transactions) -> None:
        decided = self._groups.decided
        await original_load(self)
        decided._waiting.reverse()
        await self.sweep()

    async def original_load(self: Transactions) -> None:
        with pytest.MonkeyPatch.context() as blind:

            async def nothing() -> None:
                pass

            blind.setattr(self, "sweep", nothing)
            await original(self)

    plant(put, Transactions, "start", start)


@bug(GroupTable, "pieces", first=685)
def a_compacted_log_of_groups_does_not_say_how_far_it_is(original: Any, self: GroupTable) -> Any:
    return ([entry for entry in piece if not entry.decision] for piece in original(self))


@mutant
def a_state_of_the_transactions_leaves_out_the_offsets(put: Put) -> None:
    original = TransactionalIdState.events

    def events(self: TransactionalIdState) -> list[tuple[int, Event]]:
        return [(at, without_offsets(event) if isinstance(event, CommitPrepared) else event) for at, event in original(self)]

    def without_offsets(event: CommitPrepared) -> CommitPrepared:
        changed = CommitPrepared()
        changed.CopyFrom(event)
        changed.ClearField("group_offsets")
        return changed

    plant(put, TransactionalIdState, "events", events)


@mutant
def two_decisions_have_one_number(put: Put) -> None:
    put(Decided, "last", property(lambda self: self._table.decision))


# --- trouble


@bug(Log, "append")
def offsets_that_the_disk_refuses_are_forgotten(original: Any, self: Log, records: Sequence[Any]) -> None:
    sim = self.sim
    waiting = sim.groups.decided._waiting
    try:
        original(self, records)
    except Exception:
        if self.name == "groups" and waiting:
            record = waiting[0].record
            sim.groups.decided.apply(record, offsets_committed(record.group_id, record.principal, (), record.decision))
        raise


MUTANTS.instead("offsets_of_a_topic_that_is_gone_come_back", Groups, "_of_known_topics", lambda _self, offsets: offsets)
