"""The part of a consumer that waits for nothing, the same for threads (consumer.py) and for event loops (brokerd/aio): partitions,
positions, and records that are here. Calls that ask the broker are coroutines of the loop thread, which both kinds wait for.

An exception that strikes anywhere in here (KeyboardInterrupt, an alarm's) costs no record: positions move last, and records that
were fetched are fetched again.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from brokerd.arguments import checked_by_partition, checked_int, checked_offsets, checked_partition, group_id_problem
from brokerd.client.blocking import BlockingClient, LoopCall
from brokerd.client.broker_client import check_client
from brokerd.client.groups import OffsetAndMetadata
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec, Wanted, list_offsets_by_name
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import PlainConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX, by_name, from_mapping
from brokerd.consumer.committing import Committing
from brokerd.consumer.core.assignment import AssignedPartition, Assignment, Begin, HandedOver
from brokerd.consumer.core.records import ConsumerRecord, Run, no_rows
from brokerd.consumer.coverage import LOOK_MS, Coverage
from brokerd.consumer.fetching import Fetching
from brokerd.consumer.guard import Guard
from brokerd.consumer.processing.work import Work
from brokerd.errors import BrokerdError, ConfigError, ConsumerStateError, WireError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.process import Open

CLOSE_TIMEOUT_MS = 30_000
CLOSE_AT_EXIT_MS = 10_000

Partitions = Iterable[TopicPartition | tuple[str, int]] | TopicPartition | tuple[str, int]


def _config_of(config: Mapping[str, object] | PlainConsumerConfig | None, settings: Mapping[str, object]) -> PlainConsumerConfig:
    """Settings from a mapping by name, from keywords with underscores, or a ready configuration. Raises ConfigError."""
    if isinstance(config, PlainConsumerConfig):
        if settings:
            raise ConfigError("settings by keyword go with a mapping, not with a PlainConsumerConfig")
        checked = config
    else:
        checked = from_mapping(PlainConsumerConfig, by_name(config, settings))
    problem = group_id_problem(checked.group_id) if checked.group_id else None
    if problem is not None:
        raise ConfigError(f"group.id {problem}")
    return checked


def checked_partitions(given: object) -> list[TopicPartition]:
    """Partitions, each once: TopicPartitions or pairs of topic and number; one alone may stand for a list of one. Raises TypeError
    and ValueError."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        given = [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"partitions must be a list of TopicPartition or of (topic, number), not {given!r:.200}")
    return list(dict.fromkeys(checked_partition(one) for one in given))


def _nothing() -> None:
    pass


