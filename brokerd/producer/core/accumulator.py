"""RecordAccumulator: numbers records and queues them in batches by partition until they are sent. Also ProducerBatch, the sequences
of batches (IdempotenceState), and BufferPool, which accounts for memory.

The accumulator appends to the last batch of a partition, finds nodes with sendable batches and the time of the next check, drains
one batch per partition into a request, re-enqueues failed batches in order, expires, flushes and aborts. It keeps the order of each
partition across retries, starves no partition, and accounts for memory exactly. A partition has a queue only while it has batches;
a drained partition goes to the end of the round.

Rules of sequences (ARCHITECTURE.md has the broker's side, the table of producer states):
- A batch gets its sequence when it is first drained, and keeps it through every retry.
- A batch that ends without being known to be in the log leaves a *gap*. No new batch of that partition is drained until the
  sequenced ones are settled: each is resent with its old sequence while its fate is unknown. Then the partition moves to a raised
  epoch, in which batches that were certainly never appended get new sequences from 0.
- If the broker misses batches that it has acknowledged, it has lost them: this is fatal, and never leads to an epoch bump.
- Fencing is final.

Pure: never waits, reads no clock, and never reads the content of pieces. producer_core.py judges responses.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    MessageTooLargeError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
    WireError,
)
from brokerd.ids import NO_LEADER, NO_PRODUCER, NO_SEQUENCE, PRODUCER_EPOCH_MAX, ProducerIdAndEpoch, TopicPartition
from brokerd.producer.core.partitioner import PartitionLoad
from brokerd.producer.core.transport import BATCH_OVERHEAD_BYTES, RequestLimits, TopicView
from brokerd.record.header import SEQUENCE_MAX, add_sequence

NO_OFFSET = -1
NO_TIMESTAMP = -1


class Piece(NamedTuple):
    """Records that are added to a batch together, in order."""

    data: Any  # a pa.RecordBatch (columns.py), which the core never reads
    record_count: int
    size_bytes: int  # in memory; about what the piece adds to the encoded batch
    timestamp_ms: int  # for records without a timestamp


class ProducerBatch:
    """A batch is open while records are added, then closed, and ended once, by `complete` or `fail`. A split batch never ends; its
    `parts` do.

    A response to a batch that expired or was aborted while in flight does not change its final state. Ending a batch twice in any
    other way is a bug, and raises.
    """

    def __init__(self, tp: TopicPartition, created_ms: int, order: tuple[int, ...] = (0,)) -> None:
        self.tp = tp
        self.order = order  # of sending, within the partition; a part's order extends that of the split batch
        self.created_ms = created_ms  # monotonic, of the first record
        self.pieces: list[Piece] = []
        self.record_count = 0
        self.size_bytes = 0  # estimate until encoded, then exact
        self.uncompressed_bytes = 0  # as size_bytes, without compression
        self.accounted_bytes = 0  # of buffer.memory
        self.is_closed = False
        self.encoded: Any = None  # columns.EncodedBatch, once encoded
        self.parts: tuple[ProducerBatch, ...] = ()  # the batches that a split made of it, in order

        self.identity: ProducerIdAndEpoch = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.numbered_by: IdempotenceState | None = None  # the identity under which the batch was first sent
        self.attempts = 0
        self.was_first = False  # when last drained, it was the first unsettled batch of its partition
        self.leader_epoch = -1  # in which it was last sent; -1 = unknown
        self.is_in_flight = False
        self.is_fate_unknown = False  # an earlier attempt may have appended it
        self.retry_at_ms = 0
        self.last_error: BrokerdError | None = None

        self.is_done = False
        self.is_given_up = False  # ended by expiry or abort: responses may still come
        self.base_offset = NO_OFFSET
        self.append_timestamp = NO_TIMESTAMP
        self.error: BrokerdError | None = None
        self.listeners: list[Callable[[ProducerBatch], None]] = []  # called at the end, then cleared

    def __repr__(self) -> str:
        return f"ProducerBatch({self.tp}, {self.record_count} records, sequence {self.base_sequence}, attempts {self.attempts})"

    @property
    def has_sequence(self) -> bool:
        """True once a sequence was assigned."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record."""
        return add_sequence(self.base_sequence, self.record_count - 1)

    def add(self, piece: Piece) -> int:
        """Adds records and returns the position of the first one."""
        assert not self.is_closed, "a closed batch takes no records"
        at = self.record_count
        self.pieces.append(piece)
        self.record_count += piece.record_count
        self.size_bytes += piece.size_bytes
        self.uncompressed_bytes += piece.size_bytes
        self.accounted_bytes += piece.size_bytes
        return at

    @property
    def is_notified(self) -> bool:
        """True once all its records have a final state and all listeners have been called."""
        if self.listeners:
            return False
        return all(part.is_notified for part in self.parts) if self.parts else self.is_done

    def leaves(self) -> Iterator[ProducerBatch]:
        """The batches that hold its records now: itself, or its parts."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def locate(self, position: int) -> tuple[ProducerBatch, int]:
        """The batch that holds the record at `position` now, and its position there."""
        batch = self
        while batch.parts:
            for part in batch.parts:
                if position < part.record_count:
                    batch = part
                    break
                position -= part.record_count
            else:
                raise IndexError(position)
        return batch, position

    def split_into(self, pieces: list[Piece]) -> None:
        """Splits the batch into one part per piece, in order. The parts divide its sequences, so that the broker recognizes each
        part as a duplicate if an earlier attempt has written the whole batch.
        """
        assert not self.is_done, "what has ended stays whole"
        assert not self.is_in_flight, "what is under way stays whole"
        parts = []
        sequence = self.base_sequence
        for number, piece in enumerate(pieces):
            part = ProducerBatch(self.tp, self.created_ms, (*self.order, number))
            part.add(piece)
            part.is_closed = True
            part.is_fate_unknown = self.is_fate_unknown
            part.last_error = self.last_error
            if self.has_sequence:
                part.assign_sequence(self.identity, sequence, self.numbered_by)
                sequence = add_sequence(sequence, piece.record_count)
            parts.append(part)
        self.parts = tuple(parts)
        self.pieces = []
        self.encoded = None

    @property
    def is_transactional(self) -> bool:
        """True if the batch was first sent as part of a transaction."""
        return self.numbered_by is not None and self.numbered_by.is_member

    def assign_sequence(self, identity: ProducerIdAndEpoch, base_sequence: int, numbered_by: IdempotenceState | None) -> None:
        """Assigns the sequence, once: a retry never changes it."""
        assert not self.has_sequence, "a sequence is assigned once"
        self.identity = identity
        self.base_sequence = base_sequence
        self.numbered_by = numbered_by

    def clear_sequence(self) -> None:
        """Removes the sequence; allowed only if no attempt can have appended the batch."""
        assert not self.is_fate_unknown, "what may be in the log keeps its number"
        assert not self.is_in_flight, "what is under way keeps its number"
        self.identity = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.numbered_by = None

    def complete(self, base_offset: int, append_timestamp: int) -> bool:
        """Ends the batch as written. Returns False if it was given up before the response came."""
        if not self._end():
            return False
        self.base_offset = base_offset
        self.append_timestamp = append_timestamp
        return True

    def fail(self, error: BrokerdError, *, is_given_up: bool = False) -> bool:
        """Ends the batch with an error. `is_given_up`: a response may still come. Returns False if it was given up before."""
        if not self._end():
            return False
        self.error = error
        self.is_given_up = is_given_up
        return True

    def _end(self) -> bool:
        if self.is_done:
            assert self.is_given_up, "a batch ends once"
            return False
        self.is_done = True
        return True


class Verdict(enum.Enum):
    """What to do with a batch after an error."""

    RETRY = "retry"  # with its sequence, or a new one once the partition has moved to a raised epoch
    SPLIT = "split"  # into smaller batches, with its sequences
    FAIL = "fail"  # also if the broker's producer state can no longer reveal its fate
    ACKNOWLEDGED_LOST = "acknowledged lost"  # fatal: the broker misses records that it has acknowledged


class PartitionSequences:
    """The sequences of one partition under one producer id and epoch."""

    __slots__ = ("has_gap", "identity", "is_forgotten", "next_sequence", "sequenced")

    def __init__(self, identity: ProducerIdAndEpoch) -> None:
        self.identity = identity
        self.next_sequence = 0
        self.sequenced: list[ProducerBatch] = []  # with a sequence, and not ended or still in flight, in order
        self.has_gap = False
        self.is_forgotten = False  # the broker has no producer state, so an unknown fate stays unknown


class IdempotenceState:
    """A producer id, and the sequences of all partitions. `is_member`: for one transaction, in one epoch."""

    def __init__(self, *, is_member: bool = False) -> None:
        self.is_member = is_member
        self.identity = NO_PRODUCER
        self._partitions: dict[TopicPartition, PartitionSequences] = {}
        self._is_bump_wanted = False
        self._is_id_spent = False  # a broker has forgotten the id and may refuse it for good, so a new one is needed

    # --- identity

    @property
    def has_identity(self) -> bool:
        """True once there is a producer id."""
        return self.identity != NO_PRODUCER

    def identity_wanted(self) -> ProducerIdAndEpoch | None:
        """The identity to send with InitProducerId: NO_PRODUCER for a new id (at first, if a broker has forgotten this one, or if
        its epochs are exhausted), the current identity to raise its epoch, None if there is nothing to request.
        """
        if self.identity == NO_PRODUCER:
            return NO_PRODUCER
        if self.is_member or not self._is_bump_wanted:
            return None
        return NO_PRODUCER if self._is_id_spent or self.identity.epoch >= PRODUCER_EPOCH_MAX else self.identity

    def set_identity(self, identity: ProducerIdAndEpoch) -> None:
        """Sets the identity that the broker has granted. Partitions with a gap move to it once they are settled."""
        self.identity = identity
        self._is_bump_wanted = self._is_id_spent = False
        for tp in list(self._partitions):
            self.settle(tp)

    # --- sequences

    def may_drain(self, batch: ProducerBatch) -> bool:
        """False for a retry that is not first, or a new batch after a gap, an ended batch still in flight, or a wrap-around."""
        if self.identity == NO_PRODUCER:
            return False
        state = self._partitions.get(batch.tp)
        if state is None:
            return True
        if batch.has_sequence:
            return state.sequenced[0] is batch and not self._awaits_epoch(state)
        if state.next_sequence == 0 and state.sequenced:
            # After a wrap-around. A broker that has forgotten this producer accepts any batch that begins at 0, and would then
            # refuse earlier ones still in flight, so this batch is sent alone.
            return False
        return not state.has_gap and not any(earlier.is_done for earlier in state.sequenced)

    def assign(self, batch: ProducerBatch) -> None:
        """Assigns the next sequence of its partition to the batch."""
        state = self._partitions.get(batch.tp)
        if state is None:
            state = self._partitions[batch.tp] = PartitionSequences(self.identity)
        batch.assign_sequence(state.identity, state.next_sequence, self)
        batch.was_first = not state.sequenced
        state.next_sequence = add_sequence(state.next_sequence, batch.record_count)
        state.sequenced.append(batch)

    def on_split(self, batch: ProducerBatch) -> None:
        """Replaces the batch by its parts, which have its sequences. They are sent one at a time, as retries are."""
        sequenced = self._partitions[batch.tp].sequenced
        at = sequenced.index(batch)
        sequenced[at : at + 1] = batch.parts

    # --- results of batches with sequences

    def on_success(self, batch: ProducerBatch) -> None:
        """Notes that a batch is in the log."""
        self._drop(batch)
        self.settle(batch.tp)

    def on_ended(self, batch: ProducerBatch) -> None:
        """Notes that a batch has ended without being known to be in the log, and is not in flight: it leaves a gap."""
        self._drop(batch)
        self._partitions[batch.tp].has_gap = True
        self.settle(batch.tp)

    def on_out_of_order(self, batch: ProducerBatch, error: OutOfOrderSequenceError) -> Verdict:
        """Judges OUT_OF_ORDER_SEQUENCE_NUMBER. Its expected_sequence also shows which other batches were never appended."""
        state = self._partitions[batch.tp]
        if not batch.was_first:
            return Verdict.RETRY  # the broker may have missed an earlier batch then, even if that one is acknowledged now
        if not state.has_gap:
            return Verdict.ACKNOWLEDGED_LOST
        for numbered in state.sequenced:
            if not numbered.is_in_flight and _proves_absent(numbered, error):
                numbered.is_fate_unknown = False
        return Verdict.RETRY

    def on_unknown_producer_id(self, batch: ProducerBatch) -> Verdict:
        """Judges UNKNOWN_PRODUCER_ID: the broker has no state of this producer (it expired, or no batch ever arrived)."""
        state = self._partitions[batch.tp]
        if not batch.was_first:
            return Verdict.RETRY
        state.has_gap = True
        state.is_forgotten = True
        return Verdict.FAIL if batch.is_fate_unknown or self.is_member else Verdict.RETRY

    def unknowable(self, tp: TopicPartition) -> list[ProducerBatch]:
        """After UNKNOWN_PRODUCER_ID for the first batch: the queued batches of unknown fate, which no response can settle now."""
        state = self._partitions[tp]
        if not state.is_forgotten:
            return []
        return [batch for batch in state.sequenced if batch.is_fate_unknown and not batch.is_in_flight]

    def settle(self, tp: TopicPartition) -> None:
        """Moves a partition with a gap to the raised epoch, unless a batch of it is in flight or of unknown fate. Requests an epoch
        bump if the producer still has the old epoch.
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
        """Partitions that have sequences."""
        return list(self._partitions)

    def forget(self, tp: TopicPartition) -> None:
        """Drops the sequences of a partition whose topic was recreated. None of its batches may be in flight."""
        state = self._partitions.pop(tp, None)
        for batch in state.sequenced if state is not None else ():
            batch.clear_sequence()

    def _awaits_epoch(self, state: PartitionSequences) -> bool:
        return state.has_gap and not any(batch.is_in_flight or batch.is_fate_unknown for batch in state.sequenced)

    def _drop(self, batch: ProducerBatch) -> None:
        self._partitions[batch.tp].sequenced.remove(batch)


