"""Consumer for asyncio: the calls that await, on the base it shares with the blocking one.

A task is cancelled only where it awaits, and holds no records there: they are taken and handed over in one step.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import pyarrow as pa

from brokerd.aio.turns import Bell, Home, TaskGuard
from brokerd.arguments import OffsetAndMetadata, checked_int, checked_partition
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.clock import Clock
from brokerd.config.client import PlainConsumerConfig
from brokerd.config.settings import INT32_MAX
from brokerd.consumer.base import CLOSE_AT_EXIT_MS, CLOSE_TIMEOUT_MS, ConsumerBase, Partitions, open_consumers
from brokerd.consumer.core.assignment import HandedOver
from brokerd.consumer.core.records import ConsumerRecord, Run
from brokerd.errors import ConsumerClosedError
from brokerd.ids import TopicPartition
from brokerd.steps import drive_in_loop
from brokerd.waiter import Waiter

P = ParamSpec("P")
T = TypeVar("T")
_RECORDS_IN_A_TURN = 100  # of an iteration, before it yields to other tasks


class Consumer(ConsumerBase):
    """Reads records of partitions, in offset order within each: brokerd.Consumer for asyncio.

        async with Consumer(bootstrap_servers="127.0.0.1:9192", auto_offset_reset="earliest") as consumer:
            consumer.assign([("events", 0), ("events", 1)])
            async for record in consumer:
                print(record.key, record.value)

    `config` and keywords are those of brokerd.Consumer. It belongs to the event loop that uses it first; in others, calls raise
    EventLoopError. One task may use it at a time; others may call only `wakeup()` and `close()`. Every call may be cancelled: the
    records of a cancelled `poll` are returned again. Use `async with`, or await `close()`.
    """

    _guard: TaskGuard
    _ADVICE = "use it in an `async with` block, or await close()"

    def __init__(
        self, config: Mapping[str, object] | PlainConsumerConfig | None = None, *, clock: Clock | None = None, **settings: object
    ) -> None:
        self._bell = Bell()
        self._home = Home("consumer")
        self._records_in_turn = 0
        self._has_ended = asyncio.Event()
        super().__init__(config, settings, clock=clock, guard=TaskGuard(self._home), on_arrival=self._bell.ring)

    # --- records

    async def poll(self, timeout_ms: int | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Returns the next records, at most `max_records` (max.poll.records), as soon as there are any; an empty list after
        `timeout_ms`. Without `timeout_ms` it waits for records. Raises as brokerd.Consumer.poll."""
        limit = self._limit(max_records)
        handed: HandedOver = {}
        try:
            with self._guard, self._whole():
                await asyncio.sleep(0)  # yields to other tasks, even if records are buffered
                return self._collected(await self._run_in_time(self._checked_timeout(timeout_ms)), limit, handed)
        except BaseException:
            self._take_back(handed)
            raise

    async def poll_arrow(self, timeout_ms: int | None = None, max_records: int | None = None) -> pa.RecordBatch:
        """The next records of one partition as columns, as brokerd.Consumer.poll_arrow."""
        limit = INT32_MAX if max_records is None else self._limit(max_records)
        handed: HandedOver = {}
        try:
            with self._guard, self._whole():
                await asyncio.sleep(0)
                return self._columns(await self._run_in_time(self._checked_timeout(timeout_ms)), limit, handed)
        except BaseException:
            self._take_back(handed)
            raise

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """Waits for the next record; ends once the consumer is closed. Raises as `poll`."""
        handed: HandedOver = {}
        try:
            with self._guard, self._whole():
                self._records_in_turn += 1
                if self._records_in_turn >= _RECORDS_IN_A_TURN:
                    self._records_in_turn = 0
                    await asyncio.sleep(0)
                return self._collected(await self._run_in_time(None), 1, handed)[0]
        except ConsumerClosedError:
            raise StopAsyncIteration from None
        except BaseException:
            self._take_back(handed)
            raise

    async def _run_in_time(self, timeout_ms: int | None) -> Run | None:
        """The next records to hand over; see `_begin_round` and `_await_run`."""
        run = self._begin_round()
        return run if run is not None else await drive_in_loop(self._await_run(timeout_ms), self._take)

    async def _take(self, timeout_ms: int | None) -> None:
        """As Fetching.take, but awaits. Yields to other tasks afterwards: a call cancelled there has still taken the item, and the
        next one continues."""
        await self._bell.wait(lambda: self._fetching.has_arrivals, timeout_ms)
        self._fetching.take(0)
        await asyncio.sleep(0)

    # --- positions, commits and lookups: see brokerd.Consumer

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record to return; looked up for a partition that was not read yet. Raises as `poll`."""
        tp = checked_partition(partition)
        with self._guard, self._whole():
            return await drive_in_loop(self._await_position(tp), self._take)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commits the positions of all assigned partitions, or these offsets, durably on return. Raises as
        brokerd.Consumer.commit. If cancelled, it may have committed."""
        await self._ask(self._commit, offsets)

    async def committed(self, partitions: Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None for a partition without one. Raises as brokerd.Consumer.committed."""
        return await self._ask(self._committed, partitions)

    async def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return await self._ask(self._partition_count, topic)

    async def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The log start of each partition, assigned or not. Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return await self._ask(self._ends, partitions, OffsetSpec.EARLIEST)

    async def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The end of each partition at this consumer's isolation.level. Raises UnknownTopicOrPartitionError,
        BrokerUnreachableError."""
        return await self._ask(self._ends, partitions, OffsetSpec.LATEST)

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The offset and time of each partition's first record at or after a time (ms since 1970); None if there is none. Raises
        UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return await self._ask(self._offsets_for_times, times)

    async def _ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._guard:
            return await self._client.loop_thread.awaited(call(*args, **kwargs))

    # --- the end

    async def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Stops reading and frees all resources: a `poll` in another task raises ConsumerClosedError, an iteration ends. With
        enable.auto.commit, commits the offsets of processed records, as brokerd.Consumer.close. Waits at most `timeout_ms` for
        that, and for another task's call to end. A second call waits for the first. Does nothing in a forked child. If cancelled,
        it still closes; only the commit may be missing."""
        if self._guard.is_forked:
            return
        self._home.enter()
        timeout_ms = checked_int(timeout_ms, "timeout_ms", maximum=INT32_MAX)
        self._guard.is_closed = True
        self._fetching.wake()
        if self._is_free:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._has_ended.wait()
            return
        self._is_free = True
        try:
            await self._end(timeout_ms)
        finally:
            self._has_ended.set()

    async def _end(self, timeout_ms: int) -> None:
        ended = Waiter()
        left_ms = self._time_left(timeout_ms)
        try:
            if await self._guard.alone(timeout_ms):
                await self._client.loop_thread.awaited(self._committing.close(left_ms()))
        finally:
            self._fetching.close()
            is_ending = self._client.loop_thread.end(ended.tell)
            open_consumers.discard(self)
        if is_ending:
            await ended

    def close_at_exit(self) -> None:
        """Closes when the process exits; blocks, since no event loop runs by then."""
        self._guard.is_closed = self._is_free = True
        self._has_ended.set()
        try:
            self._client.loop_thread.run(self._committing.close(CLOSE_AT_EXIT_MS))
        finally:
            self._fetching.close()
            self._client.close()

    async def __aenter__(self) -> Self:
        with self._guard:
            return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes; unless an exception left the block, the records of the last `poll` count as processed."""
        if kind is None and not self._guard.is_closed:
            self._assignment.confirm()
        await self.close()
