"""A group's offsets in transactions: random schedules of programs, zombies, plain commits, crashes and failing disks
(tests/support/offsets_simulation.py), and bugs that leave out one rule each, which the schedules must find."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from brokerd.coordinator import group_table
from brokerd.coordinator.group_table import Group, GroupTable, NameOf
from brokerd.coordinator.records import Event
from brokerd.ids import TopicIdPartition
from brokerd.server.coordinator.groups import Groups
from brokerd.server.coordinator.transactions import Transactions
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord
from tests.support.loop import one_turn
from tests.support.mutants import Mutants
from tests.support.offsets_simulation import Log, run_seed
from tests.support.planting import Put
from tests.support.scale import TEST_SCALE
from tests.support.seeds import run_seeds

RUNS = 120 * TEST_SCALE
SEARCHED = 3_000
MUTANTS = Mutants()
mutant, rare, bug = MUTANTS.add, MUTANTS.rare, MUTANTS.method


def test_a_group_is_where_its_transactions_and_commits_have_left_it() -> None:
    facts = run_seeds(run_seed, 1_000, RUNS)
    rare = {"crashed in its start", "trouble", "lost"}
    assert min(facts[fact] for fact in rare) > RUNS // 100, facts
    often = ("decided", "committed", "refused", "renewed", "waited", "crashed", "deleted", "compacted")
    assert min(facts[fact] for fact in often) > RUNS, facts


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


@bug(Transactions, "_record")
def a_transaction_and_its_offsets_are_two_batches(original: Any, self: Transactions, *arguments: Any) -> None:
    append = self.log.append

    def one_by_one(records: list[CoordinatorRecord]) -> None:
        for record in records:
            append([record])

    with pytest.MonkeyPatch.context() as torn:
        torn.setattr(self.log, "append", one_by_one)
        original(self, *arguments)


@bug(Transactions, "_record")
def a_transactions_offsets_are_not_recorded(
    original: Any, self: Transactions, name: str, principal: str, event: Event, offsets: CoordinatorRecord | None = None
) -> None:
    original(self, name, principal, event, None)
    if offsets is not None:
        self.groups.table.apply(offsets)


@bug(Groups, "settled")
@contextlib.asynccontextmanager
async def whoever_asks_is_told_of_an_offset_that_is_not_durable(_original: Any, self: Groups) -> Any:
    yield self.table


@bug(Groups, "_recorded")
async def a_commit_is_answered_before_it_is_durable(_original: Any, self: Groups, decide: Any) -> CoordinatorRecord:
    record: CoordinatorRecord = decide()
    self._record(record)
    return record


@bug(Groups, "renew")
async def a_renewal_repeats_offsets_of_before(_original: Any, self: Groups, group_id: str) -> None:
    if group_id in self.table.groups:
        record = self.table.renew(group_id, 1, 0)
        await one_turn()
        self._record(record)
        await self._log.durable()


@bug(Groups, "_record")
def offsets_that_the_disk_refuses_are_applied(original: Any, self: Groups, *records: CoordinatorRecord) -> None:
    try:
        original(self, *records)
    except Exception:
        for record in records:
            self.table.apply(record)
        raise


@bug(Transactions, "_record")
def a_transactions_offsets_are_in_the_table_before_the_log(
    original: Any, self: Transactions, name: str, principal: str, event: Event, offsets: CoordinatorRecord | None = None
) -> None:
    if offsets is not None:
        self.groups.table.apply(offsets)
    original(self, name, principal, event, offsets)


# --- recovery


@bug(Log, "compact")
async def a_state_holds_the_offsets_of_when_it_began(original: Any, self: Log, pieces: Any) -> None:
    await original(self, iter(list(pieces)))


@bug(Transactions, "_records")
def a_start_forgets_the_offsets(_original: Any, self: Transactions) -> Any:
    return self.log.read()


@bug(GroupTable, "pieces")
def a_compacted_log_holds_no_offsets(_original: Any, _self: GroupTable) -> Any:
    return iter(())


@bug(Log, "compact")
async def a_state_without_its_offsets_replaces_the_log(original: Any, self: Log, pieces: Any) -> None:
    known = list(pieces)
    await original(self, iter([piece for piece in known if not piece[0].group_id]))
    self.batches += [[record.SerializeToString() for record in piece] for piece in known if piece[0].group_id]


MUTANTS.instead("a_start_brings_back_offsets_of_a_topic_that_is_gone", Groups, "loaded", lambda _self: None)
MUTANTS.instead("offsets_of_a_topic_that_is_gone_come_back", Groups, "_of_known_topics", lambda _self, offsets: offsets)


# --- the search


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_left_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)
