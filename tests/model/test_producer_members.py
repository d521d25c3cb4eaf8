"""Random schedules in which an application sends some of its records in transactions: a request holds one member's batches, under
that member's id; a committed member has all its records in the log, once; a failed one leaves nothing behind for the next. Bugs of
members planted one by one: the schedules must find each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from brokerd.ids import TopicIdPartition
from brokerd.producer.core.accumulator import IdempotenceState, ProducerBatch
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.streams import NodeConnection, SendRequest, Streams
from tests.support.mutants import Mutants
from tests.support.planting import plant
from tests.support.producer_schedules import report, run_seed_with_members, schedule_with_members
from tests.support.scale import TEST_SCALE

SCHEDULES = 1_000 * TEST_SCALE
PARTS = 5
SEARCHED = 3_000
Patch = Callable[[type, str, Callable[..., Any]], None]
MUTANTS = Mutants[Patch]()
mutant = MUTANTS.add


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_with_members_keep_every_promise(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            run_seed_with_members(seed)
        except Exception as error:
            raise AssertionError(report(seed, schedule_with_members)) from error


def without_stop(self: ProducerCore, batch: ProducerBatch, now_ms: int) -> None:
    """A failed batch, as if it were no business of the member's."""
    self.metrics.records_failed.record(batch.record_count, now_ms)
    self._note_ended(batch)


def end_without_a_look(self: ProducerCore) -> MemberReport:
    """The end of a member, whatever is incomplete."""
    ended = self.identity.report()
    self._use(self.own_identity)
    return ended


@mutant
def member_outlives_a_failed_batch(patch: Patch) -> None:
    patch(ProducerCore, "_note_failed", without_stop)


@mutant
def epoch_raised_inside_a_transaction(patch: Patch) -> None:
    patch(ProducerCore, "_note_failed", without_stop)
    wanted = IdempotenceState.identity_wanted

    def wanted_by_anybody(self: IdempotenceState) -> Any:
        is_member, self.is_member = self.is_member, False
        try:
            return wanted(self)
        finally:
            self.is_member = is_member

    patch(IdempotenceState, "identity_wanted", wanted_by_anybody)


@mutant
def batch_of_the_old_member_under_the_new_id(patch: Patch) -> None:
    def stop(self: ProducerCore, error: Any, _now_ms: int) -> None:
        self.identity.error = self.identity.error or error

    patch(ProducerCore, "stop", stop)
    patch(ProducerCore, "end_member", end_without_a_look)


@mutant
def retry_that_outlives_its_member(patch: Patch) -> None:
    give_up = ProducerCore._give_up

    def give_up_what_waits(self: ProducerCore, batch: ProducerBatch, error: Any, now_ms: int) -> None:
        if not batch.is_in_flight:
            give_up(self, batch, error, now_ms)

    patch(ProducerCore, "_give_up", give_up_what_waits)
    patch(ProducerCore, "end_member", end_without_a_look)


@mutant
def id_of_the_old_member_given_to_the_new(patch: Patch) -> None:
    patch(ProducerCore, "_identity_of", lambda self, _membership: self.identity)


@mutant
def request_that_does_not_name_its_member(patch: Patch) -> None:
    request = Streams.request

    def without_member(
        self: Streams,
        connection: NodeConnection,
        batches: dict[TopicIdPartition, ProducerBatch],
        _membership: Membership | None,
        now_ms: int,
    ) -> SendRequest:
        return request(self, connection, batches, None, now_ms)

    patch(Streams, "request", without_member)


@mutant
def late_end_noted_in_the_next_identity(patch: Patch) -> None:
    def leave_behind(self: ProducerCore, batch: ProducerBatch, now_ms: int) -> None:
        if batch.has_sequence and self.sequences is not None:
            self.sequences.on_ended(batch)
        self._leave(batch, now_ms)

    patch(ProducerCore, "_leave_behind", leave_behind)


@mutant
def same_id_for_the_next_member(patch: Patch) -> None:
    kept: WeakKeyDictionary[ProducerCore, IdempotenceState] = WeakKeyDictionary()  # each schedule has its own
    use = ProducerCore._use

    def use_same(self: ProducerCore, identity: Identity) -> None:
        if identity.membership is not None:
            assert identity.sequences is not None
            identity.sequences = kept.setdefault(self, identity.sequences)
        use(self, identity)

    patch(ProducerCore, "_use", use_same)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, partial(plant, monkeypatch.setattr), run_seed_with_members, SEARCHED)
