"""The part of a consumer that never waits: partitions, positions, buffered records. Shared by the consumers for threads
(consumer.py) and for event loops (brokerd/aio), which wait for its calls to the broker: coroutines on the loop thread.

An asynchronous exception at any point (KeyboardInterrupt, or from an alarm) loses no record: positions move last, and buffered
records are fetched again.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from brokerd.arguments import (
    OffsetAndMetadata,
    checked_by_partition,
    checked_int,
    checked_offsets,
    checked_partition,
    group_id_problem,
)
from brokerd.client.blocking import BlockingClient, LoopCall
from brokerd.client.broker_client import check_client
from brokerd.client.columns import CONSUMED_SCHEMA
from brokerd.client.metadata import ids_in
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec, Wanted, list_offsets
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import PlainConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX, given_config
from brokerd.consumer.committing import Committing
from brokerd.consumer.core.assignment import AssignedPartition, Assignment, Begin, HandedOver
from brokerd.consumer.core.records import ConsumerRecord, Run
from brokerd.consumer.fetching import Fetching
from brokerd.consumer.guard import Guard
from brokerd.consumer.processing.work import Work
from brokerd.consumer.resolution import LOOK_MS, Coverage
from brokerd.errors import BrokerdError, ConfigError, ConsumerStateError, WireError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.process import Open

CLOSE_TIMEOUT_MS = 30_000
CLOSE_AT_EXIT_MS = 10_000

T = TypeVar("T")
# Steps of a call (brokerd/steps.py) that yield how long to wait for something to arrive, in ms; None = without a limit.
Waits: TypeAlias = Generator[int | None, None, T]
Partitions = Iterable[TopicPartition | tuple[str, int]] | TopicPartition | tuple[str, int]
_SUCH_AS = 'such as [("events", p) for p in range(consumer.partitions_for("events"))]'


def checked_partitions(given: object) -> list[TopicPartition]:
    """Deduplicates partitions, given as TopicPartitions or pairs of topic and number, in a list or alone. Raises TypeError and
    ValueError."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        given = [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"partitions must be a list of TopicPartition or of (topic, number), not {given!r:.200}")
    return list(dict.fromkeys(checked_partition(one) for one in given))


def _nothing() -> None:
    pass


