"""Producer id, epoch and sequences: what keeps retries from duplicating, and what each response of the broker proves.

Rules (the broker's side of them is the table of producer states in ARCHITECTURE.md):
- A batch gets its number when it is first drained, and keeps it through every retry.
- A batch that ends without being known to be in the log leaves a *gap*. Nothing new drains into that partition until the
  batches that have numbers are settled: each is asked again under its old number while its fate is unknown; then the
  partition moves to a raised epoch, in which what was certainly never appended gets new numbers from 0.
- A gap below batches that were acknowledged is no gap of ours: the broker lost them, which is fatal, never an epoch bump.
- Fenced is final.

Pure. Who asks the broker for an epoch is producer_core.py.
"""

from __future__ import annotations

import enum

from brokerd.errors import OutOfOrderSequenceError, UnknownProducerIdError
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition
from brokerd.producer.core.producer_batch import ProducerBatch
from brokerd.record.header import SEQUENCE_MAX, add_sequence

EPOCH_MAX = 2**15 - 1


class Verdict(enum.Enum):
    """What to do with a batch that was answered with an error."""

    RETRY = "retry"  # under its number, or a new one once the partition has moved to a raised epoch
    SPLIT = "split"  # in smaller ones, under its numbers
    FAIL = "fail"  # or, of an error of the producer's state: its fate cannot be known any more
    ACKNOWLEDGED_LOST = "acknowledged lost"  # fatal: the broker does not have what it acknowledged


class PartitionSequences:
    """Numbers of one partition under one producer id and epoch."""

    __slots__ = ("has_gap", "identity", "is_forgotten", "next_sequence", "sequenced")

    def __init__(self, identity: ProducerIdAndEpoch) -> None:
        self.identity = identity
        self.next_sequence = 0
        self.sequenced: list[ProducerBatch] = []  # numbered and not ended (or still under way), in order
        self.has_gap = False
        self.is_forgotten = False  # the broker has no state of it: what is of unknown fate stays so


