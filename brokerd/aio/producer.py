"""Producer and Transaction for asyncio: the calls that await, on top of brokerd.Producer, which raises WouldBlockError where it
would block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from brokerd.aio.turns import Home
from brokerd.client.broker_client import BrokerClient
from brokerd.client.leases import lease_client
from brokerd.client.metadata import ids_in
from brokerd.client.produce_transport import grpc_transport
from brokerd.client.transactions import NO_VERSION, end_transaction, find_transaction
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.errors import BrokerdError, EventLoopError
from brokerd.ids import NO_PRODUCER_ID, TopicIdPartition, TopicPartition
from brokerd.producer import arguments
from brokerd.producer import producer as blocking
from brokerd.producer.arguments import Headers
from brokerd.producer.core.identity import DeliveredTotals
from brokerd.producer.core.membership import MemberReport, Membership, TransactionEnd
from brokerd.producer.core.partitioner import Int32s
from brokerd.producer.futures import BatchFuture, RecordFuture, RecordMetadata
from brokerd.producer.producer import CLOSE_AFTER_ERROR_S, open_producers
from brokerd.producer.sender import TransportFactory
from brokerd.producer.transaction import (
    ABORT_TIMEOUT_MS,
    Expected,
    Given,
    InputReader,
    TransactionBase,
    transactional_id_of,
)
from brokerd.producer.waiting import SharedLock, Wait
from brokerd.steps import drive_in_loop

T = TypeVar("T")
_SENDS_IN_A_TURN = 100  # before `send` yields to other tasks


class Producer:
    """Writes records to topics, in order per partition and without duplicates: brokerd.Producer for asyncio.

        async with Producer(bootstrap_servers="127.0.0.1:9192") as producer:
            metadata = await producer.send_and_wait("events", b"hello", key="user-1")

    `config` and keywords are those of brokerd.Producer. It belongs to the event loop that uses it first; in others, calls raise
    EventLoopError. Any number of the loop's tasks may use it at once; within a partition, records are in the order of the calls.
    Every call may be cancelled: a record is then sent or not, never in part. Use `async with`, or await `close()`.
    """

    _is_closed = True

    def __init__(
        self,
        config: Mapping[str, object] | ProducerConfig | None = None,
        *,
        transport_factory: TransportFactory | None = None,
        clock: Clock | None = None,
        coordinator: AsyncCoordinator | None = None,
        **settings: object,
    ) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._lines = Lines()
        self._sends_in_turn = 0
        checked = arguments.config_of(config, settings)
        self._engine = Engine(checked, transport_factory=transport_factory or grpc_transport(checked), clock=clock)
        self._home = Home("producer", self._engine.shared.refuse_fork)
        self.config = self._engine.config
        self._own_coordinator = coordinator if coordinator is not None else AsyncCoordinator(self.config)
        self._is_closed = False

    # --- sending

    async def send(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: Headers | Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordFuture:
        """Sends one record; returns a future of its partition, offset and timestamp, which any event loop may await.

        Applies back-pressure: waits up to max.block.ms while the topic is unknown or the buffer is full; other tasks run. If
        cancelled, the record is sent or not. Raises as brokerd.Producer.send.
        """
        self._home.enter()
        if topic in self._lines:
            return await self._send_in_turn(topic, partial(self._engine.send, topic, value, key, headers, partition, timestamp))
        try:
            future = self._engine.send(topic, value, key, headers, partition, timestamp)
        except WouldBlockError as would_block:
            wait: Wait[RecordFuture] = would_block.wait
            async with self._lines.turn(topic, self.config.max_block_ms):
                return await self._engine.shared.wait_in_task(wait)
        self._sends_in_turn += 1
        if self._sends_in_turn >= _SENDS_IN_A_TURN:
            self._sends_in_turn = 0
            await asyncio.sleep(0)  # yields to other tasks, even if there is room
        return future

    async def _send_in_turn(self, topic: str, send: Callable[[], RecordFuture]) -> RecordFuture:
        """Sends once there is room, after the tasks already waiting."""
        deadline_ms = self._clock.monotonic_ms() + self.config.max_block_ms
        async with self._lines.turn(topic, self.config.max_block_ms):
            self._engine.deadline_ms = deadline_ms
            try:
                return send()
            except WouldBlockError as would_block:
                wait: Wait[RecordFuture] = would_block.wait
            finally:
                self._engine.deadline_ms = None
            return await self._engine.shared.wait_in_task(wait)

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        headers: Headers | Mapping[str, bytes] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Sends one record and waits until it is acknowledged; returns its partition, offset and timestamp. Raises as `send`, and
        the record's error. If cancelled, it may still be sent."""
        return await (await self.send(topic, value, key, headers, partition, timestamp))

    async def send_batch(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        partitions: Int32s | pa.Array | None = None,
        *,
        key_hashes: Int32s | None = None,
    ) -> BatchFuture:
        """Sends the rows of an Arrow batch or table, as brokerd.Producer.send_batch; waits as `send`. Rows are hashed and split in
        the loop's thread, at about a millisecond per ten thousand. If cancelled, it may have sent the first rows of a batch of
        many MiB."""
        self._home.enter()
        deadline_ms = self._clock.monotonic_ms() + self.config.max_block_ms
        async with self._lines.turn(topic, self.config.max_block_ms):  # no later call overtakes it
            await asyncio.sleep(0)
            steps = self._engine.batch_steps(topic, data, partitions, key_hashes, deadline_ms)
            return await drive_in_loop(steps, self._engine.shared.wait_in_task)

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (its error says how many are left)
        """Sends all records without further linger; returns once each is acknowledged or has failed. Raises TimeoutError after
        `timeout` seconds."""
        await self._wait(partial(self._engine.flush, timeout))

    async def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Waits and raises as `send`."""
        self._home.enter()
        return len((await self._engine.shared.wait_in_task(self._engine.view(topic))).leaders)

    async def _wait(self, call: Callable[[], T]) -> T:
        """Calls the blocking producer, and awaits where it would block."""
        self._home.enter()
        try:
            return call()
        except WouldBlockError as would_block:
            wait: Wait[T] = would_block.wait
        return await self._engine.shared.wait_in_task(wait)

    # --- transactions

    def transaction(self, version: int | None = None) -> Transaction:
        """A transaction of transactional.id: `async with producer.transaction():` commits the records sent in the block, or aborts
        them if an exception (or cancellation) leaves it. `version` and errors as in brokerd.Producer.transaction.
        """
        return Transaction(self, self._coordinator, version)

    async def last_committed_version(self) -> int:
        """The last committed version of the transactional.id, by any producer; -1 = none. Raises ConfigError without
        transactional.id, BrokerUnreachableError and the broker's errors."""
        return await self._coordinator().last_version(transactional_id_of(self.config))

    def _coordinator(self) -> AsyncCoordinator:
        self._home.enter()
        return self._own_coordinator

    async def begin_member(self, membership: Membership) -> None:
        """See brokerd.Producer."""
        await self._wait(partial(self._engine.begin_member, membership))

    async def end_member(self) -> MemberReport:
        """See brokerd.Producer."""
        return await self._wait(self._engine.end_member)

    async def abort_member(self, *, only: Membership | None = None) -> MemberReport:
        """See brokerd.Producer."""
        return await self._wait(partial(self._engine.abort_member, only=only))

    # --- the end

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (cancelled, it does not give up)
        """Sends all records and waits for them, at most `timeout` seconds, then abandons the rest (AbortedBatchError) and frees
        all resources. 0 abandons them at once. May be called twice. If cancelled, it continues without the caller."""
        self._home.enter()
        self._is_closed = True
        await self._engine.close_in_loop(timeout)

    async def __aenter__(self) -> Self:
        self._home.enter()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Closes, and waits for all records. If an exception (or cancellation) left the block, waits at most ten seconds, then
        abandons the remaining records and logs their number."""
        await self.close(None if kind is None else CLOSE_AFTER_ERROR_S)
        self._engine.say_abandoned(kind)

    def __del__(self) -> None:
        """Warns that the producer was dropped without `close`. Sent records are still delivered; it is closed at exit."""
        if not self._is_closed and not self._engine.shared.is_forked:
            warnings.warn(
                f"unclosed {self!r}: use it in an `async with` block, or await close()", ResourceWarning, source=self, stacklevel=2
            )

    # --- state

    @property
    def first_error(self) -> BrokerdError | None:
        """The first failure of any record, or None. For applications that keep no futures: check it after `flush`."""
        return self._engine.first_error

    @property
    def abandoned_count(self) -> int:
        """Number of records that `close` abandoned at its timeout."""
        return self._engine.abandoned_count

    def delivered(self) -> dict[TopicPartition, DeliveredTotals]:
        """Acknowledged records and batches by partition, since the producer was made."""
        return self._engine.delivered()

    async def metrics(self) -> dict[str, float]:
        """Kafka's producer metrics by name; times in ms, rates per second."""
        self._home.enter()
        return self._engine.metrics()


