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
from tests.support.planting import plant

MUTANTS = Mutants[pytest.MonkeyPatch]()
mutant, rare = MUTANTS.add, MUTANTS.rare


# --- zombies


@mutant
def a_transaction_is_committed_wherever_the_group_is(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(group_table, "_check_expected", lambda *_: None)


@mutant
def only_a_group_that_has_an_offset_can_have_another_one(patch: pytest.MonkeyPatch) -> None:
    original = group_table._check_expected

    def check(group_id: str, group: Group | None, expected: Mapping[TopicIdPartition, int], name_of: NameOf) -> None:
        known = {tp: offset for tp, offset in expected.items() if group is not None and group.offset(tp)}
        original(group_id, group, known, name_of)

    patch.setattr(group_table, "_check_expected", check)


@mutant
def a_group_that_has_an_offset_is_taken_for_one_that_the_program_began(patch: pytest.MonkeyPatch) -> None:
    original = group_table._check_expected

    def check(group_id: str, group: Group | None, expected: Mapping[TopicIdPartition, int], name_of: NameOf) -> None:
        original(group_id, group, {tp: offset for tp, offset in expected.items() if offset >= 0}, name_of)

    patch.setattr(group_table, "_check_expected", check)


# --- what comes before what


@mutant
def offsets_are_brought_in_before_the_commit_is_durable(patch: pytest.MonkeyPatch) -> None:
    original = Groups.bring_in

    async def hasty(self: Groups) -> None:
        async def at_once() -> None:
            pass

        self.decisions_durable, before = at_once, self.decisions_durable
        try:
            await original(self)
        finally:
            self.decisions_durable = before

    plant(patch.setattr, Groups, "bring_in", hasty)


@mutant
def a_commit_is_complete_before_its_offsets_are_durable(patch: pytest.MonkeyPatch) -> None:
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

    plant(patch.setattr, Transactions, "_finish", finish)
    plant(patch.setattr, Log, "durable", hasty)


@mutant
def whoever_asks_is_told_of_an_offset_of_before_the_decision(patch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def settled(self: Groups, group_id: str = "") -> Any:
        try:
            yield self.table
        finally:
            await self.log.durable()

    plant(patch.setattr, Groups, "settled", settled)


@mutant
def whoever_asks_is_told_of_an_offset_that_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def settled(self: Groups, group_id: str = "") -> Any:
        if self.decided.is_waiting(group_id):
            await self.bring_in()
        await self.log.durable()
        yield self.table

    plant(patch.setattr, Groups, "settled", settled)


@mutant
def a_plain_commit_does_not_wait_for_what_is_decided(patch: pytest.MonkeyPatch) -> None:
    original, is_waiting = Groups._recorded, Decided.is_waiting
    is_plain: ContextVar[bool] = ContextVar("is_plain", default=False)

    async def recorded(self: Groups, group_id: str, decide: Any) -> GroupLogRecord:
        token = is_plain.set(True)
        try:
            return await original(self, group_id, decide)
        finally:
            is_plain.reset(token)

    plant(patch.setattr, Groups, "_recorded", recorded)
    plant(patch.setattr, Decided, "is_waiting", lambda self, group_id: not is_plain.get() and is_waiting(self, group_id))


@mutant
def a_renewal_repeats_offsets_of_before(patch: pytest.MonkeyPatch) -> None:
    async def renew(self: Groups, group_id: str) -> None:
        self._check_usable()
        if group_id in self.table.groups:
            entry = self.table.renew(group_id, 1, 0)
            await self.bring_in()
            self._record(entry)
            await self.log.durable()

    plant(patch.setattr, Groups, "renew", renew)


@mutant
def a_decision_rests_on_offsets_that_are_not_durable(patch: pytest.MonkeyPatch) -> None:
    async def ready(self: Groups, asked: AskedOffsets) -> None:
        while self.decided.is_waiting(asked.group_id):
            await self.bring_in()

    plant(patch.setattr, Groups, "ready", ready)


# --- recovery


@mutant
def a_start_forgets_what_is_decided(patch: pytest.MonkeyPatch) -> None:
    original = Transactions.start

    async def start(self: Transactions) -> None:
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(self._groups.decided, "add", lambda _: None)
            await original(self)

    plant(patch.setattr, Transactions, "start", start)


@mutant
def a_start_brings_in_what_is_there_already(patch: pytest.MonkeyPatch) -> None:
    original = Decided.add

    def add(self: Decided, record: GroupLogRecord) -> None:
        known, self._table.decision = self._table.decision, 0
        original(self, record)
        self._table.decision = known

    plant(patch.setattr, Decided, "add", add)


@mutant
def a_start_brings_in_the_newest_first(patch: pytest.MonkeyPatch) -> None:
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

    plant(patch.setattr, Transactions, "start", start)


@rare(685)
def a_compacted_log_of_groups_does_not_say_how_far_it_is(patch: pytest.MonkeyPatch) -> None:
    original = GroupTable.pieces

    def pieces(self: GroupTable) -> Any:
        return ([entry for entry in piece if not entry.decision] for piece in original(self))

    plant(patch.setattr, GroupTable, "pieces", pieces)


@mutant
def a_state_of_the_transactions_leaves_out_the_offsets(patch: pytest.MonkeyPatch) -> None:
    original = TransactionalIdState.events

    def events(self: TransactionalIdState) -> list[tuple[int, Event]]:
        return [(at, without_offsets(event) if isinstance(event, CommitPrepared) else event) for at, event in original(self)]

    def without_offsets(event: CommitPrepared) -> CommitPrepared:
        changed = CommitPrepared()
        changed.CopyFrom(event)
        changed.ClearField("group_offsets")
        return changed

    plant(patch.setattr, TransactionalIdState, "events", events)


@mutant
def two_decisions_have_one_number(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Decided, "last", property(lambda self: self._table.decision))


# --- trouble


@mutant
def offsets_that_the_disk_refuses_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = Log.append

    def append(self: Log, records: Sequence[Any]) -> None:
        sim = self.sim
        waiting = sim.groups.decided._waiting
        try:
            original(self, records)
        except Exception:
            if self.name == "groups" and waiting:
                record = waiting[0].record
                sim.groups.decided.apply(record, offsets_committed(record.group_id, record.principal, (), record.decision))
            raise

    plant(patch.setattr, Log, "append", append)


@mutant
def offsets_of_a_topic_that_is_gone_come_back(patch: pytest.MonkeyPatch) -> None:
    plant(patch.setattr, Groups, "_of_known_topics", lambda _self, offsets: offsets)
