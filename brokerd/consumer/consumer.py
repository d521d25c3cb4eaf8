"""Consumer: the class that applications use in threads. It hands over records, and keeps account of how far (base.py).

The thread that calls it does everything but fetching, which goes on in the background (fetching.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import pyarrow as pa

from brokerd.arguments import checked_int, checked_partition
from brokerd.client.groups import OffsetAndMetadata
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.clock import Clock
from brokerd.config.client import PlainConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.consumer.base import CLOSE_AT_EXIT_MS, CLOSE_TIMEOUT_MS, ConsumerBase, Partitions, open_consumers
from brokerd.consumer.core.assignment import HandedOver
from brokerd.consumer.core.records import ConsumerRecord, Run
from brokerd.consumer.guard import Guard
from brokerd.consumer.processing.dedup import Dedup, DedupOptions
from brokerd.consumer.processing.processing import Parts, Processing, ProcessOptions
from brokerd.consumer.processing.work import Handler, Work
from brokerd.errors import ConsumerClosedError
from brokerd.ids import TopicPartition

P = ParamSpec("P")
T = TypeVar("T")


class Consumer(ConsumerBase):
    """Reads records of partitions, in the order of their offsets in each.

        with Consumer(bootstrap_servers="127.0.0.1:9192", auto_offset_reset="earliest") as consumer:
            consumer.assign([("events", 0), ("events", 1)])
            for record in consumer:
                print(record.key, record.value)

    `config`: settings by Kafka's names (`{"bootstrap.servers": ...}`) or a PlainConsumerConfig; keywords are settings too, with
    underscores for dots. Raises ConfigError for those. Nothing is asked of a broker until it is needed.

    One thread may use it at a time; another may call `wakeup()` and `close()`. After a fork it belongs to the parent: the child
    needs one of its own, and must not be forked from a process that has used any (see Producer). Use it as a context manager, or
    `close()` it; at exit it is closed for you.

    A partition is a TopicPartition or a pair of topic and number; methods that take several take a list, or one alone.
    """

    def __init__(
        self, config: Mapping[str, object] | PlainConsumerConfig | None = None, *, clock: Clock | None = None, **settings: object
    ) -> None:
        super().__init__(config, settings, clock=clock, guard=Guard())
        self._dedup: Dedup | None = None  # of the last `process` whose handled messages are known in memory

    # --- records

    def poll(self, timeout_ms: int | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most `max_records` (max.poll.records), as soon as there are any; none after `timeout_ms`. Without
        `timeout_ms` it waits until there are some. Records of one partition come in the order of their offsets.

        Raises ConsumerStateError if nothing is assigned or another thread uses the consumer, WakeupError, ConsumerClosedError;
        UnknownTopicOrPartitionError and UnknownTopicIdError (no such topic; it was deleted), UnknownGroupError (the group had an
        offset and has none any more), NoOffsetForPartitionError and OffsetOutOfRangeError (with auto.offset.reset=none),
        BrokerUnreachableError after default.api.timeout.ms without an answer, and LogDamagedError, CorruptMessageError and
        UnsupportedVersionError for records that cannot be read. After each of these
        the next call goes on: with other partitions if it can, then with this one, at the same offset.
        """
        limit = self._limit(max_records)
        handed: HandedOver = {}
        try:
            with self._guard:
                return self._records(self._checked_timeout(timeout_ms), limit, handed)
        except BaseException:
            self._take_back(handed)
            raise

    def poll_arrow(self, timeout_ms: int | None = None, max_records: int | None = None) -> pa.RecordBatch:
        """The next records of one partition as columns: key, value, topic, partition, offset, timestamp, timestampType, headers,
        which are those of the Spark source. All of a batch as its producer sent it, unless `max_records` is given; no rows after
        `timeout_ms`. Columns are not copied unless they were compressed. Raises as `poll`.
        """
        limit = INT32_MAX if max_records is None else self._limit(max_records)
        handed: HandedOver = {}
        try:
            with self._guard, self._whole():
                return self._columns(self._await_run(self._checked_timeout(timeout_ms)), limit, handed)
        except BaseException:
            self._take_back(handed)
            raise

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record; waits for it. Ends once the consumer is closed. Raises as `poll`."""
        handed: HandedOver = {}
        try:
            with self._guard:
                return self._records(None, 1, handed)[0]
        except ConsumerClosedError:
            raise StopIteration from None
        except BaseException:
            self._take_back(handed)
            raise

    def _records(
        self,
        timeout_ms: int | None,
        limit: int,
        handed: HandedOver,
        limit_bytes: int = INT64_MAX,
        work: Work | None = None,
    ) -> list[ConsumerRecord]:
        with self._whole():
            return self._collected(self._await_run(timeout_ms, work), limit, handed, limit_bytes, work)

    def _await_run(self, timeout_ms: int | None, work: Work | None = None) -> Run | None:
        """The records to hand over next; None if none come in time, or if a handler of `work` fails. Those that were handed over
        before are processed by now."""
        self._begin_round()
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        left_ms = timeout_ms
        has_waited = False
        while True:
            run = self._next_run()
            if run is not None or (has_waited and left_ms == 0) or (work is not None and work.failure is not None):
                return run
            self._fetching.take(self._wait_ms(left_ms))
            has_waited = True
            if deadline_ms is not None:
                left_ms = max(0, deadline_ms - self._clock.monotonic_ms())

    # --- handlers in threads

    def process(
        self,
        handler: Handler,
        *,
        workers: int = 4,
        order: str = "key",
        on_error: str = "raise",
        max_in_flight: int = 1_000,
        max_in_flight_bytes: int = 67_108_864,
        handler_timeout_ms: int = 300_000,
        timeout_ms: int | None = None,
        dedup_header: str | None = None,
        dedup_window: int = 100_000,
        dedup_path: str | os.PathLike[str] | None = None,
    ) -> int:
        """Calls `handler(record)` for each record, in up to `workers` threads at a time, until the consumer is closed, or, with
        `timeout_ms`, until no record has come for so long; returns how many were handled.

        `order`: "key", records with equal keys one after the other, in their order, and those of a partition that have no key
        likewise; "partition", all of a partition; "none". With group.id it commits by itself, every auto.commit.interval.ms and at
        the end, and never beyond a record that is not finished, whatever is finished above it.

        A handler that raises ends it, with that error; with `on_error="skip"` its record counts as handled, and the error is
        logged. One that runs for `handler_timeout_ms` ends it with HandlerTimeoutError; its thread cannot be ended. However it ends
        (Ctrl-C, `wakeup`, an error of `poll` such as BrokerUnreachableError too), handlers at work are awaited first, and positions
        go back to the first record that is not finished. At most `max_in_flight` records of about `max_in_flight_bytes` are taken
        ahead of handlers.

        With `dedup_header`, the name of a header, a record whose header has the value of one that was handled before, of the same
        topic, is passed over. The last `dedup_window` values are known, by this consumer; with `dedup_path`, by all that use this
        file, one at a time.

        Raises TypeError and ValueError for its arguments, DedupFileError, and as `poll`.
        """
        timeout_ms = self._checked_timeout(timeout_ms)
        options = ProcessOptions(workers, order, on_error, max_in_flight, max_in_flight_bytes, handler_timeout_ms, timeout_ms)
        dedup_options = DedupOptions(dedup_header, dedup_window, dedup_path)
        with self._guard, self._closing_at_end(), self._guard.helper():
            dedup = Dedup(dedup_options, self.config.group_id, self._dedup)
            if dedup_header is not None and dedup_path is None:
                self._dedup = dedup
            with contextlib.closing(dedup):
                run = self._client.loop_thread.run
                parts = Parts(self._assignment, self._fetching, self._committing, self._guard, self._clock, run, self._take_to_work)
                processing = Processing(parts, handler, options, dedup)
                processing.run()
        return processing.outcome()

    def _take_to_work(self, timeout_ms: int, room: int, room_bytes: int, work: Work) -> list[ConsumerRecord]:
        return self._records(timeout_ms, min(room, self.config.max_poll_records), {}, room_bytes, work)

    # --- positions

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record that is handed over. Asks the broker where a partition begins that was not read yet, and
        raises as `poll`."""
        tp = checked_partition(partition)
        with self._guard, self._whole():
            self._go_back_after_failures()
            one = self._assignment.of(tp)
            while one.position is None or one.id_tp is None:
                self._fetching.sync()
                self._guard.check()
                self._fetching.take(None)
            return one.position

    # --- offsets of the group

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Has the broker keep, for the group, the positions of all assigned partitions, or the given offsets (of the next record to
        read, of any partitions); on return that is durable. A consumer of the same group.id begins there.

        Raises ConsumerStateError without group.id, OffsetOutOfRangeError for an offset beyond the log, UnknownTopicIdError for a
        topic that was deleted, GroupAuthorizationFailedError, BrokerUnreachableError; what is not refused is committed.
        """
        self._ask(self._commit, offsets)

    def committed(self, partitions: Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offsets that the group has committed, whoever did, of partitions assigned or not; None where there is none. Raises
        ConsumerStateError without group.id, UnknownTopicOrPartitionError, GroupAuthorizationFailedError, BrokerUnreachableError."""
        return self._ask(self._committed, partitions)

    # --- questions to the broker

    def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return self._ask(self._partition_count, topic)

    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset that each partition has, assigned or not. Raises UnknownTopicOrPartitionError,
        BrokerUnreachableError."""
        return self._ask(self._ends, partitions, OffsetSpec.EARLIEST)

    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition, as far as isolation.level lets this consumer read. Raises
        UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return self._ask(self._ends, partitions, OffsetSpec.LATEST)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time (ms since 1970), with its time; None if there is none. Raises
        UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return self._ask(self._offsets_for_times, times)

    def _ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._guard:
            return self._client.loop_thread.run(call(*args, **kwargs))

    # --- the end

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Ends reading and frees all resources. For any thread: a `poll` of another one raises ConsumerClosedError, an iteration
        ends. With enable.auto.commit, commits the offsets of records that count as processed: not those of the last `poll`, as
        nobody has asked for more since. Waits at most `timeout_ms` for that, and for another thread's call to end. Called by a
        handler of `process`, or by that of a signal while this thread is inside `process`, it waits for nothing, and `process`
        ends. May be called twice; does nothing in a forked child."""
        if self._guard.is_forked:
            return
        timeout_ms = checked_int(timeout_ms, "timeout_ms", maximum=INT32_MAX)
        self._guard.is_closed = True
        self._fetching.wake()
        if self._guard.is_helper:
            return
        left_ms = self._time_left(timeout_ms)
        is_alone = self._guard.await_user(timeout_ms / 1000)
        try:
            self._free(left_ms(), has_to_commit=is_alone)
        finally:
            if is_alone:
                self._guard.leave()

    def _free(self, timeout_ms: int, *, has_to_commit: bool) -> None:
        if self._is_free:
            return
        self._is_free = True
        try:
            if has_to_commit:
                self._client.loop_thread.run(self._committing.close(timeout_ms))
        finally:
            self._fetching.close()
            self._client.close()
            open_consumers.discard(self)

    def close_at_exit(self) -> None:
        self.close(CLOSE_AT_EXIT_MS)

    @contextlib.contextmanager
    def _closing_at_end(self) -> Iterator[None]:
        """Finishes what a handler has begun that called `close`."""
        try:
            yield
        finally:
            if self._guard.is_closed:
                self._free(CLOSE_TIMEOUT_MS, has_to_commit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes. If no exception has left the block, the records of the last `poll` count as processed too."""
        if kind is None and not self._guard.is_closed:
            self._assignment.confirm()
        self.close()