class ConsumerBase(abc.ABC):
    """The state of a consumer, and its calls that wait for nothing."""

    _is_free = True  # nothing is left to close
    _ADVICE = "use it in a `with` block, or close() it"

    def __init__(
        self,
        config: Mapping[str, object] | PlainConsumerConfig | None,
        settings: Mapping[str, object],
        *,
        clock: Clock | None,
        guard: Guard,
        on_arrival: Callable[[], None] = _nothing,
    ) -> None:
        """`on_arrival` is called, by any thread, when there may be something to take in. Raises ConfigError."""
        self.config = _config_of(config, settings)
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
        self._looking: LoopCall[None] | None = None  # kept: a loop holds its tasks weakly
        self._failed: deque[TopicPartition] = deque()  # partitions of transactions that failed, until positions have gone back
        open_consumers.add(self)

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
        """Hands over no records of these partitions until `resume`; positions and what was fetched stay. Raises
        ConsumerStateError for one that is not assigned."""
        self._pause(partitions, is_paused=True)

    def resume(self, partitions: Partitions) -> None:
        """Ends `pause`."""
        self._pause(partitions, is_paused=False)

    def _pause(self, partitions: Partitions, *, is_paused: bool) -> None:
        with self._guard, self._whole():
            for one in self._assigned(checked_partitions(partitions)):
                self._assignment.pause(one, is_paused=is_paused)
                self._fetching.pause(one, is_paused=is_paused)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        with self._guard:
            return {tp for tp, one in self._assignment.partitions.items() if one.is_paused}

    def _assigned(self, partitions: Partitions | None) -> list[AssignedPartition]:
        if partitions is None:
            return list(self._assignment.partitions.values())
        return [self._assignment.of(tp) for tp in checked_partitions(partitions)]

    # --- records

    def _begin_round(self) -> None:
        """A call for records begins: those that were handed over before are processed. Raises ConsumerStateError if nothing is
        assigned."""
        if not self._assignment.partitions:
            raise ConsumerStateError("no partition is assigned to this consumer: assign() some first")
        self._go_back_after_failures()
        self._assignment.confirm()

    def _next_run(self) -> Run | None:
        """The records to hand over next, if they are here; sees to it that others come. Raises as `poll`."""
        self._committing.auto()
        self._fetching.sync()
        self._guard.check()
        return self._fetching.next_run()

    def _wait_ms(self, left_ms: int | None) -> int:
        """How long a call for records that has so much time left (None: any) may wait; before it waits."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + LOOK_MS
            topics = {id_tp.topic_id: one.tp.topic for id_tp, one in self._assignment.by_id.items()}
            self._looking = self._client.loop_thread.submit(self._coverage.look(topics, frozenset(self._assignment.by_id)))
        due_ms = self._look_ms - now_ms
        waits_ms = self._committing.wait_ms(left_ms)
        return due_ms if waits_ms is None else min(waits_ms, due_ms)

    def _collected(
        self, run: Run | None, limit: int, handed: HandedOver, limit_bytes: int = INT64_MAX, work: Work | None = None
    ) -> list[ConsumerRecord]:
        """Hands over records from `run` on, as far as they are here."""
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

    def _columns(self, run: Run | None, limit: int, handed: HandedOver) -> pa.RecordBatch:
        """Hands over records of `run` as columns."""
        rows = no_rows() if run is None else run.take_arrow(limit)
        if run is not None:
            self._fetching.taken(run)
        self._fetching.hand_over(handed)
        return rows

    def _take_back(self, handed: HandedOver) -> None:
        """After an interrupt that struck behind `hand_over`, where no `with` of the call sees it: its records come again."""
        if handed:
            self._assignment.go_back(handed)
            self._fetching.reset()

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """After an exception that is not brokerd's own, and may have struck anywhere, starts over from the positions."""
        try:
            yield
        except (BrokerdError, asyncio.CancelledError):  # a task is cancelled only where it waits: there nothing is half done
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

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Goes on at `offset`; asks the broker for nothing. Raises ConsumerStateError if the partition is not assigned, ValueError
        for a negative offset."""
        tp, offset = checked_partition(partition), checked_int(offset, "offset")
        with self._guard, self._whole():
            self._go_back_after_failures()
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
            self._go_back_after_failures()
            for one in self._assigned(partitions):
                self._fetching.forget(one.id_tp)
                self._assignment.seek(one, None, begin)

    # --- what asks the broker: coroutines for the loop thread

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None) -> Coroutine[Any, Any, None]:
        checked = None
        if offsets is not None:
            given = checked_offsets(offsets)
            checked = {tp: OffsetAndMetadata(*one[:3], leader_epoch_id=one.leader_epoch_id) for tp, one in given.items()}
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
        found = {}
        results = await list_offsets_by_name(self._client.broker_client, wanted, self.config.isolation_level) if wanted else {}
        for tp in wanted:
            result = results[tp]
            if isinstance(result, WireError):
                raise type(result)(f"{tp}: {result.message}")
            found[tp] = result
        return found

    # --- for the transaction of a producer (Transaction.send_offsets)

    def transaction_input(
        self, offsets: Mapping[TopicPartition, int]
    ) -> tuple[str, Mapping[TopicPartition, tuple[TopicIdPartition, int, int]]]:
        """See InputReader. Raises ConsumerStateError, and the broker's error if it did not say."""
        with self._guard, self._whole():
            self._go_back_after_failures()
            return self.config.group_id, self._committing.transaction_input(offsets)

    def transaction_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A transaction has committed these offsets. For any thread."""
        assigned = self._assignment.partitions
        ids = {tp: assigned[tp].id_tp for tp in offsets if tp in assigned}
        self._assignment.committed({id_tp: offsets[tp] for tp, id_tp in ids.items() if id_tp is not None})

    def transaction_failed(self, partitions: Collection[TopicPartition]) -> None:
        """A transaction has not committed what was read of these partitions, or nobody knows: reading goes on where the group has
        got to; if another thread is using the consumer, with the call that begins next. Raises nothing: a consumer that is closed
        reads nothing more."""
        self._failed.extend(partitions)
        with contextlib.suppress(BrokerdError), self._guard, self._whole():
            self._go_back_after_failures()

    def _go_back_after_failures(self) -> None:
        while self._failed:
            one = self._assignment.partitions.get(self._failed[0])
            if one is not None:
                self._fetching.forget(one.id_tp)
                self._assignment.seek_to_committed(one)
            self._failed.popleft()

    # --- the end

    def _time_left(self, timeout_ms: int) -> Callable[[], int]:
        """How much of a time that begins now is left, in ms, for a call that waits for more than one thing."""
        ends_ms = self._clock.monotonic_ms() + timeout_ms
        return lambda: max(0, ends_ms - self._clock.monotonic_ms())

    def wakeup(self) -> None:
        """Has the call that waits for records, or the next one, raise WakeupError. For any thread."""
        self._guard.refuse_fork()
        self._guard.wake()
        self._fetching.wake()

    @abc.abstractmethod
    def close_at_exit(self) -> None:
        """Ends reading, for a consumer that was not closed when its process ends."""

    def __del__(self) -> None:
        """Ends the thread of a consumer that was dropped; commits nothing, as nobody has said what is processed."""
        if not self._is_free:
            self._client.loop_thread.end()
            advice = f"{self._ADVICE}; records since its last commit come again"
            warnings.warn(f"unclosed {self!r}: {advice}", ResourceWarning, source=self, stacklevel=2)

    def after_fork(self) -> None:
        """In the child: the consumer belongs to the parent."""
        self._guard.is_forked = True


def _close_all(consumers: Sequence[ConsumerBase]) -> None:
    for consumer in consumers:
        consumer.close_at_exit()


open_consumers: Open[ConsumerBase] = Open(_close_all, lambda consumer: consumer.after_fork())
