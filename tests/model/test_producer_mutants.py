"""Bugs planted one by one: the random schedules (or the scenario of fairness) must catch each. What they do not catch, they do
not prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from brokerd.ids import NO_PRODUCER, NO_SEQUENCE
from brokerd.producer.core.accumulator import (
    NEVER_MS,
    BufferPool,
    IdempotenceState,
    Piece,
    ProducerBatch,
    ReadyCheck,
    RecordAccumulator,
    WaitingCall,
)
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.streams import NodeConnection
from brokerd.record.header import add_sequence
from tests.support.mutants import Mutants
from tests.support.planting import plant
from tests.support.producer_scenarios import assert_nobody_starves
from tests.support.producer_schedules import run_seed

SEARCHED = 3_000
FAIRNESS = -1  # not a schedule: the scenario of fairness
Patch = Callable[[type, str, Callable[..., Any]], None]  # owner, method, what stands in its place
MUTANTS = Mutants[Patch]()
mutant, rare = MUTANTS.add, MUTANTS.rare


@mutant
def no_mute(patch: Patch) -> None:
    patch(RecordAccumulator, "_is_muted", lambda _self, _queue: False)


@mutant
def partition_unmuted_in_spite_of_throttle(patch: Patch) -> None:
    unmute = RecordAccumulator.unmute
    patch(RecordAccumulator, "unmute", lambda self, tp, _until: unmute(self, tp, 0))


@mutant
def mute_never_lifted_after_throttle(patch: Patch) -> None:
    unmute = RecordAccumulator.unmute
    patch(RecordAccumulator, "unmute", lambda self, tp, until: unmute(self, tp, NEVER_MS if until else 0))


@mutant
def connection_ignores_throttle(patch: Patch) -> None:
    may_send = NodeConnection.may_send
    patch(NodeConnection, "may_send", lambda self, config, _now_ms: may_send(self, config, NEVER_MS))


@mutant
def sequence_reassigned_on_retry(patch: Patch) -> None:
    reenqueue = RecordAccumulator.reenqueue

    def forgetful(self: RecordAccumulator, batch: ProducerBatch, retry_at_ms: int) -> None:
        reenqueue(self, batch, retry_at_ms)
        assert isinstance(self.sequences, IdempotenceState)
        state = self.sequences._partitions[batch.tp]
        if batch in state.sequenced:
            state.sequenced.remove(batch)
        batch.identity, batch.base_sequence = NO_PRODUCER, NO_SEQUENCE

    patch(RecordAccumulator, "reenqueue", forgetful)
    patch(IdempotenceState, "_drop", lambda self, batch: _drop_if_there(self, batch))


def _drop_if_there(state: IdempotenceState, batch: ProducerBatch) -> None:
    sequenced = state._partitions[batch.tp].sequenced
    if batch in sequenced:
        sequenced.remove(batch)


@mutant
def reenqueued_at_the_tail(patch: Patch) -> None:
    def at_the_tail(self: RecordAccumulator, batch: ProducerBatch, retry_at_ms: int) -> None:
        batch.retry_at_ms = retry_at_ms
        self._queues[batch.tp].batches.append(batch)

    patch(RecordAccumulator, "reenqueue", at_the_tail)


@mutant
def expired_batch_freed_while_in_flight(patch: Patch) -> None:
    give_up = ProducerCore._give_up

    def early(self: ProducerCore, batch: ProducerBatch, error: Any, now_ms: int) -> None:
        give_up(self, batch, error, now_ms)
        if batch.is_in_flight:
            self.pool.release(batch.accounted_bytes)

    patch(ProducerCore, "_give_up", early)


@mutant
def epoch_not_bumped_after_expiry(patch: Patch) -> None:
    patch(IdempotenceState, "on_ended", lambda self, batch: self._drop(batch) if batch.has_sequence else None)


@rare(FAIRNESS)
def drain_starts_at_zero(patch: Patch) -> None:
    take = RecordAccumulator._take

    def unfair(self: RecordAccumulator, batch: ProducerBatch) -> None:
        order = list(self._queues)
        take(self, batch)
        for tp in order:
            self._queues.move_to_end(tp)

    patch(RecordAccumulator, "_take", unfair)


@mutant
def flush_misses_a_reenqueued_batch(patch: Patch) -> None:
    def begin_flush(self: RecordAccumulator) -> list[ProducerBatch]:
        batches = [batch for batch in self._incomplete if batch.attempts == 0 or batch.is_in_flight]
        self._flushing.update(batches)
        return batches

    patch(RecordAccumulator, "begin_flush", begin_flush)


@rare(2009)
def unknown_fate_gets_a_new_sequence(patch: Patch) -> None:
    patch(
        IdempotenceState,
        "_awaits_epoch",
        lambda _self, state: state.has_gap and not any(batch.is_in_flight for batch in state.sequenced),
    )

    def clear(self: ProducerBatch) -> None:
        self.identity, self.base_sequence = NO_PRODUCER, NO_SEQUENCE

    patch(ProducerBatch, "clear_sequence", clear)


@mutant
def retry_drains_though_not_first(patch: Patch) -> None:
    may_drain = IdempotenceState.may_drain
    patch(IdempotenceState, "may_drain", lambda self, batch: batch.has_sequence or may_drain(self, batch))


@mutant
def lost_requests_count_as_not_appended(patch: Patch) -> None:
    settle = ProducerCore._settle

    def hopeful(self: ProducerCore, batch: ProducerBatch, error: Any, until_ms: int, now_ms: int) -> None:
        batch.is_fate_unknown = False
        settle(self, batch, error, until_ms, now_ms)

    patch(ProducerCore, "_settle", hopeful)


@mutant
def waiters_served_newest_first(patch: Patch) -> None:
    admits = BufferPool.admits

    def newest(self: BufferPool, size_bytes: int, call: WaitingCall | None = None) -> bool:
        if call is not None and call in self._waiting:
            self._waiting.move_to_end(call, last=False)
        return admits(self, size_bytes, call)

    patch(BufferPool, "admits", newest)


@mutant
def linger_is_forgotten(patch: Patch) -> None:
    ready = RecordAccumulator.ready

    def forgetful(self: RecordAccumulator, leader_of: Any, now_ms: int) -> ReadyCheck:
        return replace(ready(self, leader_of, now_ms), next_check_ms=NEVER_MS)

    patch(RecordAccumulator, "ready", forgetful)
    patch(RecordAccumulator, "next_expiry_ms", lambda _self: NEVER_MS)


@mutant
def a_wrapped_batch_overtakes(patch: Patch) -> None:
    may_drain = IdempotenceState.may_drain

    def eager(self: IdempotenceState, batch: ProducerBatch) -> bool:
        state = self._partitions.get(batch.tp)
        if state is None or batch.has_sequence or state.next_sequence != 0 or not state.sequenced:
            return may_drain(self, batch)
        return not state.has_gap and not any(earlier.is_done for earlier in state.sequenced)

    patch(IdempotenceState, "may_drain", eager)


@rare(6980)
def parts_forget_that_they_may_be_in_the_log(patch: Patch) -> None:
    split_into = ProducerBatch.split_into

    def hopeful(self: ProducerBatch, pieces: list[Piece]) -> None:
        self.is_fate_unknown = False
        split_into(self, pieces)

    patch(ProducerBatch, "split_into", hopeful)


@rare(625)
def parts_go_to_the_tail(patch: Patch) -> None:
    split = RecordAccumulator.split

    def at_the_tail(self: RecordAccumulator, batch: ProducerBatch, pieces: list[Piece]) -> None:
        split(self, batch, pieces)
        queue = self._queues[batch.tp].batches
        for part in batch.parts:
            queue.remove(part)
        queue.extend(batch.parts)

    patch(RecordAccumulator, "split", at_the_tail)


@mutant
def parts_share_one_number(patch: Patch) -> None:
    split_into = ProducerBatch.split_into

    def alike(self: ProducerBatch, pieces: list[Piece]) -> None:
        split_into(self, pieces)
        for part in self.parts:
            part.base_sequence = self.base_sequence

    patch(ProducerBatch, "split_into", alike)


@mutant
def parts_are_numbered_anew(patch: Patch) -> None:
    def renumber(self: IdempotenceState, batch: ProducerBatch) -> None:
        state = self._partitions[batch.tp]
        at = state.sequenced.index(batch)
        state.sequenced[at : at + 1] = batch.parts
        for part in batch.parts:
            part.base_sequence = state.next_sequence
            state.next_sequence = add_sequence(state.next_sequence, part.record_count)

    patch(IdempotenceState, "on_split", renumber)


@mutant
def memory_of_a_split_batch_is_kept(patch: Patch) -> None:
    split = RecordAccumulator.split

    def forgetful(self: RecordAccumulator, batch: ProducerBatch, pieces: list[Piece]) -> None:
        held = batch.accounted_bytes
        split(self, batch, pieces)
        self.pool.adjust(held)

    patch(RecordAccumulator, "split", forgetful)


@mutant
def flush_misses_the_parts(patch: Patch) -> None:
    split = RecordAccumulator.split

    def forgetful(self: RecordAccumulator, batch: ProducerBatch, pieces: list[Piece]) -> None:
        split(self, batch, pieces)
        for part in batch.parts:
            del self._incomplete[part]

    patch(RecordAccumulator, "split", forgetful)


@mutant
def requests_name_all_partitions(patch: Patch) -> None:
    drain = RecordAccumulator.drain
    patch(
        RecordAccumulator,
        "drain",
        lambda self, check, node, limits, now_ms: drain(self, check, node, limits._replace(partitions_max=1_000), now_ms),
    )


def run(seed: int) -> None:
    """A schedule, or the scenario of fairness."""
    if seed == FAIRNESS:
        assert_nobody_starves()
    else:
        run_seed(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, partial(plant, monkeypatch.setattr), run, SEARCHED)
