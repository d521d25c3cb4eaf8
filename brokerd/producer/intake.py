"""Intake: takes records from the application into the core: finds topics, takes memory, fills chunks, chooses partitions.

All of it runs in the sender's thread (see mailbox.py), each step as a whole. A step that may wait, for a topic or for memory, is a
generator that yields. Application threads touch two things. One is `chunks`: they append to the chunk of a topic, or open one
(`open_on_credit`), since having the sender do it would cost a hundred times as much as `send`. The other is the pool's list of
promises: there they leave large batches, without waiting for a sender that may be encoding (`post_rows`).

The records that one thread sends to a topic keep their order. It posts only while no chunk of the topic is open or being placed, so
all that it sent before is in its place. And posted rows are placed after the rows of a chunk are taken and before they are placed:
by the time a thread sends such a row, it has posted everything that goes before it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from brokerd.clock import Clock
from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    BufferExhaustedError,
    Fate,
    InvalidRequestError,
    ProducerClosedError,
    UnknownTopicOrPartitionError,
    fresh,
)
from brokerd.ids import TopicPartition
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.memory import Promise
from brokerd.producer.core.partitioner import Int32s
from brokerd.producer.core.producer_batch import Piece, ProducerBatch
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.transport import TopicView
from brokerd.producer.futures import Placement, Segment
from brokerd.producer.mailbox import Mailbox, Work
from brokerd.producer.rows import columns
from brokerd.producer.rows.record_buffer import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, SMALL_BATCH_BYTES, RecordChunk, TakenRows
from brokerd.producer.rows.row_partitioner import RowPartitioner

_NO_PARTITION = -1  # for records that were refused before they had one
# An empty chunk is kept so long for its first row, which is on its way unless the send that opened the chunk was interrupted.
_EMPTY_MS = 100
_TOPICS_REMEMBERED_MAX = 10_000
# So many calls may be ahead of the sender. With half as many, callers of 10,000 rows at a time still wait for an eighth of their
# time.
POSTED_MAX = 8

logger = logging.getLogger(__name__)


class Intake:
    """The intake of one producer. `wake` makes the sender take a step."""

    def __init__(
        self,
        config: ProducerConfig,
        core: ProducerCore,
        clock: Clock,
        rng: random.Random,
        mailbox: Mailbox,
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._core = core
        self._clock = clock
        self._mailbox = mailbox
        self._wake = wake
        self.chunks: dict[str, RecordChunk] = {}
        self.partitioning = RowPartitioner(config, rng)
        self._most_bytes = min(CHUNK_BYTES_MAX, config.batch_size, config.buffer_memory // 4)  # that a chunk may hold
        # That an Arrow batch may have to go into a chunk.
        self.small_batch_bytes = min(SMALL_BATCH_BYTES, self._most_bytes // 4, config.max_request_size)
        self.is_closed = False
        self._is_all_placed = False  # since it is closed
        self._placing: str | None = None  # the topic whose chunk was taken off and is not placed yet
        self._first_bytes: dict[str, int] = {}  # what is paid at first for a chunk, of topics whose last one was larger

    # --- open or closed

    @property
    def is_unusable(self) -> bool:
        """True once no more records are accepted."""
        return self.is_closed or self._core.stopped_by is not None

    def check_usable(self) -> None:
        """As `check_open`; raises what stops the transaction besides, or that there has to be one."""
        self.check_open()
        if self._core.stopped_by is not None:
            raise fresh(self._core.stopped_by)

    def check_open(self) -> None:
        """Raises ProducerClosedError once nothing more comes in for good."""
        fatal = self._core.fatal_error
        if fatal is not None:
            raise ProducerClosedError(f"the producer failed for good: {fatal}") from fresh(fatal)
        if self.is_closed:
            raise ProducerClosedError("the producer is closed")

    def close(self) -> None:
        """Accepts no more records; those already accepted are still sent."""
        self.is_closed = True
        self.place_all()
        self._is_all_placed = True

    # --- waiting

    def view(self, topic: str, deadline_ms: int, *, is_to_write: bool = True) -> Work[TopicView]:
        """The topic as last seen; waits for it. Raises UnknownTopicOrPartitionError, BrokerUnreachableError and the broker's error
        for the topic.
        """
        check = self.check_usable if is_to_write else self.check_open
        check()
        topics = self._core.topics
        now_ms = self._clock.monotonic_ms()
        view = topics.use(topic, now_ms)
        if view is not None:
            return view
        waiter = topics.wait_for(topic, now_ms)
        self._wake()
        try:
            is_logged = False
            while (view := topics.view(topic)) is None:
                check()
                error = waiter.error
                if error is not None and not error.retriable:
                    raise fresh(error)
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise self._topic_missing(topic, error)
                is_logged = is_logged or self._log_wait(topic, error)
                yield
        finally:
            topics.leave(waiter, self._clock.monotonic_ms())
        return view

    def partition_count(self, topic: str, deadline_ms: int) -> Work[int]:
        """How many partitions a topic has. Waits and raises as `view`, for a caller that may only read."""
        view = yield from self.view(topic, deadline_ms, is_to_write=False)
        return len(view.leaders)

    def newer_view(self, topic: str, deadline_ms: int) -> Work[TopicView]:
        """Requests the topic again, for a caller that misses something in the known view; returns that if no broker answers in
        time.
        """
        view = yield from self.view(topic, deadline_ms)
        topics = self._core.topics
        waiter = topics.wait_for(topic, self._clock.monotonic_ms(), newer=True)
        self._wake()
        try:
            while waiter.view is None and waiter.error is None and self._clock.monotonic_ms() < deadline_ms:
                self.check_usable()
                yield
        finally:
            topics.leave(waiter, self._clock.monotonic_ms())
        return waiter.view or view

    def _log_wait(self, topic: str, error: BrokerdError | None) -> bool:
        """Logs the reason why a call waits, as soon as it is known: it may wait for a minute. False if it is not known yet."""
        most_ms = self._config.max_block_ms
        if error is not None:
            logger.warning("topic '%s' is not there: it is waited for up to max.block.ms (%d ms)", topic, most_ms)
        elif self._core.topics.is_unanswered:
            servers, trouble = self._config.bootstrap_servers, self._core.last_trouble
            logger.warning("no broker answers at %s (%s): tried up to max.block.ms (%d ms)", servers, trouble, most_ms)
        else:
            return False
        return True

    def _topic_missing(self, topic: str, error: BrokerdError | None) -> BrokerdError:
        waited = f"after max.block.ms ({self._config.max_block_ms} ms)"
        if error is not None:
            return UnknownTopicOrPartitionError(f"topic '{topic}' is still not there {waited}: {error}")
        trouble = self._core.last_trouble
        return BrokerUnreachableError(
            f"nothing is known of topic '{topic}' {waited}, bootstrap.servers {self._config.bootstrap_servers}"
            + (f": {trouble}" if trouble else "")
        )

    def _room(self, size: int, deadline_ms: int) -> Work[None]:
        """Takes bytes of buffer.memory; waits for them, in order of arrival. Raises BufferExhaustedError, ProducerClosedError."""
        pool = self._core.pool
        if pool.try_allocate(size):
            return
        waiter = pool.enqueue(size)
        self._wake()
        try:
            while not waiter.is_granted:
                self.check_usable()
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise self._buffer_full(size)
                yield
                self.place_posted()  # room that was promised to a call that was interrupted is given back
            self.check_usable()  # the room may come from batches given up when the producer ended
        except BaseException:
            pool.cancel(waiter)
            raise

    def _buffer_full(self, size: int) -> BufferExhaustedError:
        trouble = self._core.accumulator.last_error() or self._core.last_trouble
        return BufferExhaustedError(
            f"no room for {size} bytes in max.block.ms ({self._config.max_block_ms} ms): buffer.memory "
            f"({self._config.buffer_memory}) is full of records that wait to be acknowledged"
            + (f"; last trouble: {trouble}" if trouble else "")
        )

    # --- records of send

    def open_on_credit(self, topic: str, size: int, partition: int | None) -> RecordChunk | None:
        """In the application's thread: opens a chunk whose memory the sender takes once it sees the chunk. None if there may be no
        room for it, or anything else has to be waited for: use `open_chunk` then. Threads that do this at the same time may exceed
        buffer.memory by one chunk each.
        """
        self._mailbox.refuse_fork()
        now_ms = self._clock.monotonic_ms()
        view = None if self.is_unusable else self._core.topics.peek(topic, now_ms)
        if view is None or self._core.pool.is_exhausted or (partition is not None and not 0 <= partition < len(view.leaders)):
            return None
        each_bytes = self._core.pool.available_bytes // (len(self.chunks) + 1)  # none of the chunks may be paid for yet
        credit = min(self._usual_bytes(topic), self._most_bytes if each_bytes >= self._most_bytes else CHUNK_BYTES_MIN)
        if max(size, credit) > min(credit, each_bytes):
            return None
        chunk = self.chunks.setdefault(topic, RecordChunk(topic, len(view.leaders), now_ms, credit, self._mailbox, is_paid=False))
        if not self.is_unusable:
            return chunk if chunk.room_bytes >= size else None
        # The thread that ended the producer may have gone through the chunks before this one came, and does not do it again.
        chunk.is_sealed = True
        return None

    def open_chunk(self, topic: str, size: int, partition: int | None, deadline_ms: int) -> Work[RecordChunk]:
        """Finds or opens a chunk with room for `size` bytes. One that stays empty is closed, and its memory freed."""
        view = yield from self.view(topic, deadline_ms)
        if partition is not None and partition >= len(view.leaders):  # the topic may have grown
            view = yield from self.newer_view(topic, deadline_ms)
        if partition is not None and not 0 <= partition < len(view.leaders):
            raise ValueError(f"partition {partition} does not exist: topic '{topic}' has partitions 0 to {len(view.leaders) - 1}")
        if size > self._config.max_request_size:
            raise columns.too_large(size, self._config.max_request_size)
        paid = max(size, self._usual_bytes(topic))
        while True:
            chunk = self.chunks.get(topic)
            if chunk is not None:
                self._pay(chunk)
                if chunk.room_bytes >= size and (partition is None or partition < chunk.partition_count):
                    return chunk
                if (partition is None or partition < chunk.partition_count) and self._grow(chunk, size):
                    return chunk
                self._place_chunk(topic)
            yield from self._room(paid, deadline_ms)
            # Meanwhile another call may have opened the topic's chunk, or the producer may have ended.
            if not self.is_unusable:
                own = RecordChunk(topic, len(view.leaders), self._clock.monotonic_ms(), paid, self._mailbox)
                if self.chunks.setdefault(topic, own) is own:
                    return own
            self._core.pool.release(paid)
            self.check_usable()

    def _usual_bytes(self, topic: str) -> int:
        """The bytes that a chunk of the topic needs, judged by its last ones."""
        return min(self._most_bytes, self._first_bytes.get(topic, CHUNK_BYTES_MIN))

    def _pay(self, chunk: RecordChunk) -> None:
        """Takes the memory of a chunk that was opened on credit, and as much as the topic's chunks usually need if
        there is room.
        """
        if chunk.is_paid:
            return
        chunk.is_paid = True
        self._core.pool.adjust(chunk.paid_bytes)
        self._core.topics.use(chunk.topic, chunk.created_ms)
        more = self._usual_bytes(chunk.topic) - chunk.paid_bytes
        if more > 0 and self._core.pool.try_allocate(more):
            chunk.paid_bytes += more
            chunk.room_bytes += more

    def _grow(self, chunk: RecordChunk, size: int) -> bool:
        """Doubles the memory of a chunk, if it may hold so much and buffer.memory has room. False if not."""
        most = self._most_bytes
        more = max(size - chunk.room_bytes, min(chunk.paid_bytes, most - chunk.paid_bytes))
        if chunk.paid_bytes + more > most or not self._core.pool.try_allocate(more):
            return False
        chunk.paid_bytes += more
        chunk.room_bytes += more
        if len(self._first_bytes) >= _TOPICS_REMEMBERED_MAX:
            self._first_bytes.clear()
        self._first_bytes[chunk.topic] = chunk.paid_bytes  # its next one will need as much
        return True

    def place_late(self, chunk: RecordChunk, number: int) -> Placement:
        """The placement of a record that was appended to a chunk while it was being closed. Raises ProducerClosedError if it came
        after the producer's end.
        """
        if not any(placement.holds(number) for placement in chunk.placements):
            self.check_usable()
            taken = chunk.take()
            assert taken is not None, "who came late has a row that nobody took"
            self.place_posted()
            self._place(taken, 0)
        return next(placement for placement in chunk.placements if placement.holds(number))

    def _place_chunk(self, topic: str) -> None:
        """Closes the topic's chunk, if it has one, and places its records."""
        self._placing = topic  # before the chunk is gone: see post_rows
        chunk = self.chunks.pop(topic, None)
        if chunk is not None:
            self._place_rows_of(topic, chunk)
        self._placing = None

    def _place_rows_of(self, topic: str, chunk: RecordChunk) -> None:
        self._pay(chunk)
        if self._is_all_placed:  # callers that put rows into such a chunk get an error (see place_late); the rows are dropped
            chunk.is_sealed = True
            self._core.pool.release(chunk.paid_bytes)
            return
        taken = chunk.take()
        if chunk.room_bytes > chunk.paid_bytes // 2:
            self._first_bytes.pop(topic, None)
        if taken is None:
            self._core.pool.release(chunk.paid_bytes)
        else:
            self.place_posted()
            self._place(taken, chunk.paid_bytes)

    def place_all(self) -> None:
        """Places all chunks and posted rows; those that cannot be placed end with the producer."""
        for topic in self.chunks.copy():  # in one call: threads put new ones there
            self._place_chunk(topic)
        self.place_posted()

    def place_due(self, now_ms: int) -> int:
        """Places posted rows, and chunks that are due. Returns the time when the next one is due."""
        self.place_posted()
        next_ms = NEVER_MS
        for topic, chunk in self.chunks.copy().items():
            self._pay(chunk)
            due_ms = self._core.accumulator.linger_ends_ms(chunk.created_ms)
            if not chunk.rows:
                due_ms = max(due_ms, chunk.created_ms + _EMPTY_MS)
            if due_ms <= now_ms:
                self._place_chunk(topic)
            else:
                next_ms = min(next_ms, due_ms)
        return next_ms

    def _place(self, taken: TakenRows, paid_bytes: int) -> None:
        """Turns rows into pieces of batches, which account for the memory from here on. Rows that cannot be placed (their partition
        does not exist in the recreated topic) end their futures with the error; the sender and other topics continue.
        """
        topic, placement, created_ms = taken.chunk.topic, taken.placement, taken.chunk.created_ms
        refused: tuple[ProducerBatch, BrokerdError] | None = None
        try:
            parts = self._split(topic, taken)
        except Exception as error:
            self._core.pool.release(paid_bytes)
            batch = ProducerBatch(TopicPartition(topic, _NO_PARTITION), created_ms)
            placement.segments.append(Segment(0, batch, 0, taken.row_count))
            refused = (batch, _as_brokerd_error(topic, error))
        else:
            self._core.pool.adjust(sum(part.piece.size_bytes for part in parts.pieces) - paid_bytes)
            placement.order = parts.order
            self._append(topic, parts.pieces, placement, 0, created_ms)
        placement.end()
        if refused is not None:
            self._core.refuse(*refused, self._clock.monotonic_ms())
            self._wake()

    def _split(self, topic: str, taken: TakenRows) -> columns.SplitRows:
        """Rows by partition. Changes nothing but the sticky partition."""
        rows = taken.to_arrow()
        view = self._core.topics.view(topic) or TopicView(b"", (0,) * taken.chunk.partition_count)
        count = len(view.leaders)
        load, batch_size = self._core.accumulator.load_of(topic, view), self._core.accumulator.batch_size_of(topic)
        wanted = taken.partitions
        if rows.num_rows == 1 and not taken.chunk.has_batches:
            used_bytes = taken.used_bytes
            named = int(wanted[0]) if wanted is not None and wanted[0] >= 0 else None
            partition = self.partitioning.choose_one(topic, rows, named, used_bytes, load)
            return columns.SplitRows([columns.PartitionPiece(partition, Piece(rows, 1, used_bytes, 0), 0)], None)
        keyless = self.partitioning.keyless_rows(topic, rows, wanted, load)
        chosen = self.partitioning.choose(rows, wanted, keyless, count)
        return columns.split(rows, chosen, count, batch_size=batch_size, timestamp_ms=0)

    # --- rows of send_batch

    def keyless_rows(self, topic: str, rows: pa.RecordBatch, wanted: Int32s | None, view: TopicView) -> Int32s | None:
        """Where the rows without a key go."""
        self.check_usable()
        return self.partitioning.keyless_rows(topic, rows, wanted, self._core.accumulator.load_of(topic, view))

    def post_rows(
        self, topic: str, parts: list[tuple[int, columns.SplitRows]], placement: Placement, *, is_last: bool
    ) -> Promise | None:
        """In the application's thread: as `take_rows`, but leaves the rows to the sender and waits for nothing. None where that
        cannot be, as there may be no room or others go first; then `take_rows` is to be asked."""
        self._mailbox.refuse_fork()
        if self.is_unusable:
            return None
        pool = self._core.pool
        # A chunk is looked for first: the sender says that it places one before it takes it off.
        if len(pool.promises) >= POSTED_MAX or topic in self.chunks or self._placing == topic or self._mailbox.is_own_thread:
            return None
        promise = Promise(_size_of(parts), partial(self._take_in, topic, parts, placement, is_last))
        if not pool.promise(promise):
            return None
        self._wake()
        return promise

    def confirm_posted(self, promise: Promise) -> None:
        """Raises ProducerClosedError for rows that were posted after the end."""
        self.place_posted()
        if not promise.is_kept:
            self.check_usable()

    def place_posted(self) -> None:
        """Takes in what was posted."""
        pool = self._core.pool
        while pool.promises and (promise := pool.redeem()) is not None:
            if self._is_all_placed:  # its call is refused (see confirm_posted): the rows go nowhere
                pool.release(promise.size_bytes)
            else:
                promise.is_kept = True
                promise.keep()

    def take_rows(
        self, topic: str, parts: list[tuple[int, columns.SplitRows]], placement: Placement, deadline_ms: int, *, is_last: bool
    ) -> Work[None]:
        """Takes rows in, all of them or none; waits for memory. Each part comes with the number of its first row. `is_last`: no
        more come into the placement."""
        self.check_usable()
        yield from self._room(_size_of(parts), deadline_ms)
        self._place_chunk(topic)
        self.place_posted()
        self._take_in(topic, parts, placement, is_last)

    def _take_in(self, topic: str, parts: list[tuple[int, columns.SplitRows]], placement: Placement, is_last: bool) -> None:
        """Takes rows in whose memory was taken."""
        now_ms = self._clock.monotonic_ms()
        self._core.topics.use(topic, now_ms)
        for first_row, rows in parts:
            placement.orders.append((first_row, rows.order))
            self._append(topic, rows.pieces, placement, first_row, now_ms)
        if is_last:
            placement.end()

    def _append(
        self, topic: str, pieces: list[columns.PartitionPiece], placement: Placement, first_row: int, created_ms: int
    ) -> None:
        """Puts pieces whose memory was taken into batches."""
        wake = False
        for partition, piece, at in pieces:
            result = self._core.accumulator.append(TopicPartition(topic, partition), piece, created_ms)
            placement.segments.append(Segment(first_row + at, result.batch, result.at, piece.record_count))
            wake = wake or result.is_new_batch or result.is_full
        if self._core.stopped_by is not None:
            self._core.fail_stopped(self._clock.monotonic_ms())
        if wake:
            self._wake()


def _size_of(parts: list[tuple[int, columns.SplitRows]]) -> int:
    return sum(part.piece.size_bytes for _, rows in parts for part in rows.pieces)


def _as_brokerd_error(topic: str, error: Exception) -> BrokerdError:
    if isinstance(error, BrokerdError):
        return error
    refusal = InvalidRequestError(f"records for topic '{topic}' were not sent: {error}", fate=Fate.NOT_APPENDED)
    refusal.__cause__ = error
    return refusal
