"""The identity under which a producer writes: requests for its producer id, heartbeats, batch sequences and delivered totals.

A producer has a lasting identity, a producer id whose epoch rises. As a member of a transaction it has a producer id for that
transaction alone, with one epoch, requested at the first row. A member that waits long for its first row (a task that sorts)
requests the id earlier, so that its heartbeats keep the transaction open for the other members. A transaction cannot use a member
that lacks a batch, so the first failed batch fails the whole member, without an epoch bump; the transaction's owner begins another
member. Batches in flight when a member ends keep their sequences and are never resent.

Rules of sequences (ARCHITECTURE.md has the broker's side, the table of producer states):
- A batch gets its sequence when it is first drained, and keeps it through every retry.
- A batch that ends without being known to be in the log leaves a *gap*. No new batch of that partition is drained until every
  earlier batch has its outcome; batches of unknown fate are resent with their old sequences. Then the partition moves to a raised
  epoch, in which batches that were certainly never appended get new sequences from 0.
- A recreated topic leaves a gap in its partitions, too. A node with stale metadata may name the old topic once more, and a log that
  has seen sequences from 0 takes the same sequences in the same epoch for duplicates.
- If the broker lacks batches that it has acknowledged, they are lost: this is fatal, and never leads to an epoch bump.
- Fencing is final.

Pure. accumulator.py drains batches, producer_core.py carries out verdicts, sender.py sends requests.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    TransactionStateError,
    UnknownProducerIdError,
    WireError,
)
from brokerd.ids import NO_PRODUCER, NO_SEQUENCE, PRODUCER_EPOCH_MAX, ProducerIdAndEpoch, TopicIdPartition, TopicPartition
from brokerd.producer.core.accumulator import NEVER_MS, ProducerBatch
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.core.streams import Command, RequestProducerId, SendHeartbeat
from brokerd.record.header import SEQUENCE_MAX, add_sequence


class Verdict(enum.Enum):
    """What to do with a batch after an error."""

    RETRY = "retry"  # with its sequence, or a new one once the partition has moved to a raised epoch
    SPLIT = "split"  # into smaller batches, with its sequences
    FAIL = "fail"  # also if the broker's producer state can no longer tell the batch's fate
    ACKNOWLEDGED_LOST = "acknowledged lost"  # fatal: the broker lacks records that it has acknowledged


@dataclass(slots=True, eq=False)
class PartitionSequences:
    """The sequences of one partition under one producer id and epoch."""

    identity: ProducerIdAndEpoch
    next_sequence: int = 0
    sequenced: list[ProducerBatch] = field(default_factory=list)  # with a sequence, not ended or still in flight; in order
    has_gap: bool = False
    is_forgotten: bool = False  # the broker has no producer state, so an unknown fate stays unknown


def _proves_absent(batch: ProducerBatch, error: OutOfOrderSequenceError) -> bool:
    """True if the broker's producer state proves that the batch is not in the log: the state is of an earlier epoch, or expects a
    sequence at or before the batch's. No earlier attempt can arrive later, since a stream's Hello fences earlier streams."""
    if 0 <= error.current_epoch < batch.identity.epoch:
        return True
    if error.expected_sequence < 0 or error.current_epoch > batch.identity.epoch:
        return False
    distance = (batch.base_sequence - error.expected_sequence) & SEQUENCE_MAX
    return distance < 2**30


def verdict_on(batch: ProducerBatch, error: BrokerdError, identity: Identity | None, *, retries: int) -> Verdict:
    """Decides whether to retry, split or fail a batch of a producer that is not stopped. `identity`: the identity that assigned the
    batch's sequence."""
    if isinstance(error, MessageTooLargeError) and batch.record_count > 1:
        return Verdict.SPLIT
    if batch.attempts > retries:
        return Verdict.FAIL
    if isinstance(error, BrokerUnreachableError):
        return Verdict.RETRY
    assert isinstance(error, WireError)
    if identity is not None and isinstance(error, OutOfOrderSequenceError):
        return identity.on_out_of_order(batch, error)
    if identity is not None and isinstance(error, UnknownProducerIdError):
        return identity.on_unknown_producer_id(batch)
    return Verdict.RETRY if error.retriable else Verdict.FAIL


