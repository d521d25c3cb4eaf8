"""Consumer: the class that applications use. It hands over records, and keeps account of how far.

The thread that calls it does everything but fetching, which goes on in the background (fetching.py). An exception that strikes that
thread anywhere in here (KeyboardInterrupt, an alarm's) costs no record: positions move last, and what was fetched is fetched again.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import check_client
from brokerd.client.consumer.offsets import OffsetAndTimestamp, OffsetSpec, Wanted
from brokerd.client.group_offsets import OffsetAndMetadata
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import PlainConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.consumer import arguments
from brokerd.consumer.arguments import Partitions
from brokerd.consumer.committing import Committing
from brokerd.consumer.core.assignment import AssignedPartition, Assignment, Begin, HandedOver
from brokerd.consumer.core.records import ConsumerRecord, Run, no_rows
from brokerd.consumer.fetching import Fetching
from brokerd.consumer.guard import Guard
from brokerd.consumer.processing.processing import Parts, Processing, ProcessOptions
from brokerd.consumer.processing.work import Handler, Work
from brokerd.errors import BrokerdError, ConsumerClosedError, ConsumerStateError, WireError
from brokerd.ids import TopicPartition
from brokerd.process import Open

CLOSE_TIMEOUT_MS = 30_000
_CLOSE_AT_EXIT_MS = 10_000


class Consumer:
    """Reads records of partitions, in the order of their offsets in each.

        with Consumer(bootstrap_servers="127.0.0.1:9192", auto_offset_reset="earliest") as consumer:
            consumer.assign([("events", 0), ("events", 1)])
            for record in consumer:
                print(record.key, record.value)

    `config`: settings by Kafka's names (`{"bootstrap.servers": ...}`) or a PlainConsumerConfig; keywords are settings too, with
    underscores for dots. Raises ConfigError for those. Nothing is asked of a broker until it is needed.

    One thread may use it at a time; another may call `wakeup()` and `close()`. After a fork it belongs to the parent: the child
    needs one of its own, and must not be forked while this process has any open (see Producer). Use it as a context manager, or
    `close()` it; at exit it is closed for you.

    A partition is a TopicPartition or a pair of topic and number; methods that take several take a list, or one alone.
    """

    _is_free = True  # nothing is left to close

    def __init__(
        self, config: Mapping[str, object] | PlainConsumerConfig | None = None, *, clock: Clock | None = None, **settings: object
    ) -> None:
        self.config = arguments.config_of(config, settings)
        check_client(self.config)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._guard = Guard()
        self._client = BlockingClient(self.config, self._clock)
        self._is_free = False
        self._assignment = Assignment()
        self._committing = Committing(self._client, self.config, self._assignment, self._clock)
        self._fetching = Fetching(self._client, self.config, self._assignment, self._committing.pending)
        _open_consumers.add(self)

    # --- which partitions

    def subscribe(self, *_topics: object, **_options: object) -> None:
        """Refused: there are no members of groups, so nobody shares out the partitions. Raises ConsumerStateError."""
        raise ConsumerStateError(
            "subscribe() needs groups that share out partitions among their members, which brokerd does not have: assign() them, "
            'such as [("events", p) for p in range(consumer.partitions_for("events"))], and give each process its own'
        )

    def assign(self, partitions: Partitions) -> None:
        """Reads these partitions from now on, and no others; those that were assigned before keep their positions and pauses.

        With group.id, a partition begins at the offset that the group has committed. Asks the broker for nothing yet: unknown
        topics are an error of the next `poll`. Raises TypeError and ValueError.
        """
        tps = arguments.checked_partitions(partitions)
        with self._guard, self._whole():
            given_up = self._assignment.given_up(tps)
            self._committing.give_up(given_up)
            self._assignment.assign(tps)
            for one in given_up:
                self._fetching.give_up(one.id_tp)

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions."""
        with self._guard:
            return set(self._assignment.partitions)

    def pause(self, partitions: Partitions) -> None:
        """Hands over no records of these partitions until `resume`; positions and what was fetched stay. Raises
        ConsumerStateError for one that is not assigned."""
        self._pause(partitions, is_paused=True)

    def resume(self, partitions: Partitions) -> None:
        """Ends `pause`."""
        self._pause(partitions, is_paused=False)

    def _pause(self, partitions: Partitions, *, is_paused: bool) -> None:
        with self._guard, self._whole():
            for one in self._assigned(partitions):
                self._assignment.pause(one, is_paused=is_paused)
                self._fetching.pause(one, is_paused=is_paused)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        with self._guard:
            return {tp for tp, one in self._assignment.partitions.items() if one.is_paused}

    def _assigned(self, partitions: Partitions | None) -> list[AssignedPartition]:
        if partitions is None:
            return list(self._assignment.partitions.values())
        return [self._assignment.of(tp) for tp in arguments.checked_partitions(partitions)]

    # --- records

    def poll(self, timeout_ms: int | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most `max_records` (max.poll.records), as soon as there are any; none after `timeout_ms`. Without
        `timeout_ms` it waits until there are some. Records of one partition come in the order of their offsets.

        Raises ConsumerStateError if nothing is assigned or another thread uses the consumer, WakeupError, ConsumerClosedError;
        UnknownTopicOrPartitionError and UnknownTopicIdError (no such topic; it was deleted), NoOffsetForPartitionError and
        OffsetOutOfRangeError (with auto.offset.reset=none), BrokerUnreachableError after default.api.timeout.ms without an answer,
        and LogDamagedError, CorruptMessageError and UnsupportedVersionError for records that cannot be read. After each of these
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
                run = self._await_run(self._checked_timeout(timeout_ms))
                rows = no_rows() if run is None else run.take_arrow(limit)
                if run is not None:
                    self._fetching.taken(run)
                self._fetching.hand_over(handed)
                return rows
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
            run = self._await_run(timeout_ms, work)
            records: list[ConsumerRecord] = []
            while run is not None and limit_bytes > 0:
                taken = run.take(min(limit - len(records), max(1, limit_bytes // run.row_bytes)))
                self._fetching.taken(run)
                records += taken
                limit_bytes -= len(taken) * run.row_bytes
                if len(records) == limit:
                    break
                try:
                    run = self._fetching.next_run()
                except BrokerdError:  # its turn comes again
                    break
            if work is not None:
                work.add(records)
            self._fetching.hand_over(handed)
            return records

    def _take_back(self, handed: HandedOver) -> None:
        """After an interrupt that struck behind `hand_over`, where no `with` of the call sees it: its records come again."""
        if handed:
            self._assignment.go_back(handed)
            self._fetching.reset()

    def _await_run(self, timeout_ms: int | None, work: Work | None = None) -> Run | None:
        """The records to hand over next; None if none come in time, or if a handler of `work` fails. Those that were handed over
        before are processed by now."""
        if not self._assignment.partitions:
            raise ConsumerStateError("no partition is assigned to this consumer: assign() some first")
        self._assignment.confirm()
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        left_ms = timeout_ms
        has_waited = False
        while True:
            self._committing.auto()
            self._fetching.sync()
            self._guard.check()
            run = self._fetching.next_run()
            if run is not None or (has_waited and left_ms == 0) or (work is not None and work.failure is not None):
                return run
            self._fetching.take(self._committing.wait_ms(left_ms))
            has_waited = True
            if deadline_ms is not None:
                left_ms = max(0, deadline_ms - self._clock.monotonic_ms())

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """After an exception that is not brokerd's own, and may have struck anywhere, starts over from the positions."""
        try:
            yield
        except BrokerdError:
            raise
        except BaseException:
            self._fetching.reset()
            raise

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self.config.max_poll_records
        return arguments.checked_int(max_records, "max_records", minimum=1)

    @staticmethod
    def _checked_timeout(timeout_ms: int | None) -> int | None:
        return None if timeout_ms is None else arguments.checked_int(timeout_ms, "timeout_ms", maximum=INT32_MAX)

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
    ) -> int:
        """Calls `handler(record)` for each record, in up to `workers` threads at a time, until the consumer is closed, or, with
        `timeout_ms`, until no record has come for so long; returns how many were handled.

        `order`: "key", records with equal keys one after the other, in their order, and those of a partition that have no key
        likewise; "partition", all of a partition; "none". With group.id it commits by itself, every auto.commit.interval.ms and at
        the end, and never beyond a record that is not finished, whatever is finished above it.

        A handler that raises ends it, with that error; with `on_error="skip"` its record counts as handled, and the error is
        logged. One that runs for `handler_timeout_ms` ends it with HandlerTimeoutError; its thread cannot be ended. However it ends
        (Ctrl-C, `wakeup`, an error of `poll` too), handlers at work are awaited first, and positions go back to the first record
        that is not finished. At most `max_in_flight` records of about `max_in_flight_bytes` are taken ahead of handlers.

        Raises TypeError and ValueError for its arguments, and as `poll`.
        """
        for name, number in (("workers", workers), ("max_in_flight", max_in_flight), ("handler_timeout_ms", handler_timeout_ms)):
            arguments.checked_int(number, name, minimum=1, maximum=INT32_MAX)
        arguments.checked_int(max_in_flight_bytes, "max_in_flight_bytes", minimum=1)
        options = ProcessOptions(
            workers,
            order,
            on_error,
            max_in_flight,
            max_in_flight_bytes,
            handler_timeout_ms,
            self._checked_timeout(timeout_ms),
        )
        with self._guard, self._closing_at_end():
            parts = Parts(self._assignment, self._fetching, self._committing, self._guard, self._clock, self._take_to_work)
            return Processing(parts, handler, options).run()

    def _take_to_work(self, timeout_ms: int, room: int, room_bytes: int, work: Work) -> list[ConsumerRecord]:
        return self._records(timeout_ms, min(room, self.config.max_poll_records), {}, room_bytes, work)

    # --- positions

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The offset of the next record that is handed over. Asks the broker where a partition begins that was not read yet, and
        raises as `poll`."""
        tp = arguments.checked_partition(partition)
        with self._guard, self._whole():
            one = self._assignment.of(tp)
            while one.position is None or one.id_tp is None:
                self._fetching.sync()
                self._guard.check()
                self._fetching.take(None)
            return one.position

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Goes on at `offset`; asks the broker for nothing. Raises ConsumerStateError if the partition is not assigned, ValueError
        for a negative offset."""
        tp, offset = arguments.checked_partition(partition), arguments.checked_int(offset, "offset")
        with self._guard, self._whole():
            one = self._assignment.of(tp)
            self._fetching.forget(one.id_tp)
            self._assignment.seek(one, offset)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Goes on at the first record of these partitions, or of all assigned ones; looked up by the next call that needs it."""
        self._seek_to(partitions, Begin.EARLIEST)

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Goes on behind the last record of these partitions, or of all assigned ones; looked up by the next call that needs
        it."""
        self._seek_to(partitions, Begin.LATEST)

    def _seek_to(self, partitions: Partitions | None, begin: Begin) -> None:
        with self._guard, self._whole():
            for one in self._assigned(partitions):
                self._fetching.forget(one.id_tp)
                self._assignment.seek(one, None, begin)

    # --- offsets of the group

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Has the broker keep, for the group, the positions of all assigned partitions, or the given offsets (of the next record to
        read, of any partitions); on return that is durable. A consumer of the same group.id begins there.

        Raises ConsumerStateError without group.id, OffsetOutOfRangeError for an offset beyond the log, UnknownTopicIdError for a
        topic that was deleted, GroupAuthorizationFailedError, BrokerUnreachableError; what is not refused is committed.
        """
        checked = None if offsets is None else arguments.checked_offsets(offsets)
        with self._guard:
            self._committing.commit(checked)

    def committed(self, partitions: Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The offsets that the group has committed, whoever did, of partitions assigned or not; None where there is none. Raises
        ConsumerStateError without group.id, UnknownTopicOrPartitionError, GroupAuthorizationFailedError, BrokerUnreachableError."""
        tps = arguments.checked_partitions(partitions)
        with self._guard:
            return self._committing.committed(tps)

    # --- questions to the broker

    def partitions_for(self, topic: str) -> int:
        """Number of partitions of a topic. Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        arguments.checked_partition((topic, 0))
        with self._guard:
            return self._client.metadata([topic]).topic(topic).partition_count

    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset that each partition has, assigned or not. Raises UnknownTopicOrPartitionError,
        BrokerUnreachableError."""
        return self._ends(partitions, OffsetSpec.EARLIEST)

    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition, as far as isolation.level lets this consumer read. Raises
        UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return self._ends(partitions, OffsetSpec.LATEST)

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition at or after a time (ms since 1970), with its time; None if there is none. Raises
        UnknownTopicOrPartitionError, BrokerUnreachableError."""
        wanted = {
            arguments.checked_partition(tp): arguments.checked_int(time_ms, f"the time of {tp}") for tp, time_ms in times.items()
        }
        return {tp: result if result.offset >= 0 else None for tp, result in self._list_offsets(wanted).items()}

    def _ends(self, partitions: Partitions, spec: OffsetSpec) -> dict[TopicPartition, int]:
        wanted = dict.fromkeys(arguments.checked_partitions(partitions), spec)
        return {tp: result.offset for tp, result in self._list_offsets(wanted).items()}

    def _list_offsets(self, wanted: Mapping[TopicPartition, Wanted]) -> dict[TopicPartition, OffsetAndTimestamp]:
        with self._guard:
            results = self._client.list_offsets_by_name(wanted, self.config.isolation_level) if wanted else {}
        found = {}
        for tp in wanted:
            result = results[tp]
            if isinstance(result, WireError):
                raise type(result)(f"{tp}: {result.message}")
            found[tp] = result
        return found

    # --- the end

    def wakeup(self) -> None:
        """Has the call that waits for records, or the next one, raise WakeupError. For any thread."""
        self._guard.refuse_fork()
        self._guard.wake()
        self._fetching.wake()

    def close(self, timeout_ms: int = CLOSE_TIMEOUT_MS) -> None:
        """Ends reading and frees all resources. For any thread: a `poll` of another one raises ConsumerClosedError, an iteration
        ends. With enable.auto.commit, commits the offsets of records that count as processed: not those of the last `poll`, as
        nobody has asked for more since. Waits at most `timeout_ms` for that, and for another thread's call to end; called by a
        handler of `process`, which ends then, it waits for nothing. May be called twice; does nothing in a forked child."""
        if self._guard.is_forked:
            return
        timeout_ms = arguments.checked_int(timeout_ms, "timeout_ms", maximum=INT32_MAX)
        self._guard.is_closed = True
        self._fetching.wake()
        if self._guard.is_helper:
            return
        is_alone = self._guard.await_user(timeout_ms / 1000)
        try:
            self._free(timeout_ms, has_to_commit=is_alone)
        finally:
            if is_alone:
                self._guard.leave()

    def _free(self, timeout_ms: int, *, has_to_commit: bool) -> None:
        if self._is_free:
            return
        self._is_free = True
        if has_to_commit:
            self._committing.close(timeout_ms)
        self._fetching.close()
        self._client.close()
        _open_consumers.discard(self)

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

    def __del__(self) -> None:
        """Ends the thread of a consumer that was dropped; commits nothing, as nobody has said what is processed."""
        if not self._is_free:
            self._client.loop_thread.end()
            advice = "use it in a `with` block, or close() it; records since its last commit come again"
            warnings.warn(f"unclosed {self!r}: {advice}", ResourceWarning, source=self, stacklevel=2)

    def after_fork(self) -> None:
        """In the child: the consumer belongs to the parent."""
        self._guard.is_forked = True


def _close_all(consumers: Sequence[Consumer]) -> None:
    for consumer in consumers:
        consumer.close(_CLOSE_AT_EXIT_MS)


_open_consumers: Open[Consumer] = Open(_close_all, lambda consumer: consumer.after_fork())
