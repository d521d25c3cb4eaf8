"""RecordAccumulator: queues records in batches by partition until they are sent. Also ProducerBatch, the records of one partition
that are sent together, from the first record to the acknowledgement; and BufferPool, which accounts for memory.

The accumulator appends to the last batch of a partition, finds nodes with sendable batches and the time of the next check, drains
one batch per partition into a request, re-enqueues failed batches in order, and finds expired batches. It keeps the order of each
partition across retries, starves no partition, and accounts for memory exactly. A partition has a queue only while it has batches;
a drained partition goes to the end of the round.

A table lists the allowed state transitions of a batch. Whether an attempt has reached the log is not a state: `is_fate_unknown`
holds what is known, which may improve at any time.

Pure: never waits, reads no clock, and never reads the content of pieces. identity.py has the rules of sequences.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from brokerd.config.client import ProducerConfig
from brokerd.errors import BrokerdError
from brokerd.ids import NO_LEADER, NO_PRODUCER, NO_SEQUENCE, ProducerIdAndEpoch, TopicInfo, TopicPartition
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.partitioner import PartitionLoad
from brokerd.producer.core.transport import BATCH_OVERHEAD_BYTES, RequestLimits
from brokerd.record.header import add_sequence

NO_OFFSET = -1
NO_TIMESTAMP = -1
NEVER_MS = 2**63 - 1  # a time that is never reached


class BatchState(enum.Enum):
    """The states of a batch."""

    OPEN = "open"  # records are added
    CLOSED = "closed"  # waits to be sent, for the first time or again
    IN_FLIGHT = "in flight"
    GIVEN_UP = "given up"  # in flight, but the application already has its error; the response cannot change it
    ENDED = "ended"  # written or failed
    SPLIT = "split"  # replaced by its parts


_MOVES = {
    BatchState.OPEN: {BatchState.CLOSED, BatchState.IN_FLIGHT, BatchState.ENDED},
    BatchState.CLOSED: {BatchState.IN_FLIGHT, BatchState.ENDED, BatchState.SPLIT},
    BatchState.IN_FLIGHT: {BatchState.CLOSED, BatchState.GIVEN_UP, BatchState.ENDED},
    BatchState.GIVEN_UP: {BatchState.ENDED},
    BatchState.ENDED: set[BatchState](),
    BatchState.SPLIT: set[BatchState](),
}


class Piece(NamedTuple):
    """Records that are added to a batch together, in order."""

    data: Any  # a pa.RecordBatch (columns.py), which the core never reads
    record_count: int
    size_bytes: int  # in memory; about what the piece adds to the encoded batch
    timestamp_ms: int  # for records without a timestamp


class ProducerBatch:
    """Records of one partition, their sequence, and their outcome."""

    def __init__(self, tp: TopicPartition, created_ms: int, order: tuple[int, ...] = (0,)) -> None:
        self.tp = tp
        self.order = order  # of sending, within the partition; a part extends the order of the split batch
        self.created_ms = created_ms  # monotonic, of the first record
        self.state = BatchState.OPEN
        self.pieces: list[Piece] = []
        self.record_count = 0
        self.size_bytes = 0  # estimate until encoded, then exact
        self.uncompressed_bytes = 0  # as size_bytes, without compression
        self.accounted_bytes = 0  # reserved in buffer.memory
        self.encoded: Any = None  # columns.EncodedBatch, once encoded
        self.parts: tuple[ProducerBatch, ...] = ()  # the batches that it was split into, in order

        self.identity: ProducerIdAndEpoch = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.membership: Membership | None = None  # the member of a transaction that first sent the batch
        self.attempts = 0
        self.was_first = False  # when last drained, every earlier batch of its partition had its outcome
        self.leader_epoch = -1  # of the last attempt; -1 = unknown
        self.is_fate_unknown = False  # an earlier attempt may have appended it
        self.retry_at_ms = 0
        self.retried_since_ms = -1  # -1 = never retried
        self.last_error: BrokerdError | None = None

        self.base_offset = NO_OFFSET
        self.append_timestamp = NO_TIMESTAMP
        self.error: BrokerdError | None = None
        self.listeners: list[Callable[[ProducerBatch], None]] = []  # called at the end, then cleared

    def __repr__(self) -> str:
        return f"ProducerBatch({self.tp}, {self.record_count} records, sequence {self.base_sequence}, {self.state.value})"

    # --- states

    def _move(self, state: BatchState) -> None:
        assert state in _MOVES[self.state], f"{self!r} cannot become {state.value}"
        self.state = state

    @property
    def is_in_flight(self) -> bool:
        """True while a response may come."""
        return self.state in (BatchState.IN_FLIGHT, BatchState.GIVEN_UP)

    @property
    def is_done(self) -> bool:
        """True once the application has the outcome."""
        return self.state in (BatchState.ENDED, BatchState.GIVEN_UP)

    def add(self, piece: Piece) -> int:
        """Adds records and returns the position of the first one."""
        assert self.state is BatchState.OPEN, "a closed batch takes no records"
        at = self.record_count
        self.pieces.append(piece)
        self.record_count += piece.record_count
        self.size_bytes += piece.size_bytes
        self.uncompressed_bytes += piece.size_bytes
        self.accounted_bytes += piece.size_bytes
        return at

    def close(self) -> None:
        """Closes the batch to further records, if it is open."""
        if self.state is BatchState.OPEN:
            self._move(BatchState.CLOSED)

    def send(self) -> None:
        """Begins an attempt; no more records are added."""
        self._move(BatchState.IN_FLIGHT)
        self.attempts += 1

    def come_back(self) -> None:
        """Ends an attempt that is not known to have written the batch."""
        self._move(BatchState.ENDED if self.state is BatchState.GIVEN_UP else BatchState.CLOSED)

    def complete(self, base_offset: int, append_timestamp: int) -> bool:
        """Ends a batch in flight as written. Returns False if it was given up before the response came."""
        was_given_up = self.state is BatchState.GIVEN_UP
        assert self.is_in_flight, "only an attempt can write a batch"
        self._move(BatchState.ENDED)
        if not was_given_up:
            self.base_offset = base_offset
            self.append_timestamp = append_timestamp
        return not was_given_up

    def fail(self, error: BrokerdError) -> None:
        """Ends the batch with an error; a batch in flight is given up."""
        self._move(BatchState.GIVEN_UP if self.state is BatchState.IN_FLIGHT else BatchState.ENDED)
        self.error = error

    # --- sequences

    @property
    def has_sequence(self) -> bool:
        """True once a sequence was assigned."""
        return self.base_sequence != NO_SEQUENCE

    def assign_sequence(self, identity: ProducerIdAndEpoch, base_sequence: int, membership: Membership | None) -> None:
        """Assigns the sequence, once: a retry never changes it."""
        assert not self.has_sequence, "a sequence is assigned once"
        self.identity = identity
        self.base_sequence = base_sequence
        self.membership = membership

    def clear_sequence(self) -> None:
        """Removes the sequence; allowed only if no attempt can have appended the batch."""
        assert not self.is_fate_unknown, "a batch that may be in the log keeps its sequence"
        assert not self.is_in_flight, "a batch in flight keeps its sequence"
        self.identity = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.membership = None

    # --- parts

    def split_into(self, pieces: list[Piece]) -> None:
        """Splits the batch into one part per piece, in order. The parts divide its sequences, so that the broker recognizes each
        part as a duplicate if an earlier attempt has written the whole batch.
        """
        self._move(BatchState.SPLIT)
        parts = []
        sequence = self.base_sequence
        for number, piece in enumerate(pieces):
            part = ProducerBatch(self.tp, self.created_ms, (*self.order, number))
            part.add(piece)
            part.close()
            part.is_fate_unknown = self.is_fate_unknown
            part.last_error = self.last_error
            if self.has_sequence:
                part.assign_sequence(self.identity, sequence, self.membership)
                sequence = add_sequence(sequence, piece.record_count)
            parts.append(part)
        self.parts = tuple(parts)
        self.pieces = []
        self.encoded = None

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
        for batch in self.leaves():
            if position < batch.record_count:
                return batch, position
            position -= batch.record_count
        raise IndexError(position)


class WaitingCall(Protocol):
    """An application's call that waits for memory."""

    is_over: bool  # no longer waits


