"""Consumer: the public class for threads. It hands over records and tracks positions (base.py).

The calling thread does everything except fetching, which runs in the background (fetching.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

import pyarrow as pa

from brokerd.arguments import OffsetAndMetadata, checked_int, checked_partition
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.clock import Clock
from brokerd.config.client import PlainConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.consumer.base import CLOSE_AT_EXIT_MS, CLOSE_TIMEOUT_MS, ConsumerBase, Partitions, open_consumers
from brokerd.consumer.core.assignment import HandedOver
from brokerd.consumer.core.records import ConsumerRecord, Run
from brokerd.consumer.guard import Guard
from brokerd.consumer.processing.dedup import Dedup, check_dedup
from brokerd.consumer.processing.processing import Parts, Processing, ProcessOptions
from brokerd.consumer.processing.work import Handler, Work
from brokerd.errors import ConsumerClosedError
from brokerd.ids import TopicPartition
from brokerd.steps import drive

P = ParamSpec("P")
T = TypeVar("T")


class Consumer(ConsumerBase):
    """Reads records of partitions, in offset order within each.

        with Consumer(bootstrap_servers="127.0.0.1:9192", auto_offset_reset="earliest") as consumer:
            consumer.assign([("events", 0), ("events", 1)])
            for record in consumer:
                print(record.key, record.value)

    `config`: settings by Kafka's names (`{"bootstrap.servers": ...}`) or a PlainConsumerConfig; keywords are settings too, with
    underscores for dots. Raises ConfigError if they are invalid. Does not connect until needed.

    One thread may use it at a time; others may call only `wakeup()` and `close()`. After a fork it belongs to the parent. A child
    must create its own, which works only if the parent has used no client (see Producer). Use it as a context manager, or
    `close()` it; at exit it is closed for you.

    A partition is a TopicPartition or a pair of topic and number; methods for several partitions take a list or a single one.
    """

    def __init__(
        self, config: Mapping[str, object] | PlainConsumerConfig | None = None, *, clock: Clock | None = None, **settings: object
    ) -> None:
        super().__init__(config, settings, clock=clock, guard=Guard())
        self._dedup: Dedup | None = None  # of the last `process` call that kept message ids in memory

    # --- records

    def poll(self, timeout_ms: int | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """Returns the next records, at most `max_records` (max.poll.records), as soon as there are any; an empty list after
        `timeout_ms`. Without `timeout_ms` it waits for records. Records of one partition come in offset order.

        Raises ConsumerStateError if nothing is assigned or another thread uses the consumer, WakeupError, ConsumerClosedError;
        UnknownTopicOrPartitionError and UnknownTopicIdError (no such topic; it was deleted), UnknownGroupError (the group's
        committed offset no longer exists), NoOffsetForPartitionError and OffsetOutOfRangeError (with auto.offset.reset=none),
        BrokerUnreachableError after default.api.timeout.ms without a response, and LogDamagedError, CorruptMessageError and
        UnsupportedVersionError for unreadable records. After any of these, the next call continues: with other partitions if it
        can, then with this one, at the same offset.
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
        """Returns the next records of one partition as columns: key, value, topic, partition, offset, timestamp, timestampType,
        headers, as the Spark source does. Returns the rest of one record batch, or at most `max_records` rows of it; no rows after
        `timeout_ms`. Columns are not copied unless they were compressed. Raises as `poll`.
        """
        limit = INT32_MAX if max_records is None else self._limit(max_records)
        handed: HandedOver = {}
        try:
            with self._guard, self._whole():
                return self._columns(self._run_in_time(self._checked_timeout(timeout_ms)), limit, handed)
        except BaseException:
            self._take_back(handed)
            raise

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """Waits for the next record; ends once the consumer is closed. Raises as `poll`."""
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
            return self._collected(self._run_in_time(timeout_ms, work), limit, handed, limit_bytes, work)

    def _run_in_time(self, timeout_ms: int | None, work: Work | None = None) -> Run | None:
        """The next records to hand over; see `_begin_round` and `_await_run`."""
        run = self._begin_round()
        return run if run is not None else drive(self._await_run(timeout_ms, work), self._fetching.take)

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
        """Calls `handler(record)` for each record, in up to `workers` threads, until the consumer is closed or, with `timeout_ms`,
        until no record has arrived for that long. Returns the number of handled records.

        `order`: which records are handled one at a time, in order. "key": records of a topic with equal keys, and records of
        a partition without a key; "partition": all records of a partition; "none": no order. With group.id it commits every
        auto.commit.interval.ms and at the end, never beyond an unfinished record.

        An error of a handler ends the call and is raised; with `on_error="skip"` it is logged, and the record counts as handled. A
        handler that runs for `handler_timeout_ms` ends the call with HandlerTimeoutError; its thread cannot be stopped. However the
        call ends (also by Ctrl-C, `wakeup`, or an error of `poll` such as BrokerUnreachableError), it first waits for running
        handlers, and positions go back to the first unfinished record. At most `max_in_flight` records, of about
        `max_in_flight_bytes`, are queued or in handlers.

        `dedup_header` names a header with message ids: a record is skipped if a record with the same id and topic was handled
        before without an error. This consumer remembers the last `dedup_window` ids; `dedup_path` keeps them in a file, which one
        consumer at a time may use.

        Raises TypeError and ValueError for its arguments, DedupFileError, and as `poll`.
        """
        timeout_ms = self._checked_timeout(timeout_ms)
        options = ProcessOptions(workers, order, on_error, max_in_flight, max_in_flight_bytes, handler_timeout_ms, timeout_ms)
        check_dedup(dedup_header, dedup_window, dedup_path)
        with self._guard, self._closing_at_end(), self._guard.helper(), self._whole():
            self._go_back_after_failures()
            dedup = Dedup(dedup_header, dedup_window, dedup_path, self.config.group_id, self._dedup)
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
        """The offset of the next record to return; looked up for a partition that was not read yet. Raises as `poll`."""
        tp = checked_partition(partition)
        with self._guard, self._whole():
            return drive(self._await_position(tp), self._fetching.take)

    # --- offsets of the group

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commits the positions of all assigned partitions, or the given offsets (of the next record to read, of any partitions),
        durably on return. A consumer with the same group.id begins at the committed offsets.

        Raises ConsumerStateError without group.id, OffsetOutOfRangeError for an offset beyond the log, UnknownTopicIdError for a
        deleted topic, GroupAuthorizationFailedError, BrokerUnreachableError; offsets that are not refused are committed.
        """
        self._ask(self._commit, offsets)

    def committed(self, partitions: Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets, by any consumer, of assigned or other partitions; None for a partition without one. Raises
        ConsumerStateError without group.id, UnknownTopicOrPartitionError, GroupAuthorizationFailedError, BrokerUnreachableError."""
        return self._ask(self._committed, partitions)

    # --- lookups

    def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return self._ask(self._partition_count, topic)

    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The log start of each partition, assigned or not. Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return self._ask(self._ends, partitions, OffsetSpec.EARLIEST)

    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The end of each partition at this consumer's isolation.level. Raises UnknownTopicOrPartitionError,
        BrokerUnreachableError."""
        return self._ask(self._ends, partitions, OffsetSpec.LATEST)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The offset and time of each partition's first record at or after a time (ms since 1970); None if there is none. Raises
        UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return self._ask(self._offsets_for_times, times)

    def _ask(self, call: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._guard:
            return self._client.loop_thread.run(call(*args, **kwargs))

    # --- the end

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Stops reading and frees all resources. Thread-safe: a `poll` in another thread raises ConsumerClosedError, an iteration
        ends. With enable.auto.commit, commits the offsets of processed records; those of the last `poll` do not count, since no
        later call confirmed them. Waits at most `timeout_ms` for that, and for another thread's call to end. In a handler of
        `process`, or in a signal handler while this thread is inside `process`, it does not wait; `process` then ends. Idempotent;
        does nothing in a forked child."""
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
        """Completes a `close` that a handler called."""
        try:
            yield
        finally:
            if self._guard.is_closed:
                self._free(CLOSE_TIMEOUT_MS, has_to_commit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Closes; unless an exception left the block, the records of the last `poll` count as processed."""
        if kind is None and not self._guard.is_closed:
            self._assignment.confirm()
        self.close()