def _proves_absent(batch: ProducerBatch, error: OutOfOrderSequenceError) -> bool:
    """True if the broker's producer state proves that the batch is not in the log: it is of an earlier epoch, or expects a sequence
    at or before the batch's. No earlier attempt can arrive later, since a stream's Hello fences earlier streams.
    """
    if 0 <= error.current_epoch < batch.identity.epoch:
        return True
    if error.expected_sequence < 0 or error.current_epoch > batch.identity.epoch:
        return False
    distance = (batch.base_sequence - error.expected_sequence) & SEQUENCE_MAX
    return distance < 2**30


def verdict_on(batch: ProducerBatch, error: BrokerdError, *, retries: int) -> Verdict:
    """Decides whether to retry, split or fail a batch of a producer that is not stopped."""
    if isinstance(error, MessageTooLargeError) and batch.record_count > 1:
        return Verdict.SPLIT
    if batch.attempts > retries:
        return Verdict.FAIL
    if isinstance(error, BrokerUnreachableError):
        return Verdict.RETRY
    assert isinstance(error, WireError)
    if batch.numbered_by is not None:
        if isinstance(error, OutOfOrderSequenceError):
            return batch.numbered_by.on_out_of_order(batch, error)
        if isinstance(error, UnknownProducerIdError):
            return batch.numbered_by.on_unknown_producer_id(batch)
    return Verdict.RETRY if error.retriable else Verdict.FAIL