class ConsumerBase(abc.ABC):
    """The state of a consumer, and its calls that do not wait."""

    _is_free = True  # nothing is left to close
    _ADVICE = "use it in a `with` block, or close() it"

    def __init__(
        self,
        config: object,
        settings: Mapping[str, object],
        *,
        clock: Clock | None,
        guard: Guard,
        on_arrival: Callable[[], None] = _nothing,
    ) -> None:
        """`on_arrival` is called, on any thread, when fetched items may have arrived. Raises ConfigError."""
        try:
            self.config = given_config(PlainConsumerConfig, config, settings)
        except ConfigError as error:
            if isinstance(config, str):  # kafka-python's first arguments are topics
                error.message += f"; assign() the partitions of topics, {_SUCH_AS}"
            raise
        problem = group_id_problem(self.config.group_id) if self.config.group_id else None
        if problem is not None:
            raise ConfigError(f"group.id {problem}")
        check_client(self.config)
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._guard = guard
        self._client = BlockingClient(self.config, self._clock)
        self._is_free = False
        self._assignment = Assignment()
        self._committing = Committing(self._client, self.config, self._assignment, self._clock)
        self._fetching = Fetching(self._client, self.config, self._assignment, self._committing.pending, on_arrival)
        self._coverage = Coverage(self._client.broker_client, self.config.group_id)
        self._look_ms = self._clock.monotonic_ms() + LOOK_MS
        self._looking: LoopCall[None] | None = None  # keeps the task alive: a loop holds its tasks weakly
        self._failed: deque[TopicPartition] = deque()  # partitions of failed transactions, until their positions are reset
        open_consumers.add(self)

    # --- which partitions

    def subscribe(self, *_topics: object, **_options: object) -> None:
        """Unsupported: groups have no members to distribute partitions among. Raises ConsumerStateError."""
        raise ConsumerStateError(
            "subscribe() needs groups that share out partitions among their members, which brokerd does not have: "
            f"assign() them, {_SUCH_AS}, and give each process its own"
        )

    def assign(self, partitions: Partitions) -> None:
        """Replaces the assigned partitions; those that stay assigned keep their positions and pauses.

        With group.id, a partition begins at the group's committed offset. Does not wait for the broker: the next `poll` raises
        errors about unknown topics, and automatic commits for removed partitions begin. Raises TypeError and ValueError.
        """
        tps = checked_partitions(partitions)
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
        """Withholds records of these partitions until `resume`; keeps their positions and fetched records. Raises
        ConsumerStateError for a partition that is not assigned."""
        self._pause(partitions, is_paused=True)

    def resume(self, partitions: Partitions) -> None:
        """Undoes `pause`."""
        self._pause(partitions, is_paused=False)

    def _pause(self, partitions: Partitions, *, is_paused: bool) -> None:
        with self._guard, self._whole():
            for one in self._assigned(checked_partitions(partitions)):
                self._assignment.pause(one, is_paused=is_paused)
                self._fetching.pause(one, is_paused=is_paused)

    def paused(self) -> set[TopicPartition]:
        """The paused partitions."""
        with self._guard:
            return {tp for tp, one in self._assignment.partitions.items() if one.is_paused}

    def _assigned(self, partitions: Partitions | None) -> list[AssignedPartition]:
        if partitions is None:
            return list(self._assignment.partitions.values())
        return [self._assignment.of(tp) for tp in checked_partitions(partitions)]

    # --- records

    def _begin_round(self) -> Run | None:
        """Begins a call for records: those returned by earlier calls now count as processed. Returns the next buffered records, if
        any. Raises ConsumerStateError if nothing is assigned, and as `poll`."""
        if not self._assignment.partitions:
            raise ConsumerStateError("no partition is assigned to this consumer: assign() some first")
        self._go_back_after_failures()
        self._assignment.confirm()
        return self._next_run()

    def _await_run(self, timeout_ms: int | None, work: Work | None = None) -> Waits[Run | None]:
        """Waits for records to hand over, after `_begin_round` found none; returns None after `timeout_ms`, or once a handler of
        `work` fails."""
        deadline_ms = None if timeout_ms is None else self._clock.monotonic_ms() + timeout_ms
        left_ms = timeout_ms
        while work is None or work.failure is None:
            yield self._wait_ms(left_ms)
            if deadline_ms is not None:
                left_ms = max(0, deadline_ms - self._clock.monotonic_ms())
            run = self._next_run()
            if run is not None or left_ms == 0:
                return run
            # Passes markers and aborted records that arrived with no record, so that they are committed during a long wait too:
            # retention may delete them, and the committed offset would be out of range.
            self._fetching.hand_over({})
        return None

    def _next_run(self) -> Run | None:
        """The next buffered records to hand over, if any; keeps fetches, commits and coverage checks going. Raises as `poll`."""
        self._committing.auto()
        self._look()
        self._fetching.sync()
        self._guard.check()
        return self._fetching.next_run()

    def _look(self) -> None:
        """Starts a coverage check if one is due, also in a consumer that never has to wait for records."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            if self._looking is not None and not self._looking.has_ended:
                return
            topics = {id_tp.topic_id: one.tp.topic for id_tp, one in self._assignment.by_id.items()}
            self._looking = self._client.loop_thread.submit(self._coverage.look(topics, frozenset(self._assignment.by_id)))

    def _wait_ms(self, left_ms: int | None) -> int:
        """How long a call for records may wait until background work is due, at most `left_ms` (None: no limit)."""
        due_ms = max(0, self._look_ms - self._clock.monotonic_ms())
        waits_ms = self._committing.wait_ms(left_ms)
        return due_ms if waits_ms is None else min(waits_ms, due_ms)

    def _collected(
        self, run: Run | None, limit: int, handed: HandedOver, limit_bytes: int = INT64_MAX, work: Work | None = None
    ) -> list[ConsumerRecord]:
        """Hands over buffered records, beginning with `run`, up to the limits."""
        records: list[ConsumerRecord] = []
        while run is not None and limit_bytes > 0:
            taken = run.take(min(limit - len(records), max(1, limit_bytes // run.row_bytes)))
            records += taken
            limit_bytes -= len(taken) * run.row_bytes
            if len(records) == limit:
                break
            try:
                run = self._fetching.next_run()
            except BrokerdError:  # raised again by a later call
                break
        if work is not None:
            work.add(records)
        self._fetching.hand_over(handed)
        return records

    def _columns(self, run: Run | None, limit: int, handed: HandedOver) -> pa.RecordBatch:
        """Hands over records of `run` as columns."""
        rows = pa.RecordBatch.from_pylist([], schema=CONSUMED_SCHEMA) if run is None else run.take_arrow(limit)
        self._fetching.hand_over(handed)
        return rows

    def _take_back(self, handed: HandedOver) -> None:
        """Undoes `hand_over` after an interrupt that prevented the call from returning: its records are read again."""
        if handed:
            self._assignment.go_back(handed)
            self._fetching.reset()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Restarts from the positions after an exception other than brokerd's own, since it may have struck anywhere."""
        try:
            yield
        except (BrokerdError, asyncio.CancelledError):  # a task is cancelled only where it awaits: the state is consistent
            raise
        except BaseException:
            self._fetching.reset()
            raise

    def _limit(self, max_records: int | None) -> int:
        if max_records is None:
            return self.config.max_poll_records
        return checked_int(max_records, "max_records", minimum=1)

    @staticmethod
    def _checked_timeout(timeout_ms: int | None) -> int | None:
        return None if timeout_ms is None else checked_int(timeout_ms, "timeout_ms", maximum=INT32_MAX)

    # --- positions

    def _await_position(self, tp: TopicPartition) -> Waits[int]:
        """Waits until the position is known, and returns it."""
        self._go_back_after_failures()
        one = self._assignment.of(tp)
        while one.position is None or one.id_tp is None:
            self._fetching.sync()
            self._guard.check()
            if one.position is None or one.id_tp is None:  # `sync` may have found it
                yield None
        return one.position

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Sets the position to `offset`, without a call to the broker. Raises ConsumerStateError if the partition is not assigned,
        ValueError for a negative offset."""
        tp, offset = checked_partition(partition), checked_int(offset, "offset")
        with self._guard, self._whole():
            self._go_back_after_failures()
            one = self._assignment.of(tp)
            self._fetching.forget(one.id_tp)
            self._assignment.seek(one, offset)

    def seek_to_beginning(self, partitions: Partitions | None = None) -> None:
        """Seeks to the first record of these or all assigned partitions; the next call that needs the offset looks it up."""
        self._seek_to(partitions, Begin.EARLIEST)

    def seek_to_end(self, partitions: Partitions | None = None) -> None:
        """Seeks to the end of these or all assigned partitions; the next call that needs the offset looks it up."""
        self._seek_to(partitions, Begin.LATEST)

    def _seek_to(self, partitions: Partitions | None, begin: Begin) -> None:
        with self._guard, self._whole():
            self._go_back_after_failures()
            for one in self._assigned(partitions):
                self._fetching.forget(one.id_tp)
                self._assignment.seek(one, None, begin)

    # --- calls to the broker: coroutines for the loop thread

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None) -> Coroutine[Any, Any, None]:
        checked = None if offsets is None else checked_offsets(offsets)
        self._go_back_after_failures()
        return self._committing.commit(self._committing.asked(checked))

    async def _committed(self, partitions: Partitions) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await self._committing.committed(checked_partitions(partitions))

    async def _partition_count(self, topic: str) -> int:
        checked_partition((topic, 0))
        return (await self._client.broker_client.metadata([topic])).topic(topic).partition_count

    async def _ends(self, partitions: Partitions, spec: OffsetSpec) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(checked_partitions(partitions), spec))
        return {tp: result.offset for tp, result in found.items()}

    async def _offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        given = checked_by_partition(times, "times", "ms since 1970")
        found = await self._list_offsets({tp: checked_int(time_ms, f"the time of {tp}") for tp, time_ms in given.items()})
        return {tp: result if result.offset >= 0 else None for tp, result in found.items()}

    async def _list_offsets(self, wanted: Mapping[TopicPartition, Wanted]) -> dict[TopicPartition, OffsetAndTimestamp]:
        if not wanted:
            return {}
        client = self._client.broker_client
        ids = ids_in(await client.metadata(sorted({tp.topic for tp in wanted})), wanted)
        results = await list_offsets(client, {ids[tp]: one for tp, one in wanted.items()}, self.config.isolation_level)
        found = {}
        for tp, id_tp in ids.items():
            result = results[id_tp]
            if isinstance(result, WireError):
                raise type(result)(f"{tp}: {result.message}")
            found[tp] = result
        return found

    # --- for a producer's transaction (Transaction.send_offsets)

    def transaction_input(
        self, offsets: Mapping[TopicPartition, int]
    ) -> tuple[str, Mapping[TopicPartition, tuple[TopicIdPartition, int, int]]]:
        """See InputReader. Raises ConsumerStateError, and the broker's error if the committed offset could not be read."""
        with self._guard, self._whole():
            self._go_back_after_failures()
            return self.config.group_id, self._committing.transaction_input(offsets)

    def transaction_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Notes that a transaction has committed these offsets. If reading has begun anew since `transaction_input`, the group's
        offset looked up then stays the expected one, and the next transaction is refused. Thread-safe."""
        assigned = self._assignment.partitions
        inputs = {tp: assigned[tp] for tp in offsets if tp in assigned and assigned[tp].is_in_transaction}
        self._assignment.committed({one.id_tp: offsets[tp] for tp, one in inputs.items() if one.id_tp is not None})

    def transaction_failed(self, partitions: Collection[TopicPartition]) -> None:
        """Resets these partitions to the group's committed offsets after a transaction that failed, or whose outcome is unknown. If
        another thread is using the consumer, the consumer's next call does this. Raises nothing, even if the consumer is closed."""
        self._failed.extend(partitions)
        with contextlib.suppress(BrokerdError), self._guard, self._whole():
            self._go_back_after_failures()

    def _go_back_after_failures(self) -> None:
        if self._assignment.first_unfinished is not None and not self._committing.is_processing:
            self._fetching.go_back()  # an interrupt kept `process` from doing so
        while self._failed:
            one = self._assignment.partitions.get(self._failed[0])
            if one is not None:
                self._fetching.forget(one.id_tp)
                self._assignment.seek_to_committed(one)
            self._failed.popleft()

    # --- the end

    def _time_left(self, timeout_ms: int) -> Callable[[], int]:
        """Starts a timeout shared by several waits; returns a function that tells how much is left, in ms."""
        ends_ms = self._clock.monotonic_ms() + timeout_ms
        return lambda: max(0, ends_ms - self._clock.monotonic_ms())

    def wakeup(self) -> None:
        """Makes a waiting call for records, or else the next one, raise WakeupError. Thread-safe."""
        self._guard.refuse_fork()
        self._guard.wake()
        self._fetching.wake()

    @abc.abstractmethod
    def close_at_exit(self) -> None:
        """Closes the consumer when its process exits."""

    def __del__(self) -> None:
        """Ends the thread of a consumer dropped without `close`. Commits nothing: it is unknown which records are processed."""
        if not self._is_free:
            self._client.loop_thread.end()
            advice = f"{self._ADVICE}; records since its last commit come again"
            warnings.warn(f"unclosed {self!r}: {advice}", ResourceWarning, source=self, stacklevel=2)

    def after_fork(self) -> None:
        """Marks the consumer as the parent's, in a forked child."""
        self._guard.is_forked = True


def _close_all(consumers: Sequence[ConsumerBase]) -> None:
    for consumer in consumers:
        consumer.close_at_exit()


open_consumers: Open[ConsumerBase] = Open(_close_all, lambda consumer: consumer.after_fork())
