"""Producer, the public class. It collects records and splits large batches in the caller's thread; Sender does the rest.

Thread-safe. waiting.py has the lock and describes the effect of interrupts, intake.py passes records to the core, and
producer_core.py decides about delivery. At process exit, all open producers are closed within one time limit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.errors import BrokerdError, ClientError, ProducerClosedError, TransactionStateError, fresh
from brokerd.ids import TopicInfo, TopicPartition
from brokerd.process import Open, end_daemon_thread
from brokerd.producer import arguments, columns
from brokerd.producer.arguments import Headers
from brokerd.producer.columns import RECORD_OVERHEAD_BYTES, small_batch_bytes, split_rows
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.identity import DeliveredTotals, Identity
from brokerd.producer.core.membership import MemberReport, Membership
from brokerd.producer.core.metrics import ProducerMetrics
from brokerd.producer.core.partitioner import Int32s
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.futures import BatchFuture, Placement, RecordFuture
from brokerd.producer.intake import Intake, RecordChunk, SplitBatch
from brokerd.producer.sender import Sender, TransportFactory
from brokerd.producer.transaction import Coordinator, Transaction, transactional_id_of
from brokerd.producer.waiting import SharedLock, Wait
from brokerd.steps import drive

logger = logging.getLogger(__name__)

T = TypeVar("T")
_EXIT_TIMEOUT_MS = 10_000
CLOSE_AFTER_ERROR_S = 10


class Producer:
    """Writes records to topics. Records keep their order within a partition, and retries create no duplicates.

        with Producer(bootstrap_servers="127.0.0.1:9192") as producer:
            producer.send("events", key="user-1", value=b"...")

    `config`: settings by Kafka's names (`{"bootstrap.servers": ...}`) or a ProducerConfig. Settings may also be given as keywords,
    with underscores for dots. Threads may share a producer; processes may not: after a fork, the producer refuses to work in the
    child. gRPC does not survive a fork: once a process has used a client, clients created in its forked children find no broker.
    (multiprocessing's "spawn" and "forkserver" are safe.) Use the producer as a context manager or call `close()`; otherwise it is
    closed at process exit.
    """

    def __init__(
        self,
        config: Mapping[str, object] | ProducerConfig | None = None,
        *,
        transport_factory: TransportFactory | None = None,
        clock: Clock | None = None,
        coordinator: Coordinator | None = None,
        **settings: object,
    ) -> None:
        self.config = arguments.config_of(config, settings)
        if transport_factory is None:
            from brokerd.client.produce_transport import grpc_transport

            transport_factory = grpc_transport(self.config)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._wall_ns = self._clock.wall_ns
        self._given_coordinator = coordinator
        rng = random.Random(os.urandom(16))  # noqa: S311 (jitter and sticky partitions)
        self._core = ProducerCore(
            self.config,
            instance_id=os.urandom(16),
            rng=rng,
            metrics=ProducerMetrics(self._clock.monotonic_ms()),
            splitter=split_rows,
        )
        self._shared = self._new_lock()
        self._sender = Sender(
            config=self.config, core=self._core, shared=self._shared, clock=self._clock, transport_factory=transport_factory
        )
        self._wake = self._sender.wake
        self._intake = Intake(self.config, self._core, clock=self._clock, rng=rng, shared=self._shared, wake=self._wake)
        self._chunks = self._intake.chunks
        columns.import_lazy_parts()
        self._sender.start(self._intake, owner=self)
        open_producers.add(self)

    def _new_lock(self) -> SharedLock:
        return SharedLock(self._clock)

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
        """Sends one record without waiting for the response, and returns a future of its partition, offset and timestamp.
        `timestamp`: ms since 1970; default now. A null value is a tombstone. Text is sent as UTF-8.

        Blocks up to max.block.ms while the topic is unknown or the buffer is full, then raises UnknownTopicOrPartitionError,
        BrokerUnreachableError or BufferExhaustedError. Raises MessageTooLargeError for a record larger than max.request.size,
        ProducerClosedError after close or a fatal error, and ValueError or TypeError for invalid arguments.
        """
        # Hot path: the usual case comes first, and nothing is computed twice.
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
            partition = arguments.checked_int(partition, "partition")
        chunk = self._chunks.get(topic)
        if chunk is None or chunk.room_bytes < size or (partition is not None and not 0 <= partition < chunk.partition_count):
            return self._send_slowly(topic, size, value, key, headers, partition, timestamp)
        chunk.room_bytes -= size
        number = chunk.next_number()
        if timestamp is not None:
            chunk.timestamps[number] = timestamp
        if headers:
            chunk.headers[number] = headers
        if partition is not None:
            chunk.partitions[number] = partition
        chunk.add((number, value, key, self._wall_ns()))
        # The record is now accepted, unless the chunk was sealed just before.
        if chunk.is_open or self._was_sealed_with(chunk, number):
            return RecordFuture(chunk.placement, number)
        return self._send_slowly(topic, size, value, key, headers, partition, timestamp)

    def _send_slowly(
        self,
        topic: str,
        size: int,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp: int | None,
    ) -> RecordFuture:
        """Sends a record that does not fit into the current chunk; may block."""

        def add(chunk: RecordChunk) -> RecordFuture:
            number = chunk.next_number()
            if timestamp is not None:
                chunk.timestamps[number] = timestamp
            if headers:
                chunk.headers[number] = headers
            if partition is not None:
                chunk.partitions[number] = partition
            chunk.add((number, value, key, self._wall_ns()))
            return RecordFuture(chunk.placement, number)

        return self._wait(self._intake.for_chunk(topic, size, partition, self._deadline_ms(), add))

    def _was_sealed_with(self, chunk: RecordChunk, number: int | None) -> bool:
        with self._shared.lock:
            return chunk.holds(number)

    def send_batch(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        partitions: Int32s | pa.Array | None = None,
        *,
        key_hashes: Int32s | None = None,
    ) -> BatchFuture:
        """Sends the rows of an Arrow batch or table with the columns key, value (binary or string), headers and timestamp; only
        value is required. `partitions` (int32 per row; -1 = by key) overrides the partitioner. `key_hashes`, from RowTotals.add,
        saves hashing the keys again. Rows keep their order within each partition. The returned future is done once every row has a
        response.

        Blocks and raises like `send`; blocking is the back-pressure. Invalid data raises ValueError, TypeError or
        MessageTooLargeError before any row is accepted. Rows are accepted in rounds of up to 8 MiB (columns.rounds). If
        buffer.memory stays full or the producer is closed after the first round, the error's `taken_rows` is the number of rows
        accepted so far; send only the others again.
        """
        return drive(self.batch_steps(topic, data, partitions, key_hashes, self._deadline_ms()), self._wait)

    def batch_steps(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        partitions: Int32s | pa.Array | None,
        key_hashes: Int32s | None,
        deadline_ms: int,
    ) -> Generator[Wait[Any], Any, BatchFuture]:
        """`send_batch` as a generator of the Waits that it needs. `deadline_ms` limits the first round; each further round of a
        large batch gets max.block.ms again."""
        normalized = columns.normalized(data, self.config.max_request_size)
        if partitions is not None:
            partitions = columns.checked_partitions(partitions, data.num_rows)
        if key_hashes is not None and len(key_hashes) != data.num_rows:
            raise ValueError(f"key_hashes has {len(key_hashes)} entries for {data.num_rows} rows: give one for each")
        if not normalized:
            placement = Placement(topic, self._shared)
            placement.is_placed = True
            return BatchFuture(placement)
        view = None
        if partitions is not None:
            view = yield self._intake.for_topic(topic, deadline_ms, int(partitions.max()))
            self._intake.partitioning.check(partitions, len(view.leaders))
        size_bytes = small_batch_bytes(normalized[0])
        if len(normalized) == 1 and size_bytes <= self._intake.small_batch_bytes:
            return (yield from self._small_batch(topic, normalized[0], size_bytes, partitions, deadline_ms))
        view = view or (yield self._intake.for_topic(topic, deadline_ms))
        placement = Placement(topic, self._shared)
        first_row = 0
        for together in columns.rounds(normalized):
            rows_end = first_row + sum(rows.num_rows for rows in together)
            try:
                hints = tuple(hint if hint is None else hint[first_row:rows_end] for hint in (partitions, key_hashes))
                parts = self._intake.split(topic, view, together, first_row, *hints)
                batch = SplitBatch(topic, parts, placement, is_last=rows_end == data.num_rows)
                yield self._intake.for_room(batch, deadline_ms)
            except ClientError as error:
                error.taken_rows = first_row
                if first_row:
                    error.message += f"; the first {first_row} of {data.num_rows} rows are on their way: send only the others again"
                raise
            first_row = rows_end
            deadline_ms = self._deadline_ms()
        return BatchFuture(placement)

    def _small_batch(
        self, topic: str, rows: pa.RecordBatch, size_bytes: int, partitions: Int32s | None, deadline_ms: int
    ) -> Generator[Wait[Any], Any, BatchFuture]:
        """Adds a copy of the rows to the topic's chunk, since the caller may reuse their memory; waits while there is no room."""
        rows = columns.copied(rows)
        named = None if partitions is None else partitions.copy()

        def add(chunk: RecordChunk) -> BatchFuture:
            number = chunk.next_number()
            chunk.has_batches = True
            if named is not None:
                chunk.partitions[number] = named
            chunk.add((number, rows, None, self._wall_ns()))
            return BatchFuture(chunk.placement, number)

        highest = None if named is None else max(0, int(named.max()))
        chunk = self._chunks.get(topic)
        if chunk is not None and chunk.room_bytes >= size_bytes and (highest is None or highest < chunk.partition_count):
            chunk.room_bytes -= size_bytes  # as in `send`
            future = add(chunk)
            if chunk.is_open or self._was_sealed_with(chunk, future.number):
                return future
        waited: BatchFuture = yield self._intake.for_chunk(topic, size_bytes, highest, deadline_ms, add)
        return waited

    # --- waiting

    def _deadline_ms(self) -> int:
        """The deadline, by max.block.ms, of a call that begins now. A callback may not block, since it would hold up the sender."""
        return self._clock.monotonic_ms() + (0 if self._shared.is_senders_thread else self.config.max_block_ms)

    def _ends_ms(self, timeout: float | None) -> int:
        return NEVER_MS if timeout is None else self._clock.monotonic_ms() + arguments.checked_timeout_ms(timeout)

    def _wait(self, wait: Wait[T]) -> T:
        try:
            return self._shared.wait(wait)
        except ProducerClosedError:
            end_daemon_thread()
            raise

    # --- transactions

    def transaction(self, version: int | None = None) -> Transaction:
        """Returns a transaction of the transactional.id. `with producer.transaction():` commits the records sent in the block, or
        aborts if an exception leaves it. read_committed consumers see all of these records, or none.

        `version` (at least 0) numbers the transaction; by default, the last committed version plus 1. A version is committed at
        most once. If it is already committed, entering the block raises AlreadyCommittedError before anything is sent, so a program
        that replays its input can skip that part. `last_committed_version()` returns the version to resume after. Raises
        ConfigError without transactional.id, ValueError for a version below 0; see Transaction for other errors.
        """
        return Transaction(self, self._coordinator, version)

    def last_committed_version(self) -> int:
        """The last version of the transactional.id that any producer has committed; -1 = none. Raises ConfigError without
        transactional.id, BrokerUnreachableError and the broker's errors."""
        return self._coordinator().last_version(transactional_id_of(self.config))

    def _coordinator(self) -> Coordinator:
        self._shared.refuse_fork()
        self._shared.refuse_senders_thread()
        if self._given_coordinator is not None:
            return self._given_coordinator
        from brokerd.client.leases import ClientCoordinator

        return ClientCoordinator(self.config)

    # --- one member of a transaction that its owner commits or aborts

    def begin_member(self, membership: Membership) -> None:
        """Makes the producer a member of a transaction until `end_member` or `abort_member`. The transaction's owner commits or
        aborts all records sent meanwhile. Sends no request: the producer id is requested at the first row, or after a third of the
        member's timeout.

        Raises ConfigError if the settings do not allow transactions, and TransactionStateError if a transaction is open or earlier
        records are not acknowledged yet. Waits while an earlier member is being aborted.
        """

        def poll(now_ms: int) -> bool | None:
            return self._core.begin_member(membership, now_ms, has_unplaced=self._intake.has_unplaced_rows) or None

        self._shared.wait(Wait(poll))

    def end_member(self, timeout: float | None = None) -> MemberReport:
        """Waits until all records of the member are acknowledged, ends the member, and returns its report.

        Raises TimeoutError after `timeout` seconds; the member stays open. If a record failed, ends the member and raises the first
        failure: AlreadyCommittedError, TxnConflictError, ProducerFencedError, InvalidTxnStateError,
        TransactionalIdAuthorizationFailedError or another error.
        """
        deadline_ms = self._ends_ms(timeout)
        self._shared.refuse_senders_thread()
        identity: Identity | None = None
        flush = self._intake.for_flush(timeout, deadline_ms)

        def poll(now_ms: int) -> MemberReport | None:
            nonlocal identity, flush
            if identity is None:
                self._core.check_open()
                identity = self._core.identity
            if identity.membership is None:
                raise TransactionStateError("no transaction is open")
            if flush.poll(now_ms) is None:
                return None
            if self._core.identity is not identity:
                raise TransactionStateError(f"{identity} was ended meanwhile")
            if self._intake.has_unplaced_rows or self._core.accumulator.incomplete:  # sent by another thread meanwhile
                flush = self._intake.for_flush(timeout, deadline_ms)
                flush.poll(now_ms)
                return None
            report = self._core.end_member()
            if identity.error is not None:
                raise fresh(identity.error)
            return report

        return self._shared.wait(Wait(poll, deadline_ms, lambda: flush.is_due()))

    def abort_member(self, timeout: float = 1, *, only: Membership | None = None) -> MemberReport:
        """Ends the open member, gives up its unacknowledged records, and returns its report; without an open member, returns the
        last one's. If a producer id has been requested, waits for it up to `timeout` seconds, since the broker's abort needs it.
        With `only`, ends no other member."""
        deadline_ms = self._ends_ms(timeout)
        self._shared.refuse_senders_thread()
        identity: Identity | None = None

        def poll(now_ms: int) -> MemberReport | None:
            nonlocal identity
            if identity is None:
                self._wake()
                identity = self._core.abort_member(deadline_ms, only=only)  # the member ends even if this wait is abandoned
                if identity is None:
                    return self._core.last_report
            self._core.end_aborted(now_ms, has_unplaced=self._intake.has_unplaced_rows)
            return self._core.last_report if self._core.identity is not identity else None

        return self._shared.wait(Wait(poll, deadline_ms))

    # --- waiting for all

    def flush(self, timeout: float | None = None) -> None:
        """Sends all records without further linger. Returns once each is acknowledged or has failed, and its callbacks have run.
        Raises TimeoutError after `timeout` seconds."""
        deadline_ms = self._ends_ms(timeout)
        self._shared.refuse_senders_thread()
        self._shared.wait(self._intake.for_flush(timeout, deadline_ms))

    def close(self, timeout: float | None = None) -> None:
        """Sends all records and waits up to `timeout` seconds for their acknowledgement, then gives up the rest (AbortedBatchError)
        and frees all resources. 0 gives up at once. Idempotent."""
        self._shared.wait(self.closing(timeout))
        self._sender.join()  # last: an interrupted `join` makes the thread look ended
        open_producers.discard(self)

    def closing(self, timeout: float | None) -> Wait[bool]:
        """Starts the close and returns its Wait. The sender completes the close even if the Wait is abandoned."""
        close_by_ms = self._ends_ms(timeout)
        self._shared.refuse_fork()
        self._shared.refuse_senders_thread()
        with self._shared.lock:
            self._wake()
            self._core.close(close_by_ms)
        return Wait(lambda _now_ms: self._shared.is_ended or None, is_due=lambda: self._shared.is_ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        """Closes the producer and waits for all records, as Kafka's producer does. After an exception in the block, waits at most
        ten seconds, then gives up the rest and logs the number of records given up."""
        self.close(None if kind is None else CLOSE_AFTER_ERROR_S)
        self.say_abandoned(kind)

    def say_abandoned(self, kind: type[BaseException] | None) -> None:
        """If an exception left the block that sent the records, logs the number of records given up, if any."""
        if kind is not None and self.abandoned_count:
            logger.warning(
                "%d record(s) were given up: the block that sent them was left by %s, and no broker acknowledged them in %d s",
                self.abandoned_count,
                kind.__name__,
                CLOSE_AFTER_ERROR_S,
            )

    # --- state

    @property
    def abandoned_count(self) -> int:
        """Number of records that close() gave up at its timeout."""
        return self._core.abandoned_count

    @property
    def first_error(self) -> BrokerdError | None:
        """The error of the first record that failed, or None. Counts only the open member's records, if a member is open.
        Applications that keep no futures check it after `flush`."""
        return self._core.identity.first_error

    def delivered(self) -> dict[TopicPartition, DeliveredTotals]:
        """Acknowledged records and batches by partition, of the open member, or without one since the producer was created."""
        self._shared.refuse_fork()
        return self._core.identity.delivered.copy()

    def metrics(self) -> dict[str, float]:
        """Kafka's producer metrics by name; times in ms, rates per second."""
        self._shared.refuse_fork()
        with self._shared.lock:
            values = self._core.metrics.snapshot(self._clock.monotonic_ms())
            values["requests-in-flight"] = self._core.streams.requests_in_flight
            values["buffer-total-bytes"] = self._core.pool.total_bytes
            values["buffer-available-bytes"] = self._core.pool.available_bytes
        return values

    def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Blocks up to max.block.ms while the topic is unknown, and raises like `send`."""
        return len(self._wait(self.view(topic)).leaders)

    def view(self, topic: str) -> Wait[TopicInfo]:
        """The Wait of `partitions_for`."""
        return self._intake.for_topic(topic, self._deadline_ms(), is_to_write=False)

    def after_fork(self) -> None:
        """Called in a forked child, which has no sender thread: makes every send raise ForkedProducerError."""
        self._shared.after_fork()
        self._chunks = {}  # makes every `send` take the slow path, which raises


def close_each(producers: Sequence[Producer], clock: Clock) -> None:
    """Closes all producers within one time limit: they send concurrently, and this function waits for each in turn."""
    for producer in producers:
        with contextlib.suppress(TimeoutError, ProducerClosedError):  # closed: its own `close` was interrupted, and went on
            producer.flush(0)
    deadline_ms = clock.monotonic_ms() + _EXIT_TIMEOUT_MS
    for producer in producers:
        try:
            producer.close(max(0, deadline_ms - clock.monotonic_ms()) / 1000)
        except KeyboardInterrupt:  # a second interrupt: do not wait any longer
            deadline_ms = clock.monotonic_ms()
            producer.close(0)
        if producer.abandoned_count:  # no code will check their futures any more
            logger.warning(
                "%d record(s) were given up because the process ended: no broker has acknowledged them. Call flush() or close() "
                "before the end, and look at the futures that send() returns",
                producer.abandoned_count,
            )


open_producers: Open[Producer] = Open(lambda producers: close_each(producers, SystemClock()), Producer.after_fork)
