"""RecordAccumulator: queues records in batches by partition until they are sent. Also BufferPool, which accounts for memory.

The accumulator appends to the last batch of a partition, finds nodes with sendable batches and the time of the next check, drains
one batch per partition into a request, re-enqueues failed batches in order, and finds expired ones. It keeps the order of each
partition across retries, starves no partition, and accounts for memory exactly. A partition has a queue only while it has batches;
a drained partition goes to the end of the round.

Pure: never waits, reads no clock, and never reads the content of pieces. identity.py has the rules of sequences.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from brokerd.config.client import ProducerConfig
from brokerd.errors import BrokerdError
from brokerd.ids import NO_LEADER, TopicInfo, TopicPartition
from brokerd.producer.core.batch import NEVER_MS, BatchState, Piece, ProducerBatch
from brokerd.producer.core.identity import Identity
from brokerd.producer.core.partitioner import PartitionLoad
from brokerd.producer.core.transport import BATCH_OVERHEAD_BYTES, RequestLimits


class WaitingCall(Protocol):
    """An application's call that waits for memory."""

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
    """All batches of one producer that are queued or in flight."""

    def __init__(self, config: ProducerConfig, identity: Identity, pool: BufferPool) -> None:
        self._config = config
        self.identity = identity  # assigns sequences; replaced only while no queued batch has one
        self.pool = pool
        self._queues: OrderedDict[TopicPartition, PartitionQueue] = OrderedDict()
        self.incomplete: dict[ProducerBatch, None] = {}  # without an outcome, in order of creation
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
        if not self.identity.may_drain(batch):
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
        return len(queue.batches) > 1 or batch.state is BatchState.CLOSED or batch.size_bytes >= self.batch_size_of(batch.tp.topic)

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
        self.identity.assign(batch)
        batch.send()
        queue.in_flight_count += 1  # mutes the partition at max.in.flight.batches.per.partition
        self._queues.move_to_end(batch.tp)

    # --- results

    def unmute(self, tp: TopicPartition, throttled_until_ms: int) -> None:
        """Counts a batch as no longer in flight; none is drained from the partition before `throttled_until_ms`."""
        queue = self._queues[tp]
        queue.in_flight_count -= 1
        assert queue.in_flight_count >= 0
        queue.muted_until_ms = max(queue.muted_until_ms, throttled_until_ms)

    def reenqueue(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """Puts a batch back into its queue by order of sending, which is that of sequences, before all batches never sent."""
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
        if batch.has_sequence:
            self.identity.on_split(batch)
        if batch in self._flushing:
            self._flushing.remove(batch)
            self._flushing.update(batch.parts)
        # Expiry relies on the order of creation, and the parts are as old as the batch.
        self.incomplete = {part: None for one in self.incomplete for part in (batch.parts if one is batch else (one,))}
        self.pool.adjust(sum(part.accounted_bytes for part in batch.parts) - batch.accounted_bytes)
        batch.accounted_bytes = 0

    def complete(self, batch: ProducerBatch, base_offset: int, append_timestamp: int, throttled_until_ms: int, now_ms: int) -> bool:
        """Ends a batch in flight as written, and frees it. Returns False if the application had its error before."""
        self.unmute(batch.tp, throttled_until_ms)
        is_news = batch.complete(base_offset, append_timestamp)
        self.end(batch)
        self.free(batch, now_ms)
        return is_news

    def end(self, batch: ProducerBatch) -> None:
        """Takes a batch out of its queue, if it is there. The application has its outcome, so flushes no longer wait for it."""
        queue = self._queues.get(batch.tp)
        if queue is not None and batch.error is not None and batch in queue.batches:
            queue.batches.remove(batch)
        self.incomplete.pop(batch, None)
        self._flushing.discard(batch)

    def free(self, batch: ProducerBatch, now_ms: int) -> None:
        """Frees the memory of a batch that has ended, and its queue if that is empty and idle: a long-lived producer keeps no
        unused queues."""
        assert batch.state is BatchState.ENDED, "a batch that may still be read or sent is not freed"
        self.pool.release(batch.accounted_bytes)
        batch.accounted_bytes = 0
        batch.pieces = []
        batch.encoded = None
        queue = self._queues.get(batch.tp)
        if queue is not None and not queue.batches and not queue.in_flight_count and queue.muted_until_ms <= now_ms:
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

    def queued(self, tp: TopicPartition) -> Iterable[ProducerBatch]:
        """Batches of a partition that are not in flight."""
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
        """Partitions with batches that are queued or in flight, or that are throttled."""
        return list(self._queues)

    def last_error(self) -> BrokerdError | None:
        """The last error of the oldest incomplete batch that has one, for error messages."""
        return next((batch.last_error for batch in self.incomplete if batch.last_error), None)

    def _queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(tp)
        return queue
