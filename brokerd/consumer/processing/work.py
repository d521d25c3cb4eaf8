"""The handler threads, and the records in work. schedule.py decides their order."""

from __future__ import annotations

import itertools
import logging
import operator
import queue
import threading
import types
from collections.abc import Callable, Sequence
from typing import NamedTuple

from brokerd.clock import Clock
from brokerd.consumer.core.records import ConsumerRecord
from brokerd.consumer.guard import Guard
from brokerd.consumer.processing.dedup import Dedup, MessageId
from brokerd.consumer.processing.schedule import LaneOf, Schedule, Task
from brokerd.ids import TopicPartition

logger = logging.getLogger(__name__)

Handler = Callable[[ConsumerRecord], object]
_RECORD_OVERHEAD_BYTES = 200
_LAZY = {types.CoroutineType: "a coroutine", types.GeneratorType: "a generator", types.AsyncGeneratorType: "an async generator"}
_PLACE = operator.itemgetter(0, 1)  # topic and partition of a record


class NothingRunError(TypeError):
    """A handler returned a coroutine or generator instead of doing its work. A bug: on_error=skip would skip every record."""


class Running(NamedTuple):
    """A running handler's record and start time."""

    record: ConsumerRecord
    since_ms: int


class Work:
    """The state shared by the thread that takes records and the handler threads, under one lock."""

    def __init__(
        self,
        handler: Handler,
        lane_of: LaneOf,
        *,
        dedup: Dedup,
        skips_errors: bool,
        clock: Clock,
        guard: Guard,
        wake: Callable[[], None],
    ) -> None:
        """A handler's thread calls `wake` when the handler fails, and when it ends while the taking thread waits."""
        self._handler = handler
        self._skips_errors = skips_errors
        self._clock = clock
        self._guard = guard
        self._wake = wake
        self._lock = threading.Lock()
        self._window = dedup.window
        self._is_in_file = dedup.is_in_file
        self._ready: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._schedule = Schedule(lane_of, dedup.id_of, dedup.window, begin=self._ready.put, pass_over=self._pass_over)
        self._running: dict[int, Running] = {}  # by thread
        self._is_stopped = False
        self._is_over = False
        self.is_awaited = False  # the taking thread waits for a handler to end
        # With a file, a record is finished once its message's id is written. Per partition, where unwritten ids may begin.
        self._unwritten_from: dict[TopicPartition, int] = {}
        self._unwritten_after: dict[TopicPartition, int] = {}  # its value once the ids of `unwritten_ids` are written
        self.record_count = 0  # in work: waiting and in handlers
        self.size_bytes = 0
        self.handled_count = 0
        self.repeated_count = 0  # records whose message was handled before
        self.failure: BaseException | None = None  # the first failure of a handler

    def start(self, workers: int) -> None:
        """Starts the threads. Daemons: a hanging handler must not keep the process alive."""
        for number in range(workers):
            threading.Thread(target=self._handle_records, args=(number,), name=f"consumer-handler-{number}", daemon=True).start()

    def add(self, records: Sequence[ConsumerRecord]) -> None:
        """Queues records for the handlers; the records of one lane are handled in order."""
        with self._lock:
            for (topic, partition), run in itertools.groupby(records, _PLACE):
                self._begin_run(TopicPartition(topic, partition), list(run))

    def _begin_run(self, tp: TopicPartition, records: list[ConsumerRecord]) -> None:
        if self._is_in_file:
            self._unwritten_from[tp] = min(self._unwritten_from.get(tp, records[0].offset), records[0].offset)
        self.record_count += len(records)
        self.size_bytes += sum(map(_size_bytes, records))
        self._schedule.add(tp, records)

    def _pass_over(self, record: ConsumerRecord) -> None:
        self.repeated_count += 1
        self._leave(record)

    def _leave(self, record: ConsumerRecord) -> None:
        self.record_count -= 1
        self.size_bytes -= _size_bytes(record)

    def first_unfinished(self, tp: TopicPartition) -> int | None:
        """The offset of a partition's first record that is unfinished, or whose message's id may be unwritten; None if there is
        none."""
        with self._lock:
            unwritten = self._unwritten_from.get(tp)
            return self._schedule.first_unfinished(tp) if unwritten is None else unwritten

    def stop(self, workers: int) -> None:
        """Starts no further handler; the threads end once their handlers return."""
        with self._lock:
            self._is_stopped = True
        for _ in range(workers):
            self._ready.put(None)

    def end(self, workers: int) -> None:
        """As `stop`, and ignores the outcome of handlers that still run: their records stay unfinished."""
        with self._lock:
            self._is_over = True
        self.stop(workers)

    def unwritten_ids(self) -> list[tuple[int, MessageId]]:
        """The ids of messages handled so far that are not in the file yet."""
        with self._lock:
            first = {tp: self._schedule.first_unfinished(tp) for tp in self._unwritten_from}
            self._unwritten_after = {tp: offset for tp, offset in first.items() if offset is not None}
            return self._window.unwritten()

    def written_ids(self, numbered: Sequence[tuple[int, MessageId]]) -> None:
        """Notes that these ids, from `unwritten_ids`, are in the file."""
        with self._lock:
            self._window.written(numbered)
            self._unwritten_from = self._unwritten_after

    def running(self) -> list[Running]:
        """The running handlers."""
        with self._lock:
            return list(self._running.values())

    # --- on the handler threads

    def _handle_records(self, number: int) -> None:
        with self._guard.helper():
            self._handle_until_stopped(number)

    def _handle_until_stopped(self, number: int) -> None:
        while (task := self._ready.get()) is not None and self._begin(number, task.record):
            error: BaseException | None = None
            try:
                _refuse_lazy(self._handler(task.record))
            except BaseException as raised:
                error = raised
            self._end(number, task, error)
            del error, task  # frees the record while waiting for the next

    def _begin(self, number: int, record: ConsumerRecord) -> bool:
        with self._lock:
            if self._is_stopped or self._guard.is_closed:
                return False
            self._running[number] = Running(record, self._clock.monotonic_ms())
            return True

    def _end(self, number: int, task: Task, error: BaseException | None) -> None:
        may_skip = self._skips_errors and isinstance(error, Exception) and not isinstance(error, NothingRunError)
        is_fatal = error is not None and not may_skip
        if error is not None and not is_fatal:
            logger.error("%s is skipped (on_error=skip), as its handler failed", _place(task.record), exc_info=error)
        with self._lock:
            if self._is_over:
                return
            del self._running[number]
            if is_fatal:
                self._fail(task, error)
            else:
                self.handled_count += 1
                self._schedule.end(task, is_handled=error is None)
                self._leave(task.record)
            has_to_wake = is_fatal or self.is_awaited
        if has_to_wake:
            self._wake()

    def _fail(self, task: Task, error: BaseException | None) -> None:
        self._is_stopped = True
        if self.failure is None and error is not None:
            error.add_note(f"while handling {_place(task.record)}")
            self.failure = error


def _refuse_lazy(result: object) -> None:
    """Raises NothingRunError for a coroutine or generator: the handler has not run, but its record would count as handled."""
    kind = _LAZY.get(type(result))
    if kind is None:
        return
    if isinstance(result, types.CoroutineType):
        result.close()  # avoids the warning that it was never awaited
    raise NothingRunError(
        f"the handler returned {kind}, which is never run, so its record is not handled: give process() a function that has done "
        "the work when it returns, such as lambda record: asyncio.run(handle(record))"
    )


def _place(record: ConsumerRecord) -> str:
    return f"{record.topic_partition}@{record.offset}"


def _size_bytes(record: ConsumerRecord) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return _RECORD_OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"") + headers
