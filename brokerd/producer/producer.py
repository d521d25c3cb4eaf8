"""Producer: what applications call. It collects, partitions and splits in the caller's thread; the Sender does the rest.

Thread-safe. Delivery rules are in core.py; this module holds the lock, the waiting and the life of the whole.
"""

from __future__ import annotations

import operator
import os
import random
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    BufferExhaustedError,
    Fate,
    ForkedProducerError,
    InvalidRequestError,
    ProducerClosedError,
    UnknownTopicOrPartitionError,
)
from brokerd.exiting import end_daemon_thread
from brokerd.ids import TopicPartition
from brokerd.producer import arguments, columns, living
from brokerd.producer.accumulator import NEVER_MS
from brokerd.producer.core import ProducerCore
from brokerd.producer.futures import FORKED, BatchFuture, Placement, ProducerCondition, RecordFuture, Segment
from brokerd.producer.metrics import ProducerMetrics
from brokerd.producer.outcomes import DeliveredTotals
from brokerd.producer.partitioner import Int32s
from brokerd.producer.producer_batch import Piece, ProducerBatch
from brokerd.producer.row_partitioner import RowPartitioner
from brokerd.producer.sender import Sender, TransportFactory
from brokerd.producer.splitting import split_rows
from brokerd.producer.staging import CHUNK_BYTES_MAX, CHUNK_RECORDS_MAX, RECORD_OVERHEAD_BYTES, Headers, StagedChunk
from brokerd.producer.transport import TopicView

_NO_PARTITION = -1  # of records that were refused before they had one


