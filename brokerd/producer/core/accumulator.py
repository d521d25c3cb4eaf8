"""RecordAccumulator: the records that wait to be sent, in batches by partition.

It appends to the last batch of a partition; tells which nodes have something to be sent, and when to check again; takes one batch
per partition for a request; puts a failed batch back in its place; expires, flushes and aborts. It keeps the order of each
partition through any retry, lets no partition starve, and accounts for memory exactly. Each partition has a queue while it has
batches; one that was drained goes to the end of the round.

Pure: not thread-safe, never waits, reads no clock. producer_core.py judges responses, idempotence.py numbers batches, memory.py
counts memory.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.config.client import ProducerConfig
from brokerd.errors import BrokerdError
from brokerd.ids import TopicPartition
from brokerd.producer.core.idempotence import IdempotenceState
from brokerd.producer.core.memory import BufferPool
from brokerd.producer.core.producer_batch import Piece, ProducerBatch
from brokerd.producer.core.sticky import PartitionLoad
from brokerd.producer.core.transport import BATCH_OVERHEAD_BYTES, NO_LEADER, RequestLimits, TopicView

NEVER_MS = 2**63 - 1
# A request is answered when the last of its batches is durable. If one large request held all partitions, none could send again
# before the slowest is durable, and encoding, sending, writing and syncing would take turns instead of overlapping.
REQUEST_FILL_BYTES = 2_097_152

LeaderOf = Callable[[TopicPartition], int]


class AppendResult(NamedTuple):
    """The batch that took the records, and the position `at` of the first of them in it."""

    batch: ProducerBatch
    at: int
    is_new_batch: bool
    is_full: bool


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
    """The result of a check: by node, the partitions whose first batch can be sent now, in their order; the time of the next check
    (NEVER_MS: nothing waits); topics without a known leader. `drain` takes partitions off it, and keeps it up to date.
    """

    nodes: dict[int, deque[PartitionQueue]]
    next_check_ms: int
    leaderless_topics: set[str]


class RecordAccumulator:
    """All batches of one producer that wait or are in flight. `sequences` is None without idempotence."""

    def __init__(self, config: ProducerConfig, sequences: IdempotenceState | None, pool: BufferPool) -> None:
        self._config = config
        self.sequences = sequences  # where batches get their numbers; replaced only while no numbered batch is queued
        self.pool = pool
        self._queues: OrderedDict[TopicPartition, PartitionQueue] = OrderedDict()
        self._incomplete: dict[ProducerBatch, None] = {}  # in order of creation
        self._batch_count = 0
        self._flushing: set[ProducerBatch] = set()
        self._batch_sizes: dict[str, int] = {}  # bytes by topic, where the broker takes less than batch.size
        self._learned_ms: dict[str, int] = {}  # when that was last learned
        self.is_closed = False

    # --- appending

    def append(self, tp: TopicPartition, piece: Piece, now_ms: int) -> AppendResult:
        """Adds records whose bytes were already taken from the pool. `now_ms` is when the first of them was sent.

        A batch closes when the next piece would carry it beyond batch.size; a larger piece makes a batch of its own.
        """
        queue = self._queue(tp)
        batch = queue.batches[-1] if queue.batches else None
        if batch is not None and not batch.is_closed and batch.size_bytes + piece.size_bytes > self.batch_size_of(tp.topic):
            batch.is_closed = True
        is_new = batch is None or batch.is_closed
        if batch is None or batch.is_closed:
            self._batch_count += 1
            batch = ProducerBatch(tp, now_ms, (self._batch_count,))
            queue.batches.append(batch)
            self._incomplete[batch] = None
        at = batch.add(piece)
        is_full = self._is_full(queue, batch)
        if is_full and batch.size_bytes >= self.batch_size_of(tp.topic):
            batch.is_closed = True
        return AppendResult(batch, at, is_new, is_full)

    def batch_size_of(self, topic: str) -> int:
        """Bytes at which a batch of the topic closes: batch.size, or less if the broker was found to take less."""
        return self._batch_sizes.get(topic, self._config.batch_size)

    def learn_batch_size(self, topic: str, size_bytes: int, now_ms: int) -> int:
        """Closes batches of the topic at `size_bytes` from now on, if that is less than before. Returns the size that holds."""
        self._learned_ms[topic] = now_ms
        self._batch_sizes[topic] = size_bytes = max(1, min(size_bytes, self.batch_size_of(topic)))
        return size_bytes

    def forget_batch_size(self, topic: str) -> None:
        """Forgets the learned batch size of a topic."""
        self._batch_sizes.pop(topic, None)
        self._learned_ms.pop(topic, None)

    def forget_batch_sizes(self, until_ms: int) -> None:
        """Forgets batch sizes that were last learned at `until_ms` or before: the broker's limit may have been raised."""
        for topic in [topic for topic, learned_ms in self._learned_ms.items() if learned_ms <= until_ms]:
            self.forget_batch_size(topic)

    # --- ready, drain

    def ready(self, leader_of: LeaderOf, now_ms: int) -> ReadyCheck:
        """Finds the partitions with a sendable batch, by node. A batch is sendable when it is full, or its linger has passed, or
        appenders wait for memory, or it is being flushed, or the producer closes, or it is a retry whose back-off has passed;
        never in a muted partition, never behind a back-off, never out of turn of its sequence.
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
        """Time when the first batch of the queue may be sent, unless an event comes before (NEVER_MS: only an event allows it)."""
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
        """End of the linger of records that came at `created_ms`. There is none while an append waits for memory, or once the
        producer closes.
        """
        return created_ms if self.pool.is_exhausted or self.is_closed else created_ms + self._config.linger_ms

    def _is_full(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        return len(queue.batches) > 1 or batch.is_closed or batch.size_bytes >= self.batch_size_of(batch.tp.topic)

    def _is_muted(self, queue: PartitionQueue) -> bool:
        return queue.in_flight_count >= self._config.max_in_flight_batches

    def drain(self, check: ReadyCheck, node_id: int, limits: RequestLimits, now_ms: int) -> list[ProducerBatch]:
        """Takes batches for one request to a node: one per partition, within the node's limits of partitions and bytes, and
        max.request.size (the first goes even if larger). The request is full at REQUEST_FILL_BYTES: the rest goes into the next of
        the requests that may be in flight. Sizes are estimates until batches are encoded.

        Partitions that were served go to the end of the round, so none starves. Each batch taken is closed, gets its
        sequence if it has none, and mutes its partition.
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
        """Adds the partition of a batch just taken to `check` again, or the time when its next batch may be sent."""
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
            batch.was_first = True  # a retry waits until all before it are settled
        batch.is_in_flight = True
        batch.attempts += 1
        self.mute(batch.tp)
        self._queues.move_to_end(batch.tp)

    # --- results

    def mute(self, tp: TopicPartition) -> None:
        """Counts one more batch of the partition in flight; at max.in.flight.batches.per.partition no more are drained."""
        self._queues[tp].in_flight_count += 1

    def unmute(self, tp: TopicPartition, throttled_until_ms: int) -> None:
        """Counts one batch of the partition less in flight; none is drained before `throttled_until_ms` all the same."""
        queue = self._queues[tp]
        queue.in_flight_count -= 1
        assert queue.in_flight_count >= 0
        queue.muted_until_ms = max(queue.muted_until_ms, throttled_until_ms)

    def forget_idle(self, tp: TopicPartition, now_ms: int) -> None:
        """Drops the partition's queue if it is empty and idle, so that a long-lived producer keeps no queues it does not need."""
        queue = self._queues.get(tp)
        if queue is not None and not queue.batches and not queue.in_flight_count and queue.muted_until_ms <= now_ms:
            del self._queues[tp]

    def reenqueue(self, batch: ProducerBatch, retry_at_ms: int) -> None:
        """Puts a batch back in its place: by order of sending, which is that of sequences, before all that were never sent."""
        batch.retry_at_ms = retry_at_ms
        queue = self._queues[batch.tp]
        later: list[ProducerBatch] = []
        while queue.batches and queue.batches[0].order < batch.order:
            later.append(queue.batches.popleft())
        queue.batches.appendleft(batch)
        queue.batches.extendleft(reversed(later))

    def split(self, batch: ProducerBatch, pieces: list[Piece]) -> None:
        """Puts a batch back in its place as several smaller ones, one for each piece."""
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
        # Expiry takes the oldest first, and the parts are as old as the batch was.
        self._incomplete = {part: None for one in self._incomplete for part in (batch.parts if one is batch else (one,))}
        self.pool.adjust(sum(part.accounted_bytes for part in batch.parts) - batch.accounted_bytes)
        batch.accounted_bytes = 0

    def release(self, batch: ProducerBatch) -> None:
        """Frees the memory of an ended batch, once it is not in flight."""
        assert batch.is_done, "only an ended batch is freed"
        assert not batch.is_in_flight, "a batch in flight is still read"
        self.pool.release(batch.accounted_bytes)
        batch.accounted_bytes = 0
        batch.pieces = []
        batch.encoded = None

    def finished(self, batch: ProducerBatch) -> None:
        """Notes that a batch has its final state: flushes no longer wait for it."""
        self._incomplete.pop(batch, None)
        self._flushing.discard(batch)

    def remove(self, batch: ProducerBatch) -> None:
        """Takes an ended batch out of its queue, if it is there."""
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
        """Time when the oldest batch expires (NEVER_MS: there is none)."""
        for batch in self._incomplete:
            return batch.created_ms + self._config.delivery_timeout_ms
        return NEVER_MS

    # --- flush, close

    def begin_flush(self) -> list[ProducerBatch]:
        """Sends all incomplete batches without further linger, and returns them. The flush is over when all of them are done."""
        batches = list(self._incomplete)
        self._flushing.update(batches)
        return batches

    def incomplete(self) -> list[ProducerBatch]:
        """Every batch without a final state, in order of creation."""
        return list(self._incomplete)

    def close(self) -> None:
        """Sends everything without linger from now on. The caller appends nothing more."""
        self.is_closed = True

    # --- queries

    def queued(self, tp: TopicPartition) -> Iterable[ProducerBatch]:
        """Batches of a partition that are not in flight."""
        queue = self._queues.get(tp)
        return tuple(queue.batches) if queue is not None else ()

    def load_of(self, topic: str, view: TopicView) -> PartitionLoad:
        """The load of the topic's partitions now, to choose one for records without a key."""
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
        """The last error of the oldest incomplete batch that had one, for messages."""
        return next((batch.last_error for batch in self._incomplete if batch.last_error), None)

    def _queue(self, tp: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = PartitionQueue(tp)
        return queue