class RepeatedRequests:
    """Repeats one kind of request, one at a time, with back-off after failures."""

    __slots__ = ("_config", "_failures", "_not_before_ms", "_rng", "is_under_way")

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._failures = 0
        self._not_before_ms = 0
        self.is_under_way = False

    def step(self, commands: list[Command], request: Command, now_ms: int) -> int:
        """Adds the request to the commands if it may be sent now. Returns the time of the next step."""
        if self.is_under_way:
            return NEVER_MS
        if now_ms < self._not_before_ms:
            return self._not_before_ms
        self.is_under_way = True
        commands.append(request)
        return NEVER_MS

    def on_success(self, next_ms: int) -> None:
        """Notes that the request succeeded; the next one is not sent before `next_ms`."""
        self.is_under_way = False
        self._failures = 0
        self._not_before_ms = next_ms

    def on_failure(self, now_ms: int) -> None:
        """Notes that the request has failed."""
        self.is_under_way = False
        self._failures += 1
        config = self._config
        self._not_before_ms = now_ms + backoff_ms(
            self._failures, first_ms=config.retry_backoff_ms, max_ms=config.retry_backoff_max_ms, random=self._rng.random()
        )


_HEARTBEATS_PER_TIMEOUT = 3


class DeliveredTotals(NamedTuple):
    """The acknowledged records and batches of one partition."""

    record_count: int = 0
    batch_count: int = 0


