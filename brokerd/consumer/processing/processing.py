"""Takes records while there is room, runs their handlers in threads, commits finished records, and shuts down in order.

However it ends, it starts no further handler, waits for running ones, commits up to the first unfinished record, and moves the
positions back to that record, so that later calls do not skip it. With a file of ids, a record is finished once its message's id is
written.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any

from brokerd.arguments import checked_int
from brokerd.clock import Clock
from brokerd.config.settings import INT32_MAX
from brokerd.consumer.committing import Committing
from brokerd.consumer.core.assignment import Assignment
from brokerd.consumer.core.records import ConsumerRecord
from brokerd.consumer.fetching import Fetching
from brokerd.consumer.guard import Guard
from brokerd.consumer.processing.dedup import Dedup
from brokerd.consumer.processing.schedule import ORDERS
from brokerd.consumer.processing.work import Handler, Running, Work
from brokerd.errors import BrokerdError, ClientError, DedupFileError, HandlerTimeoutError, counted

logger = logging.getLogger(__name__)

# The longest wait between two checks for hanging handlers and offsets to commit.
_TICK_MS = 1_000
_COMMIT_TIMEOUT_MS = 30_000
WORKERS_MAX = 10_000  # threads; most machines allow fewer
_ERRORS = ("raise", "skip")
_LAZY = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)  # a call does not run the body


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The options of `Consumer.process`. Raises TypeError and ValueError."""

    workers: int
    order: str
    on_error: str
    max_in_flight: int
    max_in_flight_bytes: int
    handler_timeout_ms: int
    timeout_ms: int | None

    def __post_init__(self) -> None:
        checked_int(self.workers, "workers", minimum=1, maximum=WORKERS_MAX)
        for name, number in (("max_in_flight", self.max_in_flight), ("handler_timeout_ms", self.handler_timeout_ms)):
            checked_int(number, name, minimum=1, maximum=INT32_MAX)
        checked_int(self.max_in_flight_bytes, "max_in_flight_bytes", minimum=1)
        if self.order not in tuple(ORDERS):
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, not {self.order!r}")
        if self.on_error not in _ERRORS:
            raise ValueError(f"on_error must be one of {', '.join(_ERRORS)}, not {self.on_error!r}")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a consumer that processing needs. `run` runs a coroutine on the loop thread and waits for it. `take(timeout_ms,
    room, room_bytes, work)` hands over records as `poll` does, within both limits, and adds them to `work` before their positions
    move; it returns early if a handler has failed."""

    assignment: Assignment
    fetching: Fetching
    committing: Committing
    guard: Guard
    clock: Clock
    run: Callable[[Coroutine[Any, Any, None]], None]
    take: Callable[[int, int, int, Work], list[ConsumerRecord]]


class Processing:
    """One call of `Consumer.process`."""

    def __init__(self, parts: Parts, handler: Handler, options: ProcessOptions, dedup: Dedup) -> None:
        if not callable(handler) or any(is_lazy(one) for is_lazy in _LAZY for one in (handler, type(handler).__call__)):
            raise TypeError(f"handler must be a function that is called with a record, in a thread, not {handler!r:.200}")
        self._parts = parts
        self._options = options
        self._dedup = dedup
        self._work = Work(
            handler,
            ORDERS[options.order],
            dedup=dedup,
            skips_errors=options.on_error == "skip",
            clock=parts.clock,
            guard=parts.guard,
            wake=parts.fetching.wake,
        )
        self._tick_ms = min(_TICK_MS, options.handler_timeout_ms)
        self._hung: Running | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Returns once the consumer is closed, after timeout_ms without a record, or with a failure for `outcome` to raise. Raises
        WakeupError, and as `poll`."""
        try:
            ended_by = self._run()
        finally:
            self._work.end(self._options.workers)  # again: an interrupt may have skipped the first call
        is_of_close = isinstance(ended_by, (ClientError, CancelledError)) and not isinstance(ended_by, DedupFileError)
        if self._parts.guard.is_closed and is_of_close:  # it waited for something that `close` ended
            ended_by = None
        if ended_by is not None and not isinstance(ended_by, BrokerdError):
            raise ended_by
        self._failure = self._failure_by(ended_by)
        if self._failure is None and ended_by is not None:
            raise ended_by

    def _run(self) -> BaseException | None:
        """Returns the exception that ended it, if any."""
        parts, workers = self._parts, self._options.workers
        ended_by: BaseException | None = None
        parts.assignment.first_unfinished = self._work.first_unfinished
        with parts.committing.processing(self._write_ids):
            try:
                self._work.start(workers)
                self._hand_out()
            except BaseException as error:
                ended_by = error
            try:
                self._work.stop(workers)
                self._await_handlers()
            except BaseException as error:  # a second interrupt: stop waiting
                ended_by = error
            self._work.end(workers)
            try:
                self._write_ids()
            except BaseException as error:  # outranks a close and errors of `poll`, but not an interrupt
                ended_by = error if ended_by is None or isinstance(ended_by, BrokerdError) else ended_by
            parts.fetching.go_back()
            self._commit()
        if self._work.repeated_count:
            skipped = counted(self._work.repeated_count, "record")
            logger.info("skipped %s of messages that were handled before", skipped)
        return ended_by

    def _commit(self) -> None:
        try:
            self._parts.run(self._parts.committing.close(_COMMIT_TIMEOUT_MS))
        except (ClientError, CancelledError):
            if not self._parts.guard.is_closed:
                raise
            logger.warning("close() did not wait for all handlers: records handled since the last commit come again")

    def outcome(self) -> int:
        """The number of handled records. Raises the first error of a handler, HandlerTimeoutError, DedupFileError. Call it outside
        of the guard, which would turn some of them into ConsumerClosedError if the consumer was closed meanwhile."""
        if self._failure is not None:
            raise self._failure
        return self._work.handled_count

    def _failure_by(self, ended_by: BrokerdError | None) -> BaseException | None:
        if self._work.failure is not None:
            return self._work.failure
        if self._hung is not None:
            return self._timeout_of(self._hung)
        return ended_by if isinstance(ended_by, DedupFileError) else None

    def _write_ids(self) -> None:
        """Makes the ids of handled messages durable; must precede commits beyond their records."""
        numbered = self._work.unwritten_ids()
        self._dedup.write(numbered)
        self._work.written_ids(numbered)

    # --- the loop

    def _hand_out(self) -> None:
        options, work, clock = self._options, self._work, self._parts.clock
        last_ms, is_idle = clock.monotonic_ms(), False
        while True:
            self._parts.guard.check()
            self._refuse_hung()
            if work.failure is not None:
                return
            room, room_bytes = options.max_in_flight - work.record_count, options.max_in_flight_bytes - work.size_bytes
            is_ending = is_idle and options.timeout_ms is not None and clock.monotonic_ms() - last_ms >= options.timeout_ms
            if is_ending and not work.record_count:
                return
            if room <= 0 or room_bytes <= 0 or is_ending:
                self._rest()
                if not is_ending:  # records may have arrived meanwhile
                    last_ms = clock.monotonic_ms()
                continue
            is_idle = not self._parts.take(self._wait_ms(last_ms), room, room_bytes, work)
            if not is_idle:
                last_ms = clock.monotonic_ms()

    def _wait_ms(self, last_ms: int) -> int:
        if self._options.timeout_ms is None:
            return self._tick_ms
        return min(self._tick_ms, max(0, last_ms + self._options.timeout_ms - self._parts.clock.monotonic_ms()))

    def _rest(self) -> None:
        """Waits until a handler ends or fails, `wakeup`, `close`, or a tick has passed."""
        work, guard = self._work, self._parts.guard
        count = work.record_count
        self._parts.committing.auto()
        work.is_awaited = True
        self._parts.fetching.rest(
            self._tick_ms, lambda: work.record_count < count or work.failure is not None or guard.is_asked_to_end
        )
        work.is_awaited = False

    def _refuse_hung(self) -> None:
        """Raises HandlerTimeoutError if a handler has reached handler_timeout_ms."""
        for running in self._work.running():
            if self._is_hung(running):
                self._hung = running
                raise self._timeout_of(running)

    def _is_hung(self, running: Running) -> bool:
        return self._parts.clock.monotonic_ms() - running.since_ms >= self._options.handler_timeout_ms

    def _timeout_of(self, running: Running) -> HandlerTimeoutError:
        record = running.record
        return HandlerTimeoutError(
            f"the handler of {record.topic_partition}@{record.offset} has run for more than {self._options.handler_timeout_ms} ms "
            "(handler_timeout_ms) and still runs, in its thread: its record is not committed and comes again; raise the limit "
            "if it may take that long"
        )

    # --- at the end

    def _has_ended(self, running: Running) -> bool:
        return running not in self._work.running()

    def _await_handlers(self) -> None:
        """Waits for running handlers, each until its handler_timeout_ms."""
        work = self._work
        work.is_awaited = True
        while running := [one for one in work.running() if not self._is_hung(one)]:
            left_ms = min(one.since_ms for one in running) + self._options.handler_timeout_ms - self._parts.clock.monotonic_ms()
            self._parts.fetching.rest(max(1, min(left_ms, _TICK_MS)), partial(self._has_ended, running[0]))
        still = work.running()
        if still and self._hung is None:
            self._hung = still[0]
        for one in still:
            logger.error("%s", self._timeout_of(one))
