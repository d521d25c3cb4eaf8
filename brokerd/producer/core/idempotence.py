"""Producer id, epoch and sequences: numbers batches so that retries cannot duplicate, and judges what each response proves.

Rules (the broker's side of them is the table of producer states in ARCHITECTURE.md):
- A batch gets its number when it is first drained, and keeps it through every retry.
- A batch that ends without being known to be in the log leaves a *gap*. Nothing new is drained for that partition until the
  numbered batches are settled: each is sent again under its old number while its fate is unknown; then the partition moves to
  a raised epoch, in which batches that were certainly never appended get new numbers from 0.
- A gap below batches that were acknowledged is not the producer's: the broker has lost them, which is fatal, never an epoch bump.
- Fenced is final.
- A transaction has one epoch: a batch that ends without being known to be in the log ends the member (identity.py).

Pure. producer_core.py requests ids and epochs.
"""

from __future__ import annotations

import enum

from brokerd.errors import OutOfOrderSequenceError, UnknownProducerIdError
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicPartition
from brokerd.producer.core.producer_batch import ProducerBatch
from brokerd.record.header import SEQUENCE_MAX, add_sequence

EPOCH_MAX = 2**15 - 1


class Verdict(enum.Enum):
    """The decision about a batch for which the broker has returned an error."""

    RETRY = "retry"  # under its number, or a new one once the partition has moved to a raised epoch
    SPLIT = "split"  # in smaller ones, under its numbers
    FAIL = "fail"  # after an error of the producer's state also: its fate can no longer be known
    ACKNOWLEDGED_LOST = "acknowledged lost"  # fatal: the broker does not have what it acknowledged


class PartitionSequences:
    """Numbers of one partition under one producer id and epoch."""

    __slots__ = ("has_gap", "identity", "is_forgotten", "next_sequence", "sequenced")

    def __init__(self, identity: ProducerIdAndEpoch) -> None:
        self.identity = identity
        self.next_sequence = 0
        self.sequenced: list[ProducerBatch] = []  # numbered, and not ended or still in flight, in order
        self.has_gap = False
        self.is_forgotten = False  # the broker has no state of it: an unknown fate stays unknown


