"""Random schedules in which an application sends some records in transactions. A request holds batches of one member, under its id;
a committed member has all its records in the log, once; a failed one leaves nothing behind for the next. Bugs of members planted
one at a time, which the schedules must find."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import pytest

from brokerd.producer.core.accumulator import ProducerBatch
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.membership import MemberReport
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.streams import Streams
from tests.support.mutants import Mutants
from tests.support.planting import Put, plant
from tests.support.producer_schedules import report, run_seed_with_members, schedule_with_members
from tests.support.scale import TEST_SCALE

SCHEDULES = 1_000 * TEST_SCALE
PARTS = 5
SEARCHED = 3_000
MUTANTS = Mutants()
mutant, bug = MUTANTS.add, MUTANTS.method


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_with_members_keep_every_promise(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            run_seed_with_members(seed)
        except Exception as error:
            raise AssertionError(report(seed, schedule_with_members)) from error


FAIL = ProducerCore.fail


def without_stop(self: ProducerCore, batch: ProducerBatch, error: Any, now_ms: int) -> None:
    """Fails a batch without failing its member."""
    before, self.identity.error = self.identity.error, error  # as if the member had already failed
    FAIL(self, batch, error, now_ms)
    self.identity.error = before


def end_without_a_look(self: ProducerCore) -> MemberReport:
    """Ends a member without a check for incomplete batches."""
    ended = self.identity.report()
    self.identity = self.own_identity
    return ended


MUTANTS.instead("member_outlives_a_failed_batch", ProducerCore, "fail", without_stop)


@mutant
def epoch_raised_inside_a_transaction(put: Put) -> None:
    plant(put, ProducerCore, "fail", without_stop)
    wanted = Identity.identity_wanted

    def wanted_by_anybody(self: Identity) -> Any:
        membership, self.membership = self.membership, None
        try:
            return wanted(self)
        finally:
            self.membership = membership

    plant(put, Identity, "identity_wanted", wanted_by_anybody)


@mutant
def batch_of_the_old_member_under_the_new_id(put: Put) -> None:
    def stop(self: ProducerCore, error: Any, _now_ms: int) -> None:
        self.identity.error = self.identity.error or error

    plant(put, ProducerCore, "stop", stop)
    plant(put, ProducerCore, "end_member", end_without_a_look)


@mutant
def retry_that_outlives_its_member(put: Put) -> None:
    def fail_what_waits(self: ProducerCore, batch: ProducerBatch, error: Any, now_ms: int) -> None:
        if not batch.is_in_flight:
            FAIL(self, batch, error, now_ms)

    plant(put, ProducerCore, "fail", fail_what_waits)
    plant(put, ProducerCore, "end_member", end_without_a_look)


MUTANTS.instead("id_of_the_old_member_given_to_the_new", ProducerCore, "_identity_of", lambda self, _membership: self.identity)


@bug(Streams, "request")
def request_that_does_not_name_its_member(
    request: Any, self: Streams, connection: Any, batches: Any, _membership: Any, now_ms: Any
) -> Any:
    return request(self, connection, batches, None, now_ms)


@bug(ProducerCore, "_leave_gap")
def late_end_noted_in_the_next_identity(_original: Any, self: ProducerCore, batch: ProducerBatch, now_ms: int) -> None:
    if batch.has_sequence:
        self.identity.on_ended(batch)
    self.accumulator.free(batch)
    self._reset_replaced(batch.tp, now_ms)


@mutant
def same_id_for_the_next_member(put: Put) -> None:
    kept: WeakKeyDictionary[ProducerCore, Identity] = WeakKeyDictionary()  # separate for each schedule
    begin = ProducerCore.begin_member

    def begin_same(self: ProducerCore, *arguments: Any, **options: Any) -> bool:
        has_begun = begin(self, *arguments, **options)
        if has_begun:
            first = kept.setdefault(self, self.identity)
            self.identity.granted, self.identity.sequences = first.granted, first.sequences
        return has_begun

    plant(put, ProducerCore, "begin_member", begin_same)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed_with_members, SEARCHED)
