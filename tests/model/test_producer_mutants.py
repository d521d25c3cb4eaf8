"""Bugs planted one at a time. The random schedules (or the scenario of fairness) must find each; they prove nothing about a bug
that they miss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerd.ids import NO_PRODUCER, NO_SEQUENCE
from brokerd.producer.core.accumulator import NEVER_MS, BufferPool, Piece, ProducerBatch, ReadyCheck, RecordAccumulator, WaitingCall
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.streams import NodeConnection
from brokerd.record.header import add_sequence
from tests.support.mutants import Mutants
from tests.support.planting import Put, plant
from tests.support.producer_scenarios import assert_nobody_starves
from tests.support.producer_schedules import run_seed

SEARCHED = 3_000
FAIRNESS = -1  # not a seed: the scenario of fairness
MUTANTS = Mutants()
mutant, rare, bug = MUTANTS.add, MUTANTS.rare, MUTANTS.method


MUTANTS.instead("no_mute", RecordAccumulator, "_is_muted", lambda _self, _queue: False)


@mutant
def connection_ignores_throttle(put: Put) -> None:
    may_send = NodeConnection.may_send
    plant(put, NodeConnection, "may_send", lambda self, config, _now_ms: may_send(self, config, NEVER_MS))


@mutant
def sequence_reassigned_on_retry(put: Put) -> None:
    retry = ProducerCore._retry

    def forgetful(self: ProducerCore, batch: ProducerBatch, error: Any, now_ms: int) -> None:
        retry(self, batch, error, now_ms)
        state = self.identity.sequences[batch.tp]
        if batch in state.sequenced:
            state.sequenced.remove(batch)
        batch.identity, batch.base_sequence = NO_PRODUCER, NO_SEQUENCE

    plant(put, ProducerCore, "_retry", forgetful)
    plant(put, Identity, "_drop", lambda self, batch: _drop_if_there(self, batch))


def _drop_if_there(state: Identity, batch: ProducerBatch) -> None:
    sequenced = state.sequences[batch.tp].sequenced
    if batch in sequenced:
        sequenced.remove(batch)


@bug(RecordAccumulator, "reenqueue")
def reenqueued_at_the_tail(_original: Any, self: RecordAccumulator, batch: ProducerBatch, retry_at_ms: int) -> None:
    batch.retry_at_ms = retry_at_ms
    self._queues[batch.tp].batches.append(batch)


@bug(ProducerCore, "fail")
def expired_batch_freed_while_in_flight(fail: Any, self: ProducerCore, batch: ProducerBatch, error: Any, now_ms: int) -> None:
    fail(self, batch, error, now_ms)
    if batch.is_in_flight:
        self.pool.adjust(-batch.accounted_bytes)


MUTANTS.instead(
    "epoch_not_bumped_after_expiry",
    Identity,
    "on_ended",
    lambda self, batch: self._drop(batch) if batch.has_sequence else None,
)


@bug(RecordAccumulator, "_take", first=FAIRNESS)
def drain_starts_at_zero(take: Any, self: RecordAccumulator, batch: ProducerBatch) -> None:
    order = list(self._queues)
    take(self, batch)
    for tp in order:
        self._queues.move_to_end(tp)


@bug(RecordAccumulator, "begin_flush")
def flush_misses_a_reenqueued_batch(_original: Any, self: RecordAccumulator) -> Any:
    batches = [batch for batch in self.incomplete if batch.attempts == 0 or batch.is_in_flight]
    self._flushing.update(batches)
    return batches


@rare(2009)
def unknown_fate_gets_a_new_sequence(put: Put) -> None:
    plant(
        put,
        Identity,
        "_awaits_epoch",
        lambda _self, state: state.has_gap and not any(batch.is_in_flight for batch in state.sequenced),
    )

    def clear(self: ProducerBatch) -> None:
        self.identity, self.base_sequence = NO_PRODUCER, NO_SEQUENCE

    plant(put, ProducerBatch, "clear_sequence", clear)


@mutant
def retry_drains_though_not_first(put: Put) -> None:
    may_drain = Identity.may_drain
    plant(put, Identity, "may_drain", lambda self, batch: batch.has_sequence or may_drain(self, batch))


@bug(ProducerCore, "_judge")
def lost_requests_count_as_not_appended(judge: Any, self: ProducerCore, batch: Any, error: Any, now_ms: Any) -> None:
    batch.is_fate_unknown = False
    judge(self, batch, error, now_ms)


@bug(BufferPool, "admits")
def waiters_served_newest_first(admits: Any, self: BufferPool, size_bytes: int, call: WaitingCall | None = None) -> Any:
    if call is not None and call in self._waiting:
        self._waiting.move_to_end(call, last=False)
    return admits(self, size_bytes, call)


@mutant
def linger_is_forgotten(put: Put) -> None:
    ready = RecordAccumulator.ready

    def forgetful(self: RecordAccumulator, leader_of: Any, may_drain: Any, now_ms: int) -> ReadyCheck:
        return replace(ready(self, leader_of, may_drain, now_ms), next_check_ms=NEVER_MS)

    plant(put, RecordAccumulator, "ready", forgetful)
    plant(put, RecordAccumulator, "next_expiry_ms", lambda _self: NEVER_MS)


@bug(Identity, "may_drain")
def a_wrapped_batch_overtakes(may_drain: Any, self: Identity, batch: ProducerBatch) -> Any:
    state = self.sequences.get(batch.tp)
    if state is None or batch.has_sequence or state.next_sequence != 0 or not state.sequenced:
        return may_drain(self, batch)
    return not state.has_gap and not any(earlier.is_done for earlier in state.sequenced)


@bug(ProducerBatch, "split_into", first=6980)
def parts_forget_that_they_may_be_in_the_log(split_into: Any, self: ProducerBatch, pieces: list[Piece]) -> None:
    self.is_fate_unknown = False
    split_into(self, pieces)


@bug(RecordAccumulator, "split", first=625)
def parts_go_to_the_tail(split: Any, self: RecordAccumulator, batch: ProducerBatch, pieces: list[Piece]) -> None:
    split(self, batch, pieces)
    queue = self._queues[batch.tp].batches
    for part in batch.parts:
        queue.remove(part)
    queue.extend(batch.parts)


@bug(ProducerBatch, "split_into")
def parts_share_one_number(split_into: Any, self: ProducerBatch, pieces: list[Piece]) -> None:
    split_into(self, pieces)
    for part in self.parts:
        part.base_sequence = self.base_sequence


@bug(Identity, "on_split")
def parts_are_numbered_anew(_original: Any, self: Identity, batch: ProducerBatch) -> None:
    state = self.sequences[batch.tp]
    at = state.sequenced.index(batch)
    state.sequenced[at : at + 1] = batch.parts
    for part in batch.parts:
        part.base_sequence = state.next_sequence
        state.next_sequence = add_sequence(state.next_sequence, part.record_count)


@bug(RecordAccumulator, "split")
def memory_of_a_split_batch_is_kept(split: Any, self: RecordAccumulator, batch: ProducerBatch, pieces: list[Piece]) -> None:
    held = batch.accounted_bytes
    split(self, batch, pieces)
    self.pool.adjust(held)


@bug(RecordAccumulator, "split")
def flush_misses_the_parts(split: Any, self: RecordAccumulator, batch: ProducerBatch, pieces: list[Piece]) -> None:
    split(self, batch, pieces)
    for part in batch.parts:
        del self.incomplete[part]


@mutant
def requests_name_all_partitions(put: Put) -> None:
    drain = RecordAccumulator.drain
    plant(
        put,
        RecordAccumulator,
        "drain",
        lambda self, check, node, limits: drain(self, check, node, limits._replace(partitions_max=1_000)),
    )


def run(seed: int) -> None:
    """Runs a seed's schedule, or the scenario of fairness."""
    if seed == FAIRNESS:
        assert_nobody_starves()
    else:
        run_seed(seed)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run, SEARCHED)