class BufferPool:
    """Accounts for the bytes in use, out of `total_bytes`. After `admits`, the caller itself adds the bytes to `used_bytes`, so
    that no interrupt separates the reservation from the change that uses the memory.

    An empty buffer admits any single batch; otherwise a batch larger than the whole buffer would be blocked forever.
    """

    __slots__ = ("_waiting", "total_bytes", "used_bytes")

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.used_bytes = 0
        self._waiting: OrderedDict[WaitingCall, int] = OrderedDict()  # waiting calls, in order, and the bytes that each needs

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
        """Corrects the bytes in use, for example after encoding, or frees memory. The total may be exceeded briefly."""
        self.used_bytes += delta_bytes
        assert self.used_bytes >= 0, f"{self.used_bytes} bytes held after {delta_bytes}"


# A request is answered once its last batch is durable. If one large request carried all partitions, no partition could send again
# before the slowest was durable, and encoding, sending, writing and syncing would alternate instead of overlapping.
REQUEST_FILL_BYTES = 2_097_152

LeaderOf = Callable[[TopicPartition], int]
MayDrain = Callable[[ProducerBatch], bool]  # by the rules of sequences (identity.py)


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """Batches of one partition that are not in flight, oldest first; the last may be open."""

    batches: deque[ProducerBatch] = field(default_factory=deque)
    in_flight_count: int = 0