class Identity:
    """The lasting identity of a producer (`membership` is None), or one member. Without idempotence it has no producer id, and
    batches have no sequences."""

    def __init__(self, config: ProducerConfig, rng: random.Random, membership: Membership | None = None) -> None:
        self.membership = membership
        self.is_idempotent = config.enable_idempotence
        self.granted = NO_PRODUCER  # by the broker: the producer id and its epoch
        self.sequences: dict[TopicPartition, PartitionSequences] = {}
        self.delivered: dict[TopicPartition, DeliveredTotals] = {}  # values are immutable: other threads copy it without the lock
        self.first_error: BrokerdError | None = None
        self.error: BrokerdError | None = None  # set once nothing more can be written
        self.abort_by_ms: int | None = None  # latest end of a member that is being aborted
        if config.transactional_id and membership is None:
            self.error = TransactionStateError(
                f"no transaction is open: a producer with a transactional.id ('{config.transactional_id}') sends inside "
                "'with producer.transaction():' only"
            )
        self._id_requests = RepeatedRequests(config, rng)
        self._heartbeats = RepeatedRequests(config, rng)
        self.partitions: dict[TopicIdPartition, None] = {}  # that the member writes to
        self._id_due_ms = NEVER_MS  # when a member without rows requests its id
        self._is_bump_wanted = False
        self._is_id_spent = False  # a broker has forgotten the id and may refuse it forever: a new id is needed

    def __str__(self) -> str:
        """The transaction, for error messages."""
        if self.membership is None:
            return "no transaction"
        return f"transaction {self.membership.txn_version} of '{self.membership.transactional_id}'"

    def may_end_abort(self, now_ms: int, *, is_closed: bool) -> bool:
        """True once an aborted member may end. Until `abort_by_ms` or the producer's close, it waits for a requested producer id,
        which the abort needs."""
        return not self._id_requests.is_under_way or is_closed or (self.abort_by_ms is not None and now_ms >= self.abort_by_ms)

    # --- requests

    def step(self, commands: list[Command], now_ms: int, *, has_rows: bool) -> int:
        """Adds the requests that are due to the commands. Returns the time of the next step."""
        if not self.is_idempotent or self.error is not None:
            return NEVER_MS
        return min(self._step_id(commands, now_ms, has_rows=has_rows), self._step_heartbeat(commands, now_ms))

    def _step_id(self, commands: list[Command], now_ms: int, *, has_rows: bool) -> int:
        wanted = self.identity_wanted()
        if wanted is None or (self.membership is None and not has_rows):
            return NEVER_MS
        if self.membership is not None and not has_rows:
            if self._id_due_ms == NEVER_MS:  # the first step of a member
                self._id_due_ms = now_ms + self.membership.timeout_ms // _HEARTBEATS_PER_TIMEOUT
            if now_ms < self._id_due_ms:
                return self._id_due_ms
        return self._id_requests.step(commands, RequestProducerId(wanted, self.membership), now_ms)

    def identity_wanted(self) -> ProducerIdAndEpoch | None:
        """The identity to send with InitProducerId: NO_PRODUCER for a new id (at first, if a broker has forgotten this one, or if
        its epochs are exhausted), the current identity to raise its epoch, None if there is nothing to request.
        """
        if self.granted == NO_PRODUCER:
            return NO_PRODUCER
        if self.membership is not None or not self._is_bump_wanted:
            return None
        return NO_PRODUCER if self._is_id_spent or self.granted.epoch >= PRODUCER_EPOCH_MAX else self.granted

    def _step_heartbeat(self, commands: list[Command], now_ms: int) -> int:
        if self.membership is None or self.granted == NO_PRODUCER:
            return NEVER_MS
        return self._heartbeats.step(commands, SendHeartbeat(self.membership), now_ms)

    # --- responses

    def on_granted(self, granted: ProducerIdAndEpoch, now_ms: int) -> None:
        """Adopts a granted id or raised epoch. A partition with a gap moves to it, unless one of its batches may still arrive."""
        self._id_requests.on_success(now_ms)
        self.granted = granted
        self._is_bump_wanted = self._is_id_spent = False
        for tp in list(self.sequences):
            self.renumber(tp)
        self.on_heartbeat(now_ms)

    def on_failed(self, command: RequestProducerId | SendHeartbeat, now_ms: int) -> None:
        """Notes that a request has failed; it is retried after a back-off."""
        requests = self._id_requests if isinstance(command, RequestProducerId) else self._heartbeats
        requests.on_failure(now_ms)

    def on_heartbeat(self, now_ms: int) -> None:
        """Notes a successful heartbeat; a granted id counts as one."""
        interval_ms = self.membership.timeout_ms // _HEARTBEATS_PER_TIMEOUT if self.membership is not None else 0
        self._heartbeats.on_success(now_ms + interval_ms)

    # --- results

    def on_written(self, batch: ProducerBatch, *, is_news: bool) -> None:
        """Notes that a batch is in the log. `is_news`: the application had no outcome before."""
        if is_news:
            self.note_outcome(batch)
        if batch.base_sequence != NO_SEQUENCE:
            self._drop(batch)
            self.renumber(batch.tp)

    def note_outcome(self, batch: ProducerBatch) -> None:
        """Counts a batch that was sent under this identity and has its outcome."""
        if batch.error is None:
            records, batches = self.delivered.get(batch.tp, DeliveredTotals())
            self.delivered[batch.tp] = DeliveredTotals(records + batch.record_count, batches + 1)
        elif self.first_error is None:
            self.first_error = batch.error

    def report(self) -> MemberReport:
        """The report of a member."""
        records = sum(totals.record_count for totals in self.delivered.values())
        return MemberReport(*self.granted, records, tuple(self.partitions))

    # --- sequences

    def may_drain(self, batch: ProducerBatch) -> bool:
        """Whether the rules of sequences allow the batch to be sent. False for a retry that is not first, and for a new batch after
        a gap, an ended batch still in flight, or a wrap-around. Always True without idempotence."""
        if not self.is_idempotent:
            return True
        if self.granted == NO_PRODUCER:
            return False
        state = self.sequences.get(batch.tp)
        if state is None:
            return True
        if batch.base_sequence != NO_SEQUENCE:
            return state.sequenced[0] is batch and not self._awaits_epoch(state)
        if state.next_sequence == 0 and state.sequenced:
            # After a wrap-around, a batch is sent alone. A broker that has forgotten this producer accepts any batch that begins at
            # 0, and would then refuse earlier batches still in flight.
            return False
        return not state.has_gap and not any(earlier.is_done for earlier in state.sequenced)

    def assign(self, batch: ProducerBatch) -> None:
        """Assigns the partition's next sequence to a batch that is about to be sent; a retry keeps its own. Does nothing without
        idempotence."""
        if not self.is_idempotent:
            return
        if batch.base_sequence != NO_SEQUENCE:
            batch.was_first = True  # a retry is drained only once all batches before it have their outcome
            return
        state = self.sequences.get(batch.tp)
        if state is None:
            state = self.sequences[batch.tp] = PartitionSequences(self.granted)
        batch.assign_sequence(state.identity, state.next_sequence, self.membership)
        batch.was_first = not state.sequenced
        state.next_sequence = add_sequence(state.next_sequence, batch.record_count)
        state.sequenced.append(batch)

    def on_split(self, batch: ProducerBatch) -> None:
        """Replaces the batch by its parts, which have its sequences. They are sent one at a time, as retries are."""
        sequenced = self.sequences[batch.tp].sequenced
        at = sequenced.index(batch)
        sequenced[at : at + 1] = batch.parts

    # --- results of batches with sequences

    def on_ended(self, batch: ProducerBatch) -> None:
        """Notes that a batch has ended without being known to be in the log, and is not in flight: it leaves a gap."""
        self._drop(batch)
        self.leave_gap(batch.tp)

    def leave_gap(self, tp: TopicPartition) -> None:
        """Makes a partition wait for a raised epoch, if it has sequences: a batch is missing, or its topic was recreated."""
        state = self.sequences.get(tp)
        if state is not None:
            state.has_gap = True
            self.renumber(tp)

    def forget_unwritten(self, tp: TopicPartition, former_id: bytes) -> None:
        """Lets a member begin a partition of a recreated topic anew, once nothing is in flight to the former topic, unless it has
        written there. A batch that may have been written has failed by now, and the member with it."""
        state = self.sequences.get(tp)
        if self.membership is None or state is None or tp in self.delivered:
            return
        for batch in state.sequenced:
            batch.clear_sequence()
        del self.sequences[tp]
        self.partitions.pop(TopicIdPartition(former_id, tp.partition), None)

    def on_out_of_order(self, batch: ProducerBatch, error: OutOfOrderSequenceError) -> Verdict:
        """Judges OUT_OF_ORDER_SEQUENCE_NUMBER. Its expected_sequence also shows which other batches were never appended."""
        state = self.sequences[batch.tp]
        if not batch.was_first:
            return Verdict.RETRY  # an earlier batch may have been missing then, even if it is acknowledged now
        if not state.has_gap:
            return Verdict.ACKNOWLEDGED_LOST
        for numbered in state.sequenced:
            if not numbered.is_in_flight and _proves_absent(numbered, error):
                numbered.is_fate_unknown = False
        return Verdict.RETRY

    def on_unknown_producer_id(self, batch: ProducerBatch) -> Verdict:
        """Judges UNKNOWN_PRODUCER_ID: the broker has no state of this producer (it expired, or no batch ever arrived)."""
        state = self.sequences[batch.tp]
        if not batch.was_first:
            return Verdict.RETRY
        state.has_gap = True
        state.is_forgotten = True
        return Verdict.FAIL if batch.is_fate_unknown or self.membership is not None else Verdict.RETRY

    def unknowable(self, tp: TopicPartition) -> list[ProducerBatch]:
        """After UNKNOWN_PRODUCER_ID for the first batch: queued batches of unknown fate, which no response can settle any more."""
        state = self.sequences.get(tp)
        if state is None or not state.is_forgotten:  # None: the batch is of an earlier member
            return []
        return [batch for batch in state.sequenced if batch.is_fate_unknown and not batch.is_in_flight]

    def renumber(self, tp: TopicPartition) -> None:
        """Moves a partition with a gap to the raised epoch, unless a batch of it is in flight or of unknown fate. Requests an epoch
        bump if the producer still has the old epoch.
        """
        state = self.sequences.get(tp)
        if state is None or not self._awaits_epoch(state):
            return
        if self.granted == state.identity:
            self._is_bump_wanted = True
            self._is_id_spent = self._is_id_spent or state.is_forgotten
            return
        state.identity = self.granted
        state.next_sequence = 0
        state.has_gap = False
        state.is_forgotten = False
        for batch in state.sequenced:
            batch.clear_sequence()
        state.sequenced.clear()

    def _awaits_epoch(self, state: PartitionSequences) -> bool:
        return state.has_gap and not any(batch.is_in_flight or batch.is_fate_unknown for batch in state.sequenced)

    def _drop(self, batch: ProducerBatch) -> None:
        self.sequences[batch.tp].sequenced.remove(batch)