class WaitingCall(Protocol):
    """An application's call that waits for memory or for a topic."""

    is_over: bool  # no longer waits


class BufferPool:
    """Accounts for the bytes in use, out of `total_bytes`. After `admits`, the caller itself adds the bytes to `used_bytes`, so
    that no interrupt separates that from the change that uses them.

    An empty buffer admits any single batch, so that one larger than the whole buffer is not blocked forever.
    """

    __slots__ = ("_waiting", "total_bytes", "used_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._waiting: OrderedDict[WaitingCall, int] = OrderedDict()  # the bytes that each call in line waits for

    @property
    def available_bytes(self) -> int:
        """Free bytes; 0 while more than the total is in use."""
        return max(0, self.total_bytes - self.used_bytes)

    @property
    def is_exhausted(self) -> bool:
        """True while a call waits for memory."""
        while self._waiting and next(iter(self._waiting)).is_over:
            self._waiting.popitem(last=False)
        return bool(self._waiting)

    def admits(self, size_bytes: int, call: WaitingCall | None = None) -> bool:
        """True if the bytes fit and no other call has waited longer. Otherwise puts `call` in line until it is over."""
        is_next = not self.is_exhausted or next(iter(self._waiting)) is call
        if is_next and (self.used_bytes == 0 or self.used_bytes + size_bytes <= self.total_bytes):
            return True
        if call is not None:
            self._waiting[call] = size_bytes
        return False

    def blocks(self, call: WaitingCall) -> bool:
        """True if the call is in line, and would not be admitted now."""
        return call in self._waiting and not self.admits(self._waiting[call], call)

    def adjust(self, delta_bytes: int) -> None:
        """Corrects the bytes in use, for example after encoding; they may exceed the total briefly."""
        self.used_bytes += delta_bytes
        assert self.used_bytes >= 0, f"{self.used_bytes} bytes held after {delta_bytes}"

    def release(self, size_bytes: int) -> None:
        """Frees bytes."""
        self.adjust(-size_bytes)


NEVER_MS = 2**63 - 1
# The response comes when the last batch of a request is durable. If one large request carried all partitions, none could send again
# before the slowest one is durable, and encoding, sending, writing and syncing would alternate instead of overlapping.
REQUEST_FILL_BYTES = 2_097_152

LeaderOf = Callable[[TopicPartition], int]


class PartitionQueue:
    """Batches of one partition that are not in flight, oldest first; the last may be open."""

    __slots__ = ("batches", "in_flight_count", "muted_until_ms", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.batches: deque[ProducerBatch] = deque()
        self.in_flight_count = 0
        self.muted_until_ms = 0


@dataclass(slots=True)
class ReadyCheck:
    """The result of `ready`: by node, the partitions whose first batch can be sent now, in order; the time of the next check
    (NEVER_MS: nothing waits); topics with leaderless partitions. `drain` removes partitions and keeps it up to date.
    """

    nodes: dict[int, deque[PartitionQueue]]
    next_check_ms: int
    leaderless_topics: set[str]


class RecordAccumulator:
    """All batches of one producer that are queued or in flight. `sequences` is None without idempotence."""

    def __init__(self, config: ProducerConfig, sequences: IdempotenceState | None, pool: BufferPool) -> None:
        self._config = config
        self.sequences = sequences  # assigns sequences; replaced only while no queued batch has one
        self.pool = pool
        self._queues: OrderedDict[TopicPartition, PartitionQueue] = OrderedDict()
        self._incomplete: dict[ProducerBatch, None] = {}  # in order of creation
        self._batch_count = 0
        self._flushing: set[ProducerBatch] = set()
        self._batch_sizes: dict[str, int] = {}  # bytes by topic, if the broker accepts less than batch.size
        self._learned_ms: dict[str, int] = {}  # time of the last `learn_batch_size`
        self.is_closed = False  # everything is sent without linger; the caller appends nothing more

    # --- appending

    def append(self, tp: TopicPartition, piece: Piece, now_ms: int) -> tuple[ProducerBatch, int]:
        """Adds records whose memory is already reserved. Returns their batch, and the position of the first in it. `now_ms`: when
        the first of them was sent.

        A batch closes when the next piece would make it larger than batch.size; a piece of that size gets its own batch.
        """
        queue = self._queue(tp)
        batch = queue.batches[-1] if queue.batches else None
        if batch is not None and not batch.is_closed and batch.size_bytes + piece.size_bytes > self.batch_size_of(tp.topic):
            batch.is_closed = True
        if batch is None or batch.is_closed:
            self._batch_count += 1
            batch = ProducerBatch(tp, now_ms, (self._batch_count,))
            queue.batches.append(batch)
            self._incomplete[batch] = None
        at = batch.add(piece)
        if batch.size_bytes >= self.batch_size_of(tp.topic):
            batch.is_closed = True
        return batch, at

    def batch_size_of(self, topic: str) -> int:
        """Bytes at which a batch of the topic closes: batch.size, or less if the broker has refused batches of that size."""
        return self._batch_sizes.get(topic, self._config.batch_size)

    def learn_batch_size(self, topic: str, size_bytes: int, now_ms: int) -> int:
        """Lowers the batch size of the topic to `size_bytes`, if that is less than before. Returns the effective size."""
        self._learned_ms[topic] = now_ms
        self._batch_sizes[topic] = size_bytes = max(1, min(size_bytes, self.batch_size_of(topic)))
        return size_bytes

    def forget_batch_size(self, topic: str) -> None:
        """Forgets the learned batch size of a topic."""
        self._batch_sizes.pop(topic, None)
        self._learned_ms.pop(topic, None)

    def forget_batch_sizes(self, until_ms: int) -> None:
        """Forgets batch sizes last learned at or before `until_ms`, since the broker's limit may have been raised."""
        for topic in [topic for topic, learned_ms in self._learned_ms.items() if learned_ms <= until_ms]:
            self.forget_batch_size(topic)

    # --- ready, drain

    def ready(self, leader_of: LeaderOf, now_ms: int) -> ReadyCheck:
        """Finds the partitions with a sendable batch, by node. A batch is sendable if it is full, its linger has passed, calls
        wait for memory, it is being flushed, the producer is closing, or it is a retry whose back-off has passed; but never in a
        muted partition, behind a batch in back-off, or out of sequence.
        """
        check = ReadyCheck({}, NEVER_MS, set())
        for tp, queue in self._queues.items():
            sendable_ms = self._sendable_ms(queue, now_ms)
            if sendable_ms > now_ms:
                check.next_check_ms = min(check.next_check_ms, sendable_ms)
                continue
            leader = leader_of(tp)
            if leader == NO_LEADER:
                check.leaderless_topics.add(tp.topic)
            else:
                check.nodes.setdefault(leader, deque()).append(queue)
        return check

    def _sendable_ms(self, queue: PartitionQueue, now_ms: int) -> int:
        """The time when the first batch of the queue may be sent, if no event comes before (NEVER_MS: only after an event)."""
        if not queue.batches or self._is_muted(queue):
            return NEVER_MS
        batch = queue.batches[0]
        if self.sequences is not None and not self.sequences.may_drain(batch):
            return NEVER_MS
        not_before_ms = max(queue.muted_until_ms, batch.retry_at_ms)
        if batch.attempts > 0 or self._is_full(queue, batch) or batch in self._flushing:
            return max(not_before_ms, now_ms)
        return max(not_before_ms, self.linger_ends_ms(batch.created_ms))

    def linger_ends_ms(self, created_ms: int) -> int:
        """End of the linger of records sent at `created_ms`. Nothing lingers while a call waits for memory, or once the producer
        closes.
        """
        return created_ms if self.pool.is_exhausted or self.is_closed else created_ms + self._config.linger_ms

    def _is_full(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        return len(queue.batches) > 1 or batch.is_closed or batch.size_bytes >= self.batch_size_of(batch.tp.topic)

    def _is_muted(self, queue: PartitionQueue) -> bool:
        return queue.in_flight_count >= self._config.max_in_flight_batches

    def drain(self, check: ReadyCheck, node_id: int, limits: RequestLimits, now_ms: int) -> list[ProducerBatch]:
        """Takes batches for one request to a node: one per partition, within the node's limits of partitions and bytes, and
        max.request.size (a larger first batch goes alone). The request is full at REQUEST_FILL_BYTES; the rest goes into further
        requests. Sizes are estimates until batches are encoded.

        Drained partitions go to the end of the round, so none starves. Each batch taken is closed, gets a sequence if it has none,
        and counts as in flight for its partition.
        """
        drained: list[ProducerBatch] = []
        size_bytes = BATCH_OVERHEAD_BYTES  # of the request itself
        size_max = min(self._config.max_request_size, limits.bytes_max)
        waiting = check.nodes.get(node_id, deque())
        while waiting and len(drained) < limits.partitions_max and size_bytes < REQUEST_FILL_BYTES:
            batch = waiting[0].batches[0]
            size_bytes += batch.size_bytes + BATCH_OVERHEAD_BYTES
            if drained and size_bytes > size_max:
                break
            waiting.popleft()
            drained.append(batch)
        for batch in drained:
            self._take(batch)
            self._check_again(check, node_id, self._queues[batch.tp], now_ms)
        return drained

    def _check_again(self, check: ReadyCheck, node_id: int, queue: PartitionQueue, now_ms: int) -> None:
        """Puts a drained partition back into `check`, or the time when its next batch may be sent."""
        sendable_ms = self._sendable_ms(queue, now_ms)
        if sendable_ms > now_ms:
            check.next_check_ms = min(check.next_check_ms, sendable_ms)
        else:
            check.nodes[node_id].append(queue)

    def _take(self, batch: ProducerBatch) -> None:
        queue = self._queues[batch.tp]
        queue.batches.popleft()
        batch.is_closed = True
        if self.sequences is not None and not batch.has_sequence:
            self.sequences.assign(batch)
        else:
            batch.was_first = True  # a retry is only drained once all batches before it are settled
        batch.is_in_flight = True
        batch.attempts += 1
        self.mute(batch.tp)
        self._queues.move_to_end(batch.tp)

    # --- results

    def mute(self, tp: TopicPartition) -> None:
        """Counts a batch as in flight; at max.in.flight.batches.per.partition, no more are drained from the partition."""
        self._queues[tp].in_flight_count += 1

    def unmute(self, tp: TopicPartition, throttled_until_ms: int) -> None:
        """Counts a batch as no longer in flight; none is drained from the partition before `throttled_until_ms`."""
        queue = self._queues[tp]
        queue.in_flight_count -= 1
        assert queue.in_flight_count >= 0
        queue.muted_until_ms = max(queue.muted_until_ms, throttled_until_ms)

    def forget_idle(self, tp: TopicPartition, now_ms: int) -> None:
        """Drops the partition's queue if it is empty and idle, so that a long-lived producer keeps no unused queues."""
        queue = self._queues.get(tp)
        if queue is not None and not queue.batches and not queue.in_flight_count and queue.muted_until_ms <= now_ms:
            del self._queues[tp]

    def reenqueue(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """Puts a batch back into its queue by order of sending, which is that of sequences, before all batches never sent."""
        batch.retry_at_ms = retry_at_ms
        queue = self._queues[batch.tp]
        later: list[ProducerBatch] = []
        while queue.batches and queue.batches[0].order < batch.order:
            later.append(queue.batches.popleft())
        queue.batches.appendleft(batch)
        queue.batches.extendleft(reversed(later))

    def split(self, batch: ProducerBatch, pieces: list[Piece]) -> None:
        """Puts a batch back into its queue as several smaller ones, one per piece."""
        self.reenqueue(batch, 0)
        batch.split_into(pieces)
        queue = self._queues[batch.tp]
        earlier: list[ProducerBatch] = []
        while (first := queue.batches.popleft()) is not batch:
            earlier.append(first)
        queue.batches.extendleft(reversed((*earlier, *batch.parts)))
        if self.sequences is not None and batch.has_sequence:
            self.sequences.on_split(batch)
        if batch in self._flushing:
            self._flushing.remove(batch)
            self._flushing.update(batch.parts)
        # Expiry relies on the order of creation, and the parts are as old as the batch.
        self._incomplete = {part: None for one in self._incomplete for part in (batch.parts if one is batch else (one,))}
        self.pool.adjust(sum(part.accounted_bytes for part in batch.parts) - batch.accounted_bytes)
        batch.accounted_bytes = 0

    def release(self, batch: ProducerBatch) -> None:
        """Frees the memory of an ended batch that is not in flight."""
        assert batch.is_done, "only an ended batch is freed"
        assert not batch.is_in_flight, "a batch in flight is still read"
        self.pool.release(batch.accounted_bytes)
        batch.accounted_bytes = 0
        batch.pieces = []
        batch.encoded = None

    def finished(self, batch: ProducerBatch) -> None:
        """Notes that a batch has its final state, so that flushes no longer wait for it."""
        self._incomplete.pop(batch, None)
        self._flushing.discard(batch)

    def remove(self, batch: ProducerBatch) -> None:
        """Removes an ended batch from its queue, if it is there."""
        queue = self._queues.get(batch.tp)
        if queue is not None and batch in queue.batches:
            queue.batches.remove(batch)

    def expired_batches(self, now_ms: int) -> list[ProducerBatch]:
        """Batches older than delivery.timeout.ms, in flight or not, in order of creation."""
        limit_ms = now_ms - self._config.delivery_timeout_ms
        expired = []
        for batch in self._incomplete:
            if batch.created_ms > limit_ms:
                break
            expired.append(batch)
        return expired

    def next_expiry_ms(self) -> int:
        """The time when the oldest batch expires (NEVER_MS: there is none)."""
        for batch in self._incomplete:
            return batch.created_ms + self._config.delivery_timeout_ms
        return NEVER_MS

    # --- flush

    def begin_flush(self) -> list[ProducerBatch]:
        """Sends all incomplete batches without further linger, and returns them. The flush is over when all of them are done."""
        batches = list(self._incomplete)
        self._flushing.update(batches)
        return batches

    def incomplete(self) -> list[ProducerBatch]:
        """Every batch without a final state, in order of creation."""
        return list(self._incomplete)

    # --- queries

    def queued(self, tp: TopicPartition) -> Iterable[ProducerBatch]:
        """Batches of a partition that are not in flight."""
        queue = self._queues.get(tp)
        return tuple(queue.batches) if queue is not None else ()

    def load_of(self, topic: str, view: TopicView) -> PartitionLoad:
        """The current load of the topic's partitions, for choosing one for records without a key."""
        return PartitionLoad(view, lambda: self._queue_sizes(topic), lambda number: self._is_backing_off(topic, number))

    def _queue_sizes(self, topic: str) -> dict[int, int]:
        return {tp.partition: len(queue.batches) for tp, queue in self._queues.items() if tp.topic == topic and queue.batches}

    def _is_backing_off(self, topic: str, partition: int) -> bool:
        queue = self._queues.get(TopicPartition(topic, partition))
        return queue is not None and bool(queue.batches) and queue.batches[0].attempts > 0

    def in_flight_count(self, tp: TopicPartition) -> int:
        """Number of batches of a partition that are in flight."""
        queue = self._queues.get(tp)
        return queue.in_flight_count if queue is not None else 0

    def partitions(self) -> list[TopicPartition]:
        """Partitions with batches that are queued or in flight, or that are throttled."""
        return list(self._queues)

    @property
    def has_incomplete(self) -> bool:
        """True while some batch has no final state."""
        return bool(self._incomplete)

    def last_error(self) -> BrokerdError | None:
        """The last error of the oldest incomplete batch that has one, for error messages."""
        return next((batch.last_error for batch in self._incomplete if batch.last_error), None)

    def _queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(tp)
        return queue
