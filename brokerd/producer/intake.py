"""Intake: moves records from the application into the core. It looks up topics, reserves memory, collects chunks and chooses
partitions.

Records of `send` are collected in a chunk of their topic and turned into columns together. The application's thread adds a record
to the chunk's list without the lock, in one atomic call, and checks `is_open` only *afterwards*. If the chunk was sealed meanwhile,
the thread checks under the lock whether the chunk `holds` its row, and sends the row again if not. A thread interrupted in between
gets no future; its record is sent or dropped. A small Arrow batch of `send_batch` is one entry of a chunk: placing it separately
would cost more than its rows. Chunks are opened and enlarged under the lock.

A large Arrow batch is split and staged in the application's thread, while the sender may be encoding others. The sender's thread
places staged chunks and batches in order, and stages chunks that are due. Records that one thread sends to a topic keep their
order, because staging a batch first stages the topic's chunk.

A call wakes the sender before it makes its change. Both happen under the lock, so the sender sees the change. An interrupt in
between costs a needless wake-up; in the opposite order it would leave the sender asleep.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from brokerd.clock import Clock
from brokerd.config.client import ProducerConfig
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    BufferExhaustedError,
    Fate,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
    fresh,
)
from brokerd.ids import TopicInfo, TopicPartition, missing_topic_remedy
from brokerd.producer import columns
from brokerd.producer.arguments import Headers
from brokerd.producer.columns import RECORD_OVERHEAD_BYTES, joined
from brokerd.producer.core.accumulator import NEVER_MS, Piece, ProducerBatch
from brokerd.producer.core.partitioner import Int32s, RowPartitioner
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.futures import BatchSpan, Placement
from brokerd.producer.waiting import SharedLock, Wait
from brokerd.record.schema import HEADERS, KEY, TIMESTAMP, VALUE

T = TypeVar("T")
_TOPICS_REMEMBERED_MAX = 10_000
_NO_PARTITION = -1  # for records refused before a partition was chosen
# Limit of chunks and batches staged ahead of the sender. With more, the sender and the application compete for the GIL, and rows
# have left the CPU caches by the time they are encoded; with fewer, callers often wait for the sender.
STAGED_MAX = 8
CHUNK_BYTES_MAX = 524_288
CHUNK_BYTES_MIN = 16_384  # reserved for a topic's first chunk; small, since there may be thousands of topics
# Largest batch of `send_batch` that becomes an entry of a chunk. Splitting a larger batch costs more than handing it over, so the
# application's thread splits it.
SMALL_BATCH_BYTES = 65_536

# Number in the chunk, value (or a normalized batch), key, time of sending in ns since 1970.
Row: TypeAlias = tuple[int, bytes | pa.RecordBatch | None, bytes | None, int]
_FIELDS = 4
_NUMBERS = list(range(CHUNK_BYTES_MAX // RECORD_OVERHEAD_BYTES))


class RecordChunk:
    """Records of one topic. `paid_bytes` of buffer.memory are reserved in advance, and corrected when the rows are placed.
    `room_bytes` estimates the unused part; threads update it without the lock."""

    def __init__(self, topic: str, partition_count: int, created_ms: int, paid_bytes: int, shared: SharedLock) -> None:
        self.topic = topic
        self.partition_count = partition_count  # when the chunk was opened
        self.created_ms = created_ms  # monotonic
        self.paid_bytes = paid_bytes
        self.room_bytes = paid_bytes
        self.rows: list[Any] = []  # the fields of all rows in one flat list, without an object per row
        self.add: Callable[[Row], None] = self.rows.extend  # with a tuple, which is atomic
        self.next_number: Callable[[], int] = itertools.count().__next__
        # By number, set before the row is added; never read if the send was interrupted in between.
        self.timestamps: dict[int, int] = {}  # ms, of rows with an explicit timestamp
        self.headers: dict[int, Headers] = {}  # of rows with headers
        self.partitions: dict[int, int | Int32s] = {}  # of entries with an explicit partition, or an array of one per row
        self.has_batches = False  # some entry is a batch; set before it is added
        self.is_open = True
        self.placement = Placement(topic, shared)
        self._sealed_fields = 0
        # Set by `take`. An entry is one row, or a batch of rows.
        self.count = 0  # of entries
        self.row_count = 0
        self._numbers: list[int] = []
        self._values: list[Any] = []
        self._keys: list[bytes | None] = []
        self._sent_ns: list[int] = []

    def seal(self) -> None:
        """Called in the sender's thread: accepts no more rows than those added so far."""
        self.is_open = False  # before the rows are counted: see the module docstring
        self._sealed_fields = len(self.rows)

    def holds(self, number: int | None) -> bool:
        """True if the entry was added before the chunk was sealed."""
        return number in self.rows[: self._sealed_fields : _FIELDS]

    def take(self) -> bool:
        """Splits the entries of a sealed chunk by field. Returns False if there are none."""
        rows = self.rows[: self._sealed_fields]
        placement = self.placement
        self.count = self.row_count = len(rows) // _FIELDS
        self._numbers, self._values, self._keys, self._sent_ns = (rows[field::_FIELDS] for field in range(_FIELDS))
        placement.sent_ns = self._sent_ns
        placement.timestamps = self.timestamps
        # Concurrent sends may add rows out of the order of numbers; an interrupted send leaves a number without a row.
        if self._numbers != _NUMBERS[: self.count]:
            placement.places = {number: place for place, number in enumerate(self._numbers)}
        if self.has_batches:
            counts = (value.num_rows if type(value) is pa.RecordBatch else 1 for value in self._values)
            placement.first_rows = list(itertools.accumulate(counts, initial=0))
            self.row_count = placement.first_rows[-1]
        return self.count > 0

    @property
    def chosen_partitions(self) -> Int32s | None:
        """The explicit partition of each taken row, or -1; None if no row has one."""
        named = self.partitions
        if not named:
            return None
        first_rows = self.placement.first_rows
        if first_rows is None:
            return np.array([named.get(number, -1) for number in self._numbers], np.int32)
        chosen = np.full(self.row_count, -1, np.int32)
        for place, number in enumerate(self._numbers):
            chosen[first_rows[place] : first_rows[place + 1]] = named.get(number, -1)
        return chosen

    @property
    def used_bytes(self) -> int:
        """Bytes that the taken rows hold, in a chunk without batches."""
        size = RECORD_OVERHEAD_BYTES * self.count
        size += sum(len(data) for column in (self._values, self._keys) for data in column if data is not None)
        for number in self._numbers if self.headers else ():
            size += sum(len(key) + len(value or b"") + 24 for key, value in self.headers.get(number, ()))
        return size

    def to_arrow(self) -> pa.RecordBatch:
        """The records as normalized columns, each record with its timestamp."""
        if not self.has_batches:
            return self._columns(0, self.count)
        pieces = []
        at = 0
        for place, value in enumerate(self._values):
            if type(value) is pa.RecordBatch:
                if at < place:
                    pieces.append(Piece(self._columns(at, place), place - at, 0, 0))
                pieces.append(Piece(value, value.num_rows, 0, self._sent_ns[place] // 1_000_000))
                at = place + 1
        if at < self.count:
            pieces.append(Piece(self._columns(at, self.count), self.count - at, 0, 0))
        return joined(pieces)

    def _columns(self, first: int, end: int) -> pa.RecordBatch:
        """The columns of entries `first` to `end` (exclusive), each of which is one row."""
        numbers, keys = self._numbers[first:end], self._keys[first:end]
        count = end - first
        key = pa.array(keys, KEY.type) if keys.count(None) < count else pa.nulls(count, KEY.type)
        columns = {KEY.name: key, VALUE.name: pa.array(self._values[first:end], VALUE.type)}
        if self.headers:
            rows = [self.headers.get(number) for number in numbers]
            lists = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
            columns[HEADERS.name] = pa.array(lists, HEADERS.type)
        millis = np.array(self._sent_ns[first:end], np.int64) // 1_000_000
        if self.timestamps:
            own = [(place, self.timestamps.get(number)) for place, number in enumerate(numbers)]
            places = [place for place, timestamp in own if timestamp is not None]
            millis[places] = [timestamp for _, timestamp in own if timestamp is not None]
        columns[TIMESTAMP.name] = pa.array(millis * 1_000).view(TIMESTAMP.type)
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


class SplitBatch(NamedTuple):
    """Rows of `send_batch`, split by partition. `is_last`: no more rows follow for the placement."""

    topic: str
    parts: list[columns.SplitRows]
    placement: Placement
    is_last: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of all its pieces."""
        return sum([rows.size_bytes for rows in self.parts])


class Flush:
    """A flush in progress. `batches`: the batches that it covers; None until all staged records have been placed."""

    __slots__ = ("batches",)

    def __init__(self) -> None:
        self.batches: list[ProducerBatch] | None = None

    def is_over(self) -> bool:
        """True once all its batches have ended and their callbacks have run."""
        if self.batches is None:
            return False
        while self.batches and self.batches[-1].is_notified:
            self.batches.pop()
        return not self.batches


class Intake:
    """The intake of one producer. `wake` wakes the sender."""

    def __init__(
        self,
        config: ProducerConfig,
        core: ProducerCore,
        *,
        clock: Clock,
        rng: random.Random,
        shared: SharedLock,
        wake: Callable[[], None],
    ) -> None:
        self._config = config
        self._core = core
        self._clock = clock
        self._shared = shared
        self._wake = wake
        self.chunks: dict[str, RecordChunk] = {}
        self.partitioning = RowPartitioner(config, rng)
        self._most_bytes = min(CHUNK_BYTES_MAX, config.batch_size, config.buffer_memory // 4)  # limit of a chunk
        # The largest Arrow batch that becomes an entry of a chunk.
        self.small_batch_bytes = min(SMALL_BATCH_BYTES, self._most_bytes // 4, config.max_request_size)
        self._usual_bytes: dict[str, int] = {}  # initial size of a topic's next chunk, if its last one had to grow
        self._staged: list[RecordChunk | SplitBatch] = []
        self._is_placing = False  # the sender is placing what was in `_staged`
        self._flushes: list[Flush] = []

    @property
    def has_unplaced(self) -> bool:
        """True while records may be in a chunk or staged. An empty chunk counts too: a thread may be adding a record to it."""
        return bool(self.chunks or self._staged)

    @property
    def has_unplaced_rows(self) -> bool:
        """True while accepted records are not in batches yet."""
        return self._is_placing or bool(self._staged) or any(chunk.rows for chunk in self.chunks.values())

    # --- calls that wait

    def for_topic(self, topic: str, deadline_ms: int, partition: int | None = None, *, is_to_write: bool = True) -> Wait[TopicInfo]:
        """Waits for a topic. If the known view lacks `partition`, waits for a newer one, since the topic may have grown. Raises
        UnknownTopicOrPartitionError, BrokerUnreachableError and the broker's error for the topic. With `is_to_write` False, it also
        works while nothing may be written."""
        check = self._core.check_usable if is_to_write else self._core.check_open
        topics = self._core.topics
        began: tuple[int, int] | None = None  # requests and answers before the wait
        is_logged = False
        seen = 0

        def poll(now_ms: int) -> TopicInfo | None:
            nonlocal began, is_logged, seen
            check()
            seen = topics.answer_count
            view = topics.use(topic, now_ms)
            if view is not None and (partition is None or partition < len(view.leaders)):
                return view
            began = began or (topics.request_count, seen)
            error = topics.error_of(topic, began[1])
            if view is not None and (error is not None or topics.is_newer(topic, began[0]) or now_ms >= deadline_ms):
                return view
            if error is not None and not error.retriable:
                raise fresh(error)
            self._wake()
            topics.want(topic, now_ms, newer=view is not None)
            if now_ms >= deadline_ms:
                raise self._topic_missing(topic, error)
            is_logged = is_logged or (view is None and self._log_wait(topic, error))
            return None

        return Wait(poll, deadline_ms, lambda: self._core.is_unusable or topics.answer_count != seen)

    def for_chunk(self, topic: str, size: int, partition: int | None, deadline_ms: int, add: Callable[[RecordChunk], T]) -> Wait[T]:
        """Waits for a chunk of the topic with room for `size` bytes and, if given, with `partition`; calls `add` with it. Raises
        ValueError, MessageTooLargeError, BufferExhaustedError, and the errors of `for_topic`."""
        view: TopicInfo | None = None

        def poll(now_ms: int) -> T | None:
            nonlocal view
            view = topic_wait.poll(now_ms)
            if view is None:
                return None
            if partition is not None and not 0 <= partition < len(view.leaders):
                raise ValueError(
                    f"partition {partition} does not exist: topic '{topic}' has partitions 0 to {len(view.leaders) - 1}"
                )
            if size > self._config.max_request_size:
                raise columns.too_large(size, self._config.max_request_size)
            chunk = self._chunk_for(topic, view, size, partition, wait, now_ms)
            if chunk is None:
                return None
            chunk.room_bytes -= size
            return add(chunk)

        wait = Wait(poll, deadline_ms, lambda: topic_wait.is_due() if view is None else self._may_have_room(wait))
        topic_wait = self.for_topic(topic, deadline_ms, partition)
        return wait

    def _chunk_for(
        self, topic: str, view: TopicInfo, size: int, partition: int | None, call: Wait[T], now_ms: int
    ) -> RecordChunk | None:
        """The topic's chunk if it has room or can grow, else a new one; None if there is no memory."""
        pool = self._core.pool
        chunk = self.chunks.get(topic)
        if chunk is not None and (partition is None or partition < chunk.partition_count):
            if chunk.room_bytes >= size:
                return chunk
            more = max(size - chunk.room_bytes, min(chunk.paid_bytes, self._most_bytes - chunk.paid_bytes))
            if chunk.paid_bytes + more <= self._most_bytes and pool.admits(more):
                pool.used_bytes += more
                chunk.paid_bytes += more
                chunk.room_bytes += more
                self._usual_bytes[topic] = chunk.paid_bytes  # the next chunk will need as much
                return chunk
        if chunk is not None:
            self._wake()
            self._stage_chunk(topic)
        if len(self._usual_bytes) > _TOPICS_REMEMBERED_MAX:
            self._usual_bytes.clear()
        paid = max(size, min(self._usual_bytes.get(topic, CHUNK_BYTES_MIN), self._most_bytes))
        if not self._has_room(paid, call, now_ms):
            return None
        chunk = RecordChunk(topic, len(view.leaders), now_ms, paid, self._shared)
        self._wake()
        pool.used_bytes += paid
        self.chunks[topic] = chunk
        return chunk

    def split(
        self,
        topic: str,
        view: TopicInfo,
        together: list[pa.RecordBatch],
        first_row: int,
        partitions: Int32s | None,
        key_hashes: Int32s | None,
    ) -> list[columns.SplitRows]:
        """Splits large batches by partition, in the calling thread. Their rows are numbered from `first_row` on. `partitions` and
        `key_hashes` cover all these rows, if given."""
        timestamp_ms = self._clock.wall_ms()
        parts = []
        at = 0
        for rows in together:
            wanted = None if partitions is None else partitions[at : at + rows.num_rows]
            hashes = None if key_hashes is None else key_hashes[at : at + rows.num_rows]
            split = self._split_rows(topic, view, rows, wanted, hashes, timestamp_ms)
            parts.append(split._replace(first_row=first_row + at))
            at += rows.num_rows
        return parts

    def _split_rows(
        self,
        topic: str,
        view: TopicInfo,
        rows: pa.RecordBatch,
        wanted: Int32s | None,
        hashes: Int32s | None = None,
        timestamp_ms: int = 0,
    ) -> columns.SplitRows:
        """Splits rows by partition. `timestamp_ms` is for rows without one. Changes no state but the sticky partition."""
        keyless = None
        if self.partitioning.has_keyless_rows(rows, wanted):
            with self._shared.lock:
                keyless = self.partitioning.keyless_rows(topic, rows, self._core.accumulator.load_of(topic, view))
        count, batch_size = len(view.leaders), self._core.accumulator.batch_size_of(topic)
        chosen = self.partitioning.choose(rows, wanted, keyless, count, hashes=hashes)
        return columns.split(rows, chosen, count, batch_size=batch_size, timestamp_ms=timestamp_ms)

    def for_room(self, batch: SplitBatch, deadline_ms: int) -> Wait[bool]:
        """Waits for memory for all rows of the batch, then stages it."""
        size = batch.size_bytes

        def poll(now_ms: int) -> bool | None:
            self._core.check_usable()
            if not self._has_room(size, wait, now_ms):
                return None
            self._stage_chunk(batch.topic)
            self._core.topics.use(batch.topic, now_ms)
            self._wake()
            self._core.pool.used_bytes += size
            self._staged.append(batch)
            return True

        wait = Wait(poll, deadline_ms, lambda: self._may_have_room(wait))
        return wait

    def _has_room(self, size: int, call: Wait[Any], now_ms: int) -> bool:
        """True if buffer.memory has room for the call. Otherwise the call waits in line, and BufferExhaustedError is raised at its
        deadline. The call also waits while the sender is behind, but that alone is no error at the deadline."""
        pool = self._core.pool
        may_wait_for_sender = self._is_sender_behind and now_ms < call.deadline_ms
        was_exhausted = pool.is_exhausted
        if may_wait_for_sender and not was_exhausted:
            return False
        if pool.admits(size, call):
            return True
        if now_ms >= call.deadline_ms:
            raise BufferExhaustedError(
                f"no room for {size} bytes {self._waited}: buffer.memory ({self._config.buffer_memory}) "
                f"is full of records that wait to be acknowledged{self._last_trouble()}"
            )
        if not was_exhausted:
            self._wake()  # from now on, nothing lingers
        return False

    def _may_have_room(self, call: Wait[Any]) -> bool:
        return self._core.is_unusable or not (self._is_sender_behind or self._core.pool.blocks(call))

    @property
    def _is_sender_behind(self) -> bool:
        return len(self._staged) >= STAGED_MAX

    def for_flush(self, timeout: float | None, deadline_ms: int) -> Wait[bool]:
        """Waits until all records accepted so far have a final state. Raises TimeoutError."""
        flush = Flush()

        def poll(now_ms: int) -> bool | None:
            if flush not in self._flushes and flush.batches is None:
                self._wake()
                self._flushes.append(flush)
            if flush.is_over():
                return True
            if now_ms >= deadline_ms and flush.batches is not None:
                undone = sum(leaf.record_count for batch in flush.batches for leaf in batch.leaves() if not leaf.is_done)
                raise TimeoutError(f"{undone} records are not acknowledged after {timeout} s{self._last_trouble()}")
            return None

        return Wait(poll, deadline_ms, flush.is_over)

    # --- errors of calls that wait

    def _log_wait(self, topic: str, error: BrokerdError | None) -> bool:
        """Makes the sender log why a call waits, as max.block.ms may be a minute. Returns False while the reason is unknown.
        Nothing is logged under the producer's lock: a log handler has a lock of its own, and may send with this producer."""
        most = f"for up to max.block.ms ({self._config.max_block_ms} ms)"
        if error is not None:
            self._core.warnings.append(f"topic '{topic}' does not exist: waiting for it {most}")
        elif self._core.topics.is_unanswered:
            trouble = self._core.last_trouble
            self._core.warnings.append(f"no broker has described topic '{topic}' ({trouble}): retrying {most}")
        else:
            return False
        return True

    @property
    def _waited(self) -> str:
        if self._shared.is_senders_thread:
            return "now, and a callback cannot wait, for it runs in the thread that sends"
        return f"after max.block.ms ({self._config.max_block_ms} ms)"

    def _topic_missing(self, topic: str, error: BrokerdError | None) -> BrokerdError:
        if error is not None:
            remedy = missing_topic_remedy(topic)
            text = f"topic '{topic}' still does not exist {self._waited}: {remedy}; the broker says: {error}"
            return UnknownTopicOrPartitionError(text)
        no_metadata = f"no metadata for topic '{topic}' {self._waited}"
        if self._shared.is_senders_thread:
            return UnknownTopicOrPartitionError(
                f"{no_metadata}: call partitions_for('{topic}') before, or send from another thread"
            )
        trouble = self._core.last_trouble
        return BrokerUnreachableError(
            f"{no_metadata}, bootstrap.servers {self._config.bootstrap_servers}" + (f": {trouble}" if trouble else "")
        )

    def _last_trouble(self) -> str:
        trouble = self._core.accumulator.last_error() or self._core.last_trouble
        return f"; last trouble: {trouble}" if trouble else ""

    # --- placing, in the sender's thread

    def _stage_chunk(self, topic: str) -> None:
        """Under the lock: stages the topic's chunk, so that new records go to another."""
        chunk = self.chunks.get(topic)
        if chunk is not None:
            del self.chunks[topic]
            self._staged.append(chunk)

    def stage_all(self) -> None:
        """Under the lock: stages all chunks."""
        for topic in list(self.chunks):
            self._stage_chunk(topic)

    def place_due(self, now_ms: int) -> int:
        """Places staged batches and chunks, and chunks that are due. Returns the time when the next chunk is due."""
        with self._shared.lock:
            flushes, self._flushes = self._flushes, []
            next_ms = self._stage_due(now_ms, is_all_due=bool(flushes) or self._core.is_unusable)
            staged, self._staged = self._staged, []
            self._is_placing = bool(staged)
            for one in staged:
                if isinstance(one, RecordChunk):
                    one.seal()
        for one in staged:
            if isinstance(one, RecordChunk):
                self._place_chunk(one)
            else:
                self._place_batch(one)
        with self._shared.lock:
            self._is_placing = False
            for flush in flushes:
                flush.batches = self._core.accumulator.begin_flush() + self._core.ended
        return next_ms

    def _stage_due(self, now_ms: int, *, is_all_due: bool) -> int:
        next_ms = NEVER_MS
        for topic, chunk in list(self.chunks.items()):
            due_ms = now_ms if is_all_due else self._core.accumulator.linger_ends_ms(chunk.created_ms)
            if due_ms <= now_ms:
                self._stage_chunk(topic)
            else:
                next_ms = min(next_ms, due_ms)
        return next_ms

    def _place_chunk(self, chunk: RecordChunk) -> None:
        """Appends a chunk's rows to batches, which then account for their memory. If that fails (the topic was recreated without a
        row's partition), the chunk's futures end with the error."""
        has_rows = chunk.take()
        if chunk.room_bytes > chunk.paid_bytes // 2:
            self._usual_bytes.pop(chunk.topic, None)
        if not has_rows:
            with self._shared.lock:
                self._core.pool.adjust(-chunk.paid_bytes)
            return
        try:
            rows = self._split(chunk)
            size_bytes = rows.size_bytes
        except Exception as error:
            self._refuse(chunk, _as_brokerd_error(chunk.topic, error))
        else:
            with self._shared.lock:
                self._append(chunk.topic, rows, chunk.placement, chunk.created_ms)
                self._core.pool.adjust(size_bytes - chunk.paid_bytes)
                chunk.placement.is_placed = True
        if chunk.placement.listeners:
            chunk.placement.tell_placed()

    def _refuse(self, chunk: RecordChunk, error: BrokerdError) -> None:
        batch = ProducerBatch(TopicPartition(chunk.topic, _NO_PARTITION), chunk.created_ms)
        batch.record_count = chunk.row_count
        with self._shared.lock:
            self._core.pool.adjust(-chunk.paid_bytes)
            chunk.placement.segments.append(BatchSpan(0, batch, 0, chunk.row_count))
            self._core.fail(batch, error, self._clock.monotonic_ms())
            chunk.placement.is_placed = True

    def _split(self, chunk: RecordChunk) -> columns.SplitRows:
        """Splits the taken rows by partition."""
        topic, rows, wanted = chunk.topic, chunk.to_arrow(), chunk.chosen_partitions
        with self._shared.lock:
            view = self._core.topics.view(topic) or TopicInfo(b"", (0,) * chunk.partition_count)
            if rows.num_rows == 1 and not chunk.has_batches:
                used_bytes = chunk.used_bytes
                named = int(wanted[0]) if wanted is not None and wanted[0] >= 0 else None
                load = self._core.accumulator.load_of(topic, view)
                partition = self.partitioning.choose_one(topic, rows, named, used_bytes, load)
                return columns.SplitRows([columns.PartitionPiece(partition, Piece(rows, 1, used_bytes, 0), 0)], None)
        return self._split_rows(topic, view, rows, wanted)

    def _place_batch(self, batch: SplitBatch) -> None:
        with self._shared.lock:
            now_ms = self._clock.monotonic_ms()
            for rows in batch.parts:
                self._append(batch.topic, rows, batch.placement, now_ms)
            batch.placement.is_placed = batch.is_last
        if batch.is_last:
            batch.placement.tell_placed()

    def _append(self, topic: str, rows: columns.SplitRows, placement: Placement, created_ms: int) -> None:
        """Appends rows, whose memory is already reserved, to batches."""
        placement.orders.append((rows.first_row, rows.order))
        for partition, piece, at in rows.pieces:
            batch, at_in_batch = self._core.accumulator.append(TopicPartition(topic, partition), piece, created_ms)
            placement.segments.append(BatchSpan(rows.first_row + at, batch, at_in_batch, piece.record_count))


def _as_brokerd_error(topic: str, error: Exception) -> BrokerdError:
    if isinstance(error, BrokerdError):
        return error
    refusal = InvalidRequestError(f"records for topic '{topic}' were not sent: {error}", fate=Fate.NOT_APPENDED)
    refusal.__cause__ = error
    return refusal