class IdempotenceState:
    """A producer id and all partitions' sequences. `is_member`: for one transaction, in one epoch."""

    def __init__(self, *, is_member: bool = False) -> None:
        self.is_member = is_member
        self.identity = NO_PRODUCER
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._is_bump_wanted = False
        self._is_id_spent = False  # a broker has forgotten the id, and may refuse it for good: another one is needed

    # --- identity

    @property
    def has_identity(self) -> bool:
        """True once there is a producer id."""
        return self.identity != NO_PRODUCER

    def identity_wanted(self) -> ProducerIdAndEpoch | None:
        """The identity to send with InitProducerId: NO_PRODUCER for a new id (at first, when a broker has forgotten this one, and
        when the epoch is used up), the present identity to raise its epoch, None if there is nothing to request.
        """
        if self.identity == NO_PRODUCER:
            return NO_PRODUCER
        if self.is_member or not self._is_bump_wanted:
            return None
        return NO_PRODUCER if self._is_id_spent or self.identity.epoch >= EPOCH_MAX else self.identity

    def set_identity(self, identity: ProducerIdAndEpoch) -> None:
        """Takes the identity that the broker has granted. Partitions that wait for it move to it as soon as they are settled."""
        self.identity = identity
        self._is_bump_wanted = self._is_id_spent = False
        for tp in list(self._partitions):
            self.settle(tp)

    # --- numbers

    def may_drain(self, batch: ProducerBatch) -> bool:
        """False for a retry that is not first, and for a new batch behind a gap, an expired batch still in flight, or a wrap."""
        if self.identity == NO_PRODUCER:
            return False
        state = self._partitions.get(batch.tp)
        if state is None:
            return True
        if batch.has_sequence:
            return state.sequenced[0] is batch and not self._awaits_epoch(state)
        if state.next_sequence == 0 and state.sequenced:
            # After a wrap. A broker that has forgotten this producer accepts any batch that begins at 0, and refuses those
            # before it that are still in flight: so it is sent alone.
            return False
        return not state.has_gap and not any(earlier.is_done for earlier in state.sequenced)

    def assign(self, batch: ProducerBatch) -> None:
        """Gives the batch the next sequence numbers of its partition."""
        state = self._partitions.get(batch.tp)
        if state is None:
            state = self._partitions[batch.tp] = PartitionSequences(self.identity)
        batch.assign_sequence(state.identity, state.next_sequence, self)
        batch.was_first = not state.sequenced
        state.next_sequence = add_sequence(state.next_sequence, batch.record_count)
        state.sequenced.append(batch)

    def on_split(self, batch: ProducerBatch) -> None:
        """Puts the batch's parts in its place, with its numbers. They are sent one after the other, as retries are."""
        sequenced = self._partitions[batch.tp].sequenced
        at = sequenced.index(batch)
        sequenced[at : at + 1] = batch.parts

    # --- results of numbered batches

    def on_success(self, batch: ProducerBatch) -> None:
        """Notes that a batch is in the log."""
        self._drop(batch)
        self.settle(batch.tp)

    def on_ended(self, batch: ProducerBatch) -> None:
        """Notes that a batch has ended without being known to be in the log, and is not in flight: its numbers are a gap."""
        self._drop(batch)
        self._partitions[batch.tp].has_gap = True
        self.settle(batch.tp)

    def on_out_of_order(self, batch: ProducerBatch, error: OutOfOrderSequenceError) -> Verdict:
        """Judges OUT_OF_ORDER_SEQUENCE_NUMBER. Its expected_sequence tells about earlier attempts too, not only about this one."""
        state = self._partitions[batch.tp]
        if not batch.was_first:
            return Verdict.RETRY  # the broker may have lacked an earlier batch then, even if that one is acknowledged now
        if not state.has_gap:
            return Verdict.ACKNOWLEDGED_LOST
        for numbered in state.sequenced:
            if not numbered.is_in_flight and _proves_absent(numbered, error):
                numbered.is_fate_unknown = False
        return Verdict.RETRY

    def on_unknown_producer_id(self, batch: ProducerBatch, _error: UnknownProducerIdError) -> Verdict:
        """Judges UNKNOWN_PRODUCER_ID: the broker has no state of this producer (it expired, or nothing ever arrived)."""
        state = self._partitions[batch.tp]
        if not batch.was_first:
            return Verdict.RETRY
        state.has_gap = True
        state.is_forgotten = True
        return Verdict.FAIL if batch.is_fate_unknown or self.is_member else Verdict.RETRY

    def unknowable(self, tp: TopicPartition) -> list[ProducerBatch]:
        """The queued batches of unknown fate after UNKNOWN_PRODUCER_ID for the first one: no response can settle them any more."""
        state = self._partitions[tp]
        if not state.is_forgotten:
            return []
        return [batch for batch in state.sequenced if batch.is_fate_unknown and not batch.is_in_flight]

    def settle(self, tp: TopicPartition) -> None:
        """Moves a partition with a gap to the raised epoch, unless batches of it are in flight or of unknown fate. Requests the
        epoch if the producer does not have it yet.
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
        """Partitions with numbered batches."""
        return list(self._partitions)

    def forget(self, tp: TopicPartition) -> None:
        """Begins a partition's numbers again, since its topic was recreated. None of its batches may be in flight."""
        state = self._partitions.pop(tp, None)
        for batch in state.sequenced if state is not None else ():
            batch.clear_sequence()

    def _awaits_epoch(self, state: PartitionSequences) -> bool:
        return state.has_gap and not any(batch.is_in_flight or batch.is_fate_unknown for batch in state.sequenced)

    def _drop(self, batch: ProducerBatch) -> None:
        self._partitions[batch.tp].sequenced.remove(batch)


def _proves_absent(batch: ProducerBatch, error: OutOfOrderSequenceError) -> bool:
    """True if the broker's state shows that the batch is not in the log: the broker has not seen this epoch yet, or expects a
    sequence at or before the batch's. No older attempt can arrive later, since a stream's hello fences earlier streams.
    """
    if 0 <= error.current_epoch < batch.identity.epoch:
        return True
    if error.expected_sequence < 0 or error.current_epoch > batch.identity.epoch:
        return False
    distance = (batch.base_sequence - error.expected_sequence) & SEQUENCE_MAX
    return distance < 2**30