@dataclass(slots=True)
class ReadyCheck:
    """The result of `ready`: by node, the partitions whose first batch can be sent now, in order; the time of the next check
    (NEVER_MS: nothing waits); topics with leaderless partitions. `drain` removes partitions, `check_again` keeps it up to date.
    """

    may_drain: MayDrain
    nodes: dict[int, deque[PartitionQueue]]
    next_check_ms: int
    leaderless_topics: set[str]


class RecordAccumulator:
    """All batches of one producer that are queued or in flight."""

    def __init__(self, config: ProducerConfig, pool: BufferPool) -> None:
        self._config = config
        self.pool = pool
        self._queues: OrderedDict[TopicPartition, PartitionQueue] = OrderedDict()
        self.incomplete: dict[ProducerBatch, None] = {}  # without an outcome, in order of creation
        self._batch_count = 0
        self._flushing: set[ProducerBatch] = set()
        # By topic, if the broker accepts less than batch.size: the accepted bytes, and when they were last learned.
        self._learned: dict[str, tuple[int, int]] = {}
        self.is_closed = False  # everything is sent without linger; the caller appends nothing more

    # --- appending

    def append(self, tp: TopicPartition, piece: Piece, now_ms: int) -> tuple[ProducerBatch, int]:
        """Adds records whose memory is already reserved. Returns their batch, and the position of the first record in it. `now_ms`:
        when the first record was sent.

        A batch closes when the next piece would make it larger than batch.size; a piece of that size gets its own batch.
        """
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue()
        size_max = self.batch_size_of(tp.topic)
        batch = queue.batches[-1] if queue.batches else None
        if batch is not None and batch.size_bytes + piece.size_bytes > size_max:
            batch.close()
        if batch is None or batch.state is not BatchState.OPEN:
            self._batch_count += 1
            batch = ProducerBatch(tp, now_ms, (self._batch_count,))
            queue.batches.append(batch)
            self.incomplete[batch] = None
        at = batch.add(piece)
        if batch.size_bytes >= size_max:
            batch.close()
        return batch, at

    def batch_size_of(self, topic: str) -> int:
        """Bytes at which a batch of the topic closes: batch.size, or less if the broker has refused batches of that size."""
        learned = self._learned.get(topic)
        return self._config.batch_size if learned is None else learned[0]

    def learn_batch_size(self, topic: str, size_bytes: int, now_ms: int) -> int:
        """Lowers the batch size of the topic to `size_bytes`, if that is less than before. Returns the effective size."""
        size_bytes = max(1, min(size_bytes, self.batch_size_of(topic)))
        self._learned[topic] = (size_bytes, now_ms)
        return size_bytes

    def forget_batch_sizes(self, until_ms: int, topics: Collection[str]) -> None:
        """Forgets the learned batch sizes of `topics`, and those last learned at or before `until_ms`: the broker's limit may have
        been raised."""
        self._learned = {
            topic: learned for topic, learned in self._learned.items() if learned[1] > until_ms and topic not in topics
        }

    # --- ready, drain

    def ready(self, leader_of: LeaderOf, may_drain: MayDrain, now_ms: int) -> ReadyCheck:
        """Finds the partitions with a sendable batch, by node. A batch is sendable if it is full, its linger has passed, calls
        wait for memory, it is being flushed, the producer is closing, or it is a retry whose back-off has passed; but never in a
        muted partition, behind a batch in back-off, or out of sequence.
        """
        check = ReadyCheck(may_drain, {}, NEVER_MS, set())
        for tp, queue in self._queues.items():
            sendable_ms = self._sendable_ms(queue, may_drain, now_ms)
            if sendable_ms > now_ms:
                check.next_check_ms = min(check.next_check_ms, sendable_ms)
                continue
            leader = leader_of(tp)
            if leader == NO_LEADER:
                check.leaderless_topics.add(tp.topic)
            else:
                check.nodes.setdefault(leader, deque()).append(queue)
        return check

    def _sendable_ms(self, queue: PartitionQueue, may_drain: MayDrain, now_ms: int) -> int:
        """The time when the first batch of the queue may be sent, if no event comes before (NEVER_MS: only after an event)."""
        if not queue.batches or self._is_muted(queue):
            return NEVER_MS
        batch = queue.batches[0]
        if not may_drain(batch):
            return NEVER_MS
        if batch.attempts > 0 or self._is_full(queue, batch) or batch in self._flushing:
            return max(batch.retry_at_ms, now_ms)
        return max(batch.retry_at_ms, self.linger_ends_ms(batch.created_ms))

    def linger_ends_ms(self, created_ms: int) -> int:
        """End of the linger of records sent at `created_ms`. Nothing lingers while a call waits for memory, or once the producer
        closes.
        """
        return created_ms if self.pool.is_exhausted or self.is_closed else created_ms + self._config.linger_ms

    def _is_full(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        return len(queue.batches) > 1 or batch.state is BatchState.CLOSED or batch.size_bytes >= self.batch_size_of(batch.tp.topic)

    def _is_muted(self, queue: PartitionQueue) -> bool:
        return queue.in_flight_count >= self._config.max_in_flight_batches

    def drain(self, check: ReadyCheck, node_id: int, limits: RequestLimits) -> list[ProducerBatch]:
        """Takes batches for one request to a node: one per partition, within the node's limits of partitions and bytes, and
        max.request.size (a larger first batch goes alone). The request is full at REQUEST_FILL_BYTES; further requests carry the
        rest. Sizes are estimates until batches are encoded.

        Drained partitions go to the end of the round, so none starves. Each batch taken is closed and counts as in flight for its
        partition. Call `check_again` once the batches have their sequences.
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
        return drained

    def _take(self, batch: ProducerBatch) -> None:
        queue = self._queues[batch.tp]
        queue.batches.popleft()
        batch.send()
        queue.in_flight_count += 1  # mutes the partition at max.in.flight.batches.per.partition
        self._queues.move_to_end(batch.tp)

    def check_again(self, check: ReadyCheck, node_id: int, drained: list[ProducerBatch], now_ms: int) -> None:
        """Returns drained partitions to `check`, or notes the time when their next batch may be sent."""
        for batch in drained:
            queue = self._queues[batch.tp]
            sendable_ms = self._sendable_ms(queue, check.may_drain, now_ms)
            if sendable_ms > now_ms:
                check.next_check_ms = min(check.next_check_ms, sendable_ms)
            else:
                check.nodes[node_id].append(queue)

    # --- results

    def unmute(self, tp: TopicPartition) -> None:
        """Counts a batch as no longer in flight."""
        queue = self._queues[tp]
        queue.in_flight_count -= 1
        assert queue.in_flight_count >= 0

    def reenqueue(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """Puts a batch back into its queue in sending order, which is sequence order, ahead of all batches never sent."""
        batch.retry_at_ms = retry_at_ms
        queued = self._queues[batch.tp].batches
        at = 0
        while at < len(queued) and queued[at].order < batch.order:
            at += 1
        queued.insert(at, batch)

    def split(self, batch: ProducerBatch, pieces: list[Piece]) -> None:
        """Puts a batch back into its queue as several smaller ones, one per piece."""
        batch.split_into(pieces)
        for part in batch.parts:
            self.reenqueue(part, 0)
        if batch in self._flushing:
            self._flushing.remove(batch)
            self._flushing.update(batch.parts)
        # Expiry relies on the order of creation, so the parts take the batch's place.
        self.incomplete = {part: None for one in self.incomplete for part in (batch.parts if one is batch else (one,))}
        self.pool.adjust(sum(part.accounted_bytes for part in batch.parts) - batch.accounted_bytes)
        batch.accounted_bytes = 0

    def complete(self, batch: ProducerBatch, base_offset: int, append_timestamp: int) -> bool:
        """Ends a batch in flight as written, and frees it. Returns False if the application already has its error."""
        self.unmute(batch.tp)
        is_news = batch.complete(base_offset, append_timestamp)
        self.end(batch)
        self.free(batch)
        return is_news

    def end(self, batch: ProducerBatch) -> None:
        """Removes a batch from its queue, if queued. The application has its outcome, so flushes no longer wait for it."""
        queue = self._queues.get(batch.tp)
        if queue is not None and batch.error is not None and batch in queue.batches:
            queue.batches.remove(batch)
        self.incomplete.pop(batch, None)
        self._flushing.discard(batch)

    def free(self, batch: ProducerBatch) -> None:
        """Frees the memory of a batch that has ended, and its queue if that is empty and idle: a long-lived producer keeps no
        unused queues."""
        assert batch.state is BatchState.ENDED, "a batch that may still be read or sent is not freed"
        self.pool.adjust(-batch.accounted_bytes)
        batch.accounted_bytes = 0
        batch.pieces = []
        batch.encoded = None
        queue = self._queues.get(batch.tp)
        if queue is not None and not queue.batches and not queue.in_flight_count:
            del self._queues[batch.tp]

    def expired_batches(self, now_ms: int) -> list[ProducerBatch]:
        """Batches older than delivery.timeout.ms, in flight or not, in order of creation."""
        limit_ms = now_ms - self._config.delivery_timeout_ms
        expired = []
        for batch in self.incomplete:
            if batch.created_ms > limit_ms:
                break
            expired.append(batch)
        return expired

    def next_expiry_ms(self) -> int:
        """The time when the oldest batch expires (NEVER_MS: there is none)."""
        for batch in self.incomplete:
            return batch.created_ms + self._config.delivery_timeout_ms
        return NEVER_MS

    # --- flush

    def begin_flush(self) -> list[ProducerBatch]:
        """Sends all incomplete batches without further linger, and returns them. The flush is over when all of them are done."""
        batches = list(self.incomplete)
        self._flushing.update(batches)
        return batches

    # --- queries

    def queued(self, tp: TopicPartition) -> Sequence[ProducerBatch]:
        """Batches of a partition that are not in flight, oldest first."""
        queue = self._queues.get(tp)
        return tuple(queue.batches) if queue is not None else ()

    def load_of(self, topic: str, view: TopicInfo) -> PartitionLoad:
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
        """Partitions with batches that are queued or in flight."""
        return list(self._queues)

    def last_error(self) -> BrokerdError | None:
        """The last error of the oldest incomplete batch that has one, for error messages."""
        return next((batch.last_error for batch in self.incomplete if batch.last_error), None)