class Producer:
    """Writes records to topics; keeps order per partition, and duplicates nothing however often it has to retry.

    `config`: settings by Kafka's names (`{"bootstrap.servers": ...}`) or a ProducerConfig; keywords are settings too, with
    underscores for dots. One producer serves many threads; make one per process: after a fork it refuses to work in the
    child. Children that are to have clients of their own must not be forked while this process has any open, since gRPC does
    not survive that: their calls would find no broker. (Of multiprocessing, "spawn" and "forkserver" are safe.)
    Use it as a context manager, or `close()` it; at exit it is closed for you.
    """

    def __init__(
        self,
        config: Mapping[str, object] | ProducerConfig | None = None,
        *,
        transport_factory: TransportFactory,
        clock: Clock | None = None,
        **settings: object,
    ) -> None:
        self.config = arguments.config_of(config, settings)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._wall_ns = self._clock.wall_ns
        self._rng = random.Random(os.urandom(16))  # noqa: S311 (jitter and sticky partitions)
        self._lock = threading.Lock()
        self._changed = ProducerCondition(self._lock)  # something ended, memory was freed, metadata came
        now_ms = self._clock.monotonic_ms()
        self._core = ProducerCore(
            self.config,
            instance_id=os.urandom(16),
            rng=self._rng,
            metrics=ProducerMetrics(now_ms),
            splitter=split_rows,
            client_id=self.config.client_id,
        )
        self._chunks: dict[str, StagedChunk] = {}
        self._partitioning = RowPartitioner(self.config, self._rng)
        self._refusal: BrokerdError | None = None
        self.abandoned_count = 0  # records that close() gave up, because its time was over
        self._sender = Sender(
            config=self.config,
            core=self._core,
            clock=self._clock,
            ended=self._changed,
            transport_factory=transport_factory,
            prepare=self._prepare,
            give_up=self._place_all,
        )
        self._sender.start()
        living.add(self)

    # --- sending

    def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: Headers | Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordFuture:
        """Sends one record; returns at once with a future of its partition, offset and timestamp (ms since 1970; now, if
        none is given). A null value is a tombstone. Text is sent as UTF-8.

        Blocks up to max.block.ms while the topic is unknown or the buffer is full: UnknownTopicOrPartitionError,
        BrokerUnreachableError, BufferExhaustedError. MessageTooLargeError for a record beyond max.request.size;
        ProducerClosedError after close or a final failure; ValueError and TypeError for what can not be sent.
        """
        # What follows is paid for every record, so it is ordered and written for speed: the usual case first, nothing twice.
        if type(value) is bytes and type(key) is bytes:
            size = len(value) + len(key) + RECORD_OVERHEAD_BYTES
        else:
            value = arguments.to_bytes(value, "value")
            key = arguments.to_bytes(key, "key")
            size = len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES
        if headers is not None:
            headers, headers_size = arguments.checked_headers(headers)
            size += headers_size
        if timestamp is not None:
            timestamp = arguments.checked_timestamp(timestamp)
        if partition is not None:
            partition = operator.index(partition)
        with self._lock:
            chunk = self._chunks.get(topic)
            if chunk is None or chunk.room_bytes < size or partition is not None:
                chunk = self._open_chunk(topic, size, partition)
            chunk.room_bytes -= size
            values = chunk.values
            row = len(values)
            values.append(value)
            if key is not None:
                keys = chunk.keys
                if len(keys) < row:
                    keys.extend([None] * (row - len(keys)))
                keys.append(key)
            chunk.sent_ns.append(self._wall_ns())
            if timestamp is not None:
                chunk.timestamps[row] = timestamp
            if headers:
                chunk.headers[row] = headers
            if partition is not None:
                chunk.partitions[row] = partition
            if row + 1 >= CHUNK_RECORDS_MAX:
                self._place_chunk(topic)
            return RecordFuture(chunk.placement, row)

    def send_batch(self, topic: str, data: pa.RecordBatch | pa.Table, partitions: Int32s | pa.Array | None = None) -> BatchFuture:
        """Sends the rows of an Arrow batch or table: columns key, value (binary or string), headers and timestamp, of which
        only value is required. `partitions` (int32 per row; -1 = by key) overrides the hash of the key. Order of rows is
        kept within each partition. The returned future ends when all rows have their answer.

        Blocks and raises as `send`; blocking is the back-pressure.
        """
        if partitions is not None:
            partitions = np.asarray(partitions, np.int32)
            if len(partitions) != data.num_rows:
                raise ValueError(f"{len(partitions)} partitions were given for {data.num_rows} rows")
        placement = Placement(topic, self._changed)
        placement.is_placed = True
        first_row = 0
        arrow_batches = data.to_batches() if isinstance(data, pa.Table) else [data]
        normalized = [columns.normalize(arrow_batch) for arrow_batch in arrow_batches if arrow_batch.num_rows]
        for arrow_batch in normalized:
            columns.check_row_sizes(arrow_batch, self.config.max_request_size)
        for arrow_batch in normalized:
            for rows in columns.rounds(arrow_batch):
                wanted = None if partitions is None else partitions[first_row : first_row + rows.num_rows]
                self._send_rows(topic, rows, wanted, placement, first_row)
                first_row += rows.num_rows
        return BatchFuture(placement)

    def _send_rows(self, topic: str, rows: pa.RecordBatch, wanted: Int32s | None, placement: Placement, first_row: int) -> None:
        with self._lock:
            self._check_usable()
            view = self._view(topic)
            count = len(view.leaders)
            keyless = self._partitioning.keyless_rows(topic, rows, wanted, self._core.accumulator.load_of(topic, view))
        chosen = self._partitioning.choose(rows, wanted, keyless, count)
        timestamp_ms = self._clock.wall_ms()
        batch_size = self._core.accumulator.batch_size_of(topic)
        pieces = columns.split(rows, chosen, count, batch_size=batch_size, timestamp_ms=timestamp_ms).pieces
        size = sum(part.piece.size_bytes for part in pieces)
        with self._lock:
            self._allocate(size)
            try:
                self._check_usable()
            except BrokerdError:
                self._release(size)
                raise
            if topic in self._chunks:
                self._place_chunk(topic)
            self._append(topic, pieces, placement, first_row, self._clock.monotonic_ms())

    # --- under the lock

    def _open_chunk(self, topic: str, size: int, partition: int | None) -> StagedChunk:
        """A chunk with room for `size` bytes. May wait for metadata and memory."""
        self._check_usable()
        view = self._view(topic)
        if partition is not None and not 0 <= partition < len(view.leaders):
            raise ValueError(f"partition {partition} does not exist: topic '{topic}' has partitions 0 to {len(view.leaders) - 1}")
        if size > self.config.max_request_size:
            raise columns.too_large(size, self.config.max_request_size)
        paid = max(size, min(CHUNK_BYTES_MAX, self.config.batch_size, self.config.buffer_memory // 4))
        while True:
            chunk = self._chunks.get(topic)
            if chunk is not None:
                if chunk.room_bytes >= size:
                    return chunk
                self._place_chunk(topic)
            # While this thread waits for memory another one may open the topic's chunk: look again.
            self._allocate(paid)
            if self._is_unusable or topic in self._chunks:
                self._release(paid)
                self._check_usable()
                continue
            chunk = self._chunks[topic] = StagedChunk(topic, len(view.leaders), self._clock.monotonic_ms(), paid, self._changed)
            self._sender.wake()
            return chunk

    def _place_chunk(self, topic: str) -> None:
        """Turns a staged chunk into pieces of batches. What can not be (a partition that its topic, created anew, no longer
        has) ends its futures with the error, and nothing else: the sender and other topics go on."""
        chunk = self._chunks.pop(topic)
        if not chunk.values:
            self._release(chunk.paid_bytes)
            return
        placement = chunk.placement
        refused: tuple[ProducerBatch, BrokerdError] | None = None
        try:
            parts = self._split_chunk(topic, chunk)
        except Exception as error:
            self._release(chunk.paid_bytes)
            batch = ProducerBatch(TopicPartition(topic, _NO_PARTITION), chunk.created_ms)
            placement.segments.append(Segment(0, batch, 0, len(chunk.values)))
            refused = (batch, _as_brokerd_error(topic, error))
        else:
            self._release(chunk.paid_bytes - sum(part.piece.size_bytes for part in parts.pieces))
            placement.order = parts.order
            self._append(topic, parts.pieces, placement, 0, chunk.created_ms)
        placement.is_placed = True
        for listener in placement.listeners:
            listener()
        placement.listeners.clear()
        if refused is not None:
            self._core.refuse(*refused)
            self._changed.notify_all()
            self._sender.wake()

    def _split_chunk(self, topic: str, chunk: StagedChunk) -> columns.SplitRows:
        """A chunk's rows by partition. Changes nothing but the sticky partition."""
        rows = chunk.to_arrow()
        view = self._core.topics.view(topic) or TopicView(b"", (0,) * chunk.partition_count)
        count = len(view.leaders)
        load = self._core.accumulator.load_of(topic, view)
        if rows.num_rows == 1:
            partition = self._partitioning.choose_one(topic, rows, chunk.partitions.get(0), chunk.used_bytes, load)
            return columns.SplitRows([columns.PartitionPiece(partition, Piece(rows, 1, chunk.used_bytes, 0), 0)], None)
        wanted = None
        if chunk.partitions:
            wanted = np.full(rows.num_rows, -1, np.int32)
            wanted[list(chunk.partitions)] = list(chunk.partitions.values())
        keyless = self._partitioning.keyless_rows(topic, rows, wanted, load)
        chosen = self._partitioning.choose(rows, wanted, keyless, count)
        return columns.split(rows, chosen, count, batch_size=self._core.accumulator.batch_size_of(topic), timestamp_ms=0)

    def _place_all(self) -> None:
        """Nothing stays staged: what can be is on its way, or ends with the producer."""
        for topic in list(self._chunks):
            self._place_chunk(topic)

    def _append(
        self, topic: str, pieces: list[columns.PartitionPiece], placement: Placement, first_row: int, created_ms: int
    ) -> None:
        wake = False
        for partition, piece, at in pieces:
            result = self._core.accumulator.append(TopicPartition(topic, partition), piece, created_ms)
            placement.segments.append(Segment(first_row + at, result.batch, result.at, piece.record_count))
            wake = wake or result.is_new_batch or result.is_full
        if self._core.fatal_error is not None:
            self._core.fail_for_good(self._core.fatal_error, self._clock.monotonic_ms())
        if wake:
            self._sender.wake()

    def _prepare(self, now_ms: int) -> int:
        """For the sender, before each step: places chunks whose time has come; when the next one's comes."""
        next_ms = NEVER_MS
        is_hurried = self._core.pool.is_exhausted
        for topic, chunk in list(self._chunks.items()):
            due_ms = chunk.created_ms + self.config.linger_ms
            if is_hurried or due_ms <= now_ms:
                self._place_chunk(topic)
            else:
                next_ms = min(next_ms, due_ms)
        return next_ms

    @property
    def _is_unusable(self) -> bool:
        return self._refusal is not None or self._core.fatal_error is not None

    def _check_usable(self) -> None:
        if self._refusal is None and self._core.fatal_error is not None:
            self._refusal = ProducerClosedError(f"the producer failed for good: {self._core.fatal_error}")
            self._refusal.__cause__ = self._core.fatal_error
        if self._refusal is not None:
            end_daemon_thread()
            raise self._refusal

    def _view(self, topic: str) -> TopicView:
        """What is known of the topic; waits for it up to max.block.ms."""
        topics = self._core.topics
        now_ms = self._clock.monotonic_ms()
        view = topics.use(topic, now_ms)
        if view is not None:
            return view
        waiter = topics.wait_for(topic, now_ms)
        self._sender.wake()

        def is_settled() -> bool:
            is_final = waiter.error is not None and not waiter.error.retriable
            return topics.view(topic) is not None or is_final or self._is_unusable

        try:
            self._changed.wait_for(is_settled, self.config.max_block_ms / 1000)
        finally:
            topics.leave(waiter, self._clock.monotonic_ms())
        self._check_usable()
        view = topics.view(topic)
        if view is not None:
            return view
        error = waiter.error
        waited = f"after max.block.ms ({self.config.max_block_ms} ms)"
        if error is not None and not error.retriable:
            raise error
        if error is not None:
            raise UnknownTopicOrPartitionError(f"topic '{topic}' is still not there {waited}: {error}")
        trouble = self._core.last_trouble
        raise BrokerUnreachableError(
            f"nothing is known of topic '{topic}' {waited}, bootstrap.servers {self.config.bootstrap_servers}"
            + (f": {trouble}" if trouble else "")
        )

    def _allocate(self, size: int) -> None:
        """Takes bytes of buffer.memory; waits for them, in the order of coming, up to max.block.ms."""
        pool = self._core.pool
        if pool.try_allocate(size):
            return
        waiter = pool.enqueue(size)
        self._sender.wake()
        if not self._changed.wait_for(lambda: waiter.is_granted or self._is_unusable, self.config.max_block_ms / 1000):
            pool.cancel(waiter)
            self._changed.notify_all()
            trouble = self._core.accumulator.last_error() or self._core.last_trouble
            raise BufferExhaustedError(
                f"no room for {size} bytes in max.block.ms ({self.config.max_block_ms} ms): buffer.memory "
                f"({self.config.buffer_memory}) is full of records that wait to be acknowledged"
                + (f"; last trouble: {trouble}" if trouble else "")
            )
        if not waiter.is_granted:
            pool.cancel(waiter)
            self._changed.notify_all()
            self._check_usable()

    def _release(self, size: int) -> None:
        self._core.pool.release(size)
        if self._core.pool.take_is_granted():
            self._changed.notify_all()

    # --- waiting for all

    def flush(self, timeout: float | None = None) -> None:
        """Sends what was sent before without further linger, and returns when each record has its answer, good or bad.
        Callbacks have run by then. Raises TimeoutError after `timeout` seconds."""
        self._sender.refuse_own_thread()
        with self._lock:
            self._check_not_forked()
            self._place_all()
            batches = self._core.accumulator.begin_flush() + self._core.outcomes.untaken + self._sender.untold
            self._sender.wake()
            if not self._changed.wait_for(lambda: all(batch.is_told for batch in batches), timeout):
                undone = sum(leaf.record_count for batch in batches for leaf in batch.leaves() if not leaf.is_done)
                trouble = self._core.accumulator.last_error() or self._core.last_trouble
                raise TimeoutError(
                    f"{undone} records are not acknowledged after {timeout} s" + (f"; last trouble: {trouble}" if trouble else "")
                )

    def close(self, timeout: float | None = None) -> None:
        """Sends and awaits everything, at most `timeout` seconds, then gives up what is left (AbortedBatchError) and frees
        all. 0 gives up at once. May be called twice."""
        self._sender.refuse_own_thread()
        with self._lock:
            self._check_not_forked()
            if self._refusal is None:
                self._refusal = ProducerClosedError("the producer is closed")
            self._place_all()
            self._core.accumulator.close()
            self._changed.notify_all()
            self._sender.wake()
            if not self._changed.wait_for(lambda: not self._core.accumulator.has_incomplete, timeout):
                self.abandoned_count = sum(batch.record_count for batch in self._core.accumulator.incomplete())
                self._core.abort("as close() had no more time", self._clock.monotonic_ms())
            self._sender.stop()
        self._sender.join(None)
        living.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        """Closes; after an exception inside, without waiting for what is not sent yet."""
        self.close(None if kind is None else 0)

    # --- looking

    @property
    def first_error(self) -> BrokerdError | None:
        """The first failure of any record, or None: whoever keeps no futures looks here after `flush`."""
        return self._core.outcomes.first_error

    def delivered(self) -> dict[TopicPartition, DeliveredTotals]:
        """Acknowledged records and batches by partition, since the producer was made."""
        with self._lock:
            return {
                tp: DeliveredTotals(total.record_count, total.batch_count) for tp, total in self._core.outcomes.delivered.items()
            }

    def metrics(self) -> dict[str, float]:
        """Kafka's producer metrics by name; times in ms, rates per second."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            values = self._core.metrics.snapshot(now_ms)
            values["requests-in-flight"] = self._core.requests_in_flight
            values["buffer-total-bytes"] = self._core.pool.total_bytes
            values["buffer-available-bytes"] = self._core.pool.available_bytes
        return values

    def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Waits and raises as `send`."""
        with self._lock:
            self._check_usable()
            return len(self._view(topic).leaders)

    # --- forks and exits

    def _check_not_forked(self) -> None:
        if isinstance(self._refusal, ForkedProducerError):
            raise self._refusal

    def after_fork(self) -> None:
        """In the child: the sender's thread does not exist here, and the lock may be held by a thread that does not."""
        self._lock = threading.Lock()
        self._changed = ProducerCondition(self._lock)
        self._chunks = {}
        self._refusal = ForkedProducerError(FORKED)


def _as_brokerd_error(topic: str, error: Exception) -> BrokerdError:
    if isinstance(error, BrokerdError):
        return error
    refusal = InvalidRequestError(f"records for topic '{topic}' were not sent: {error}", fate=Fate.NOT_APPENDED)
    refusal.__cause__ = error
    return refusal