class IdempotenceState:
    """The producer's identity and all partitions' sequences."""

    def __init__(self) -> None:
        self.identity = NO_PRODUCER
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._is_bump_wanted = False
        self._is_id_spent = False  # a broker that has forgotten an id may take it for good from nobody

    # --- identity

    def identity_wanted(self) -> ProducerIdAndEpoch | None:
        """What to ask InitProducerId with: NO_PRODUCER for a new id (at first, when a broker has forgotten this one, and when the
        epoch is used up), the present identity to have its epoch raised, None if nothing is wanted."""
        if self.identity == NO_PRODUCER:
            return NO_PRODUCER
        if not self._is_bump_wanted:
            return None
        return NO_PRODUCER if self._is_id_spent or self.identity.epoch >= EPOCH_MAX else self.identity

    def set_identity(self, identity: ProducerIdAndEpoch) -> None:
        """The broker's response. Partitions that wait for it move as soon as they are settled."""
        self.identity = identity
        self._is_bump_wanted = self._is_id_spent = False
        for tp in list(self._partitions):
            self.settle(tp)

    # --- numbers

    def may_drain(self, batch: ProducerBatch) -> bool:
        """False for a retry that is not first, and for a new batch behind a gap, an expired one still under way, or a wrap."""
        if self.identity == NO_PRODUCER:
            return False
        state = self._partitions.get(batch.tp)
        if state is None:
            return True
        if batch.has_sequence:
            return state.sequenced[0] is batch and not self._awaits_epoch(state)
        if state.next_sequence == 0 and state.sequenced:
            # After a wrap. A broker that has forgotten this producer takes any batch that begins at 0, ahead of those still
            # under way, which it refuses: so it goes alone.
            return False
        return not state.has_gap and not any(earlier.is_done for earlier in state.sequenced)

    def assign(self, batch: ProducerBatch) -> None:
        """The next number of the partition."""
        state = self._partitions.get(batch.tp)
        if state is None:
            state = self._partitions[batch.tp] = PartitionSequences(self.identity)
        batch.assign_sequence(state.identity, state.next_sequence)
        state.next_sequence = add_sequence(state.next_sequence, batch.record_count)
        state.sequenced.append(batch)

    def on_split(self, batch: ProducerBatch) -> None:
        """The batch's parts stand in its place, with its numbers. They are sent one after the other, as retries are."""
        sequenced = self._partitions[batch.tp].sequenced
        at = sequenced.index(batch)
        sequenced[at : at + 1] = batch.parts

    # --- what became of a numbered batch

    def on_success(self, batch: ProducerBatch) -> None:
        """It is in the log."""
        self._drop(batch)

    def on_ended(self, batch: ProducerBatch) -> None:
        """It ended without being known to be in the log, and nothing of it is under way: its number is a gap."""
        if batch.has_sequence:
            self._drop(batch)
            self._partitions[batch.tp].has_gap = True
            self.settle(batch.tp)

    def on_out_of_order(self, batch: ProducerBatch, error: OutOfOrderSequenceError) -> Verdict:
        """Judges OUT_OF_ORDER_SEQUENCE_NUMBER. The response was for this attempt; what it says of the log proves more."""
        state = self._partitions[batch.tp]
        if state.sequenced[0] is not batch:
            return Verdict.RETRY  # one before it has to go first
        if not state.has_gap:
            return Verdict.ACKNOWLEDGED_LOST
        for numbered in state.sequenced:
            if not numbered.is_in_flight and _proves_absent(numbered, error):
                numbered.is_fate_unknown = False
        return Verdict.RETRY

    def on_unknown_producer_id(self, batch: ProducerBatch, _error: UnknownProducerIdError) -> Verdict:
        """Judges UNKNOWN_PRODUCER_ID: the broker has no state of this producer (it expired, or nothing ever arrived)."""
        state = self._partitions[batch.tp]
        if state.sequenced[0] is not batch:
            return Verdict.RETRY
        state.has_gap = True
        state.is_forgotten = True
        return Verdict.FAIL if batch.is_fate_unknown else Verdict.RETRY

    def unknowable(self, tp: TopicPartition) -> list[ProducerBatch]:
        """After UNKNOWN_PRODUCER_ID for the first batch: queued ones of unknown fate, which no response can settle now."""
        state = self._partitions[tp]
        if not state.is_forgotten:
            return []
        return [batch for batch in state.sequenced if batch.is_fate_unknown and not batch.is_in_flight]

    def settle(self, tp: TopicPartition) -> None:
        """Moves a partition with a gap to the raised epoch, if nothing there is under way or of unknown fate. Asks for
        the epoch if the producer has none higher yet.
        """
        state = self._partitions.get(tp)
        if state is None or not self._awaits_epoch(state):
            return
        if self.identity == state.identity:
            self._is_bump_wanted = True
            self._is_id_spent = self._is_id_spent or state.is_forgotten
            return
        state.identity = self.identity
        state.next_sequence = 0
        state.has_gap = False
        state.is_forgotten = False
        for batch in state.sequenced:
            batch.clear_sequence()
        state.sequenced.clear()

    def partitions(self) -> list[TopicPartition]:
        """Those that have numbers."""
        return list(self._partitions)

    def forget(self, tp: TopicPartition) -> None:
        """The partition is another one now (its topic was recreated): numbers begin again. Nothing may be under way."""
        state = self._partitions.pop(tp, None)
        for batch in state.sequenced if state is not None else ():
            batch.clear_sequence()

    def _awaits_epoch(self, state: PartitionSequences) -> bool:
        return state.has_gap and not any(batch.is_in_flight or batch.is_fate_unknown for batch in state.sequenced)

    def _drop(self, batch: ProducerBatch) -> None:
        self._partitions[batch.tp].sequenced.remove(batch)


def _proves_absent(batch: ProducerBatch, error: OutOfOrderSequenceError) -> bool:
    """True if the broker's state says that the batch is not in the log: it has not come to this epoch yet, or expects a
    sequence at or before the batch's. Nothing older can arrive later: a stream begins with hello.
    """
    if 0 <= error.current_epoch < batch.identity.epoch:
        return True
    if error.expected_sequence < 0 or error.current_epoch > batch.identity.epoch:
        return False
    distance = (batch.base_sequence - error.expected_sequence) & SEQUENCE_MAX
    return distance < 2**30