class WouldBlockError(EventLoopError):
    """A call of the blocking producer would block the event loop. Awaiting `wait` gives its result."""

    def __init__(self, wait: Wait[Any]) -> None:
        super().__init__("this call would block the event loop: await the future instead of asking for its result")
        self.wait = wait


class LoopLock(SharedLock):
    """A producer's lock. It never waits in a thread that runs an event loop."""

    def wait(self, wait: Wait[T]) -> T:
        """Waits; in a thread that runs an event loop, raises WouldBlockError instead."""
        if self.is_senders_thread or not _runs_a_loop():
            return super().wait(wait)
        self.refuse_fork()
        raise WouldBlockError(wait)


class Engine(blocking.Producer):
    """The blocking producer inside one aio.Producer. Its blocking `close` runs only at exit, when no event loop runs any more."""

    deadline_ms: int | None = None  # of the current call, if it has waited before

    def _new_lock(self) -> SharedLock:
        return LoopLock(self._clock)

    def _deadline_ms(self) -> int:
        return super()._deadline_ms() if self.deadline_ms is None else self.deadline_ms

    async def close_in_loop(self, timeout: float | None) -> None:  # noqa: ASYNC109 (cancelled, it does not give up)
        """As `close`, for a task; continues if the task is cancelled."""
        await self._shared.wait_in_task(self.closing(timeout))
        open_producers.discard(self)

    @property
    def shared(self) -> SharedLock:
        """The lock on which a task awaits the `wait` of a WouldBlockError."""
        return self._shared


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Lines:
    """Tasks whose sends must wait, in a queue per topic. They proceed in order of arrival, and only the first waits for the
    producer's thread to make room."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._counts: dict[str, int] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._counts

    @contextlib.asynccontextmanager
    async def turn(self, topic: str, timeout_ms: int) -> AsyncIterator[None]:
        """Waits for the task's turn, at most `timeout_ms`; then proceeds out of turn, so that the producer reports why there is no
        room."""
        lock = self._locks.setdefault(topic, asyncio.Lock())
        self._counts[topic] = self._counts.get(topic, 0) + 1
        has_turn = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    has_turn = await lock.acquire()
            yield
        finally:
            if has_turn:
                lock.release()
            self._counts[topic] -= 1
            if not self._counts[topic]:
                del self._counts[topic], self._locks[topic]


class Transaction(TransactionBase):
    """One transaction, as an asynchronous context manager: commits when the block ends, or aborts if an exception (or cancellation)
    leaves it. Shares its decisions with the blocking one.
    """

    def __init__(self, producer: Producer, coordinator: Callable[[], AsyncCoordinator], version: int | None) -> None:
        super().__init__(producer.config, version)
        self._producer = producer
        self._coordinator = coordinator

    async def __aenter__(self) -> Self:
        """Raises as the blocking one."""
        last = await self._coordinator().last_version(self._transactional_id, timeout_ms=self._config.max_block_ms)
        membership = self._begin_after(last)
        try:
            await self._producer.begin_member(membership)
            self._is_open = self._is_used = True
            return self
        except BrokerdError:
            raise
        except BaseException:  # cancelled; the member may have begun
            await self._producer.abort_member(only=membership)
            raise

    async def send_offsets(self, offsets: Given, group: InputReader | str, *, expected: Expected | None = None) -> None:
        """Commits a group's offsets with the transaction, as the blocking one; `group` is an aio.Consumer or a group id."""
        named = self._unread(offsets, group, expected)
        if named is not None:
            self._offsets.add(named, await self._coordinator().partition_ids(named.offsets))

    async def __aexit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Commits, or aborts after an exception. Raises as the blocking one. If cancelled during the commit, the transaction is
        committed or aborted as a whole; a retry with the same version tells which."""
        self._is_open = False
        try:
            if kind is None:
                report = await self._producer.end_member()
                with self._committing():
                    end = self._end_of(report, is_commit=True)
                    await self._coordinator().end(end, timeout_ms=self._config.delivery_timeout_ms)
        except BaseException:
            if not self.is_committed:
                await self._abort()
            raise
        else:
            if kind is not None:
                await self._abort()
        finally:
            self._offsets.tell_readers(is_committed=self.is_committed)

    async def _abort(self) -> None:
        report = await self._producer.abort_member(only=self._membership)
        if report.producer_id != NO_PRODUCER_ID:
            with self._aborting():
                await self._coordinator().end(self._end_of(report, is_commit=False), timeout_ms=ABORT_TIMEOUT_MS)


class AsyncCoordinator:
    """The calls that end a producer's transactions, awaited."""

    def __init__(self, config: ProducerConfig) -> None:
        """Does not connect yet."""
        self._config = config

    async def _ask(self, ask: Callable[[BrokerClient], Coroutine[Any, Any, T]]) -> T:
        with lease_client(self._config) as client:
            return await client.loop_thread.awaited(ask(client.broker_client))

    async def last_version(self, transactional_id: str, *, timeout_ms: int | None = None) -> int:
        """The last committed version; -1 = none. Retries until `timeout_ms` (default.api.timeout.ms). Raises the broker's error,
        BrokerUnreachableError."""
        listing = await self._ask(lambda client: find_transaction(client, transactional_id, timeout_ms=timeout_ms))
        return listing.last_version if listing is not None else NO_VERSION

    async def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """Commits or aborts. Raises the broker's error; BrokerUnreachableError or a retriable error if the outcome is unknown."""
        await self._ask(lambda client: end_transaction(client, end, timeout_ms=timeout_ms))

    async def partition_ids(self, tps: Collection[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        """Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return ids_in(await self._ask(lambda client: client.metadata(sorted({tp.topic for tp in tps}))), tps)
