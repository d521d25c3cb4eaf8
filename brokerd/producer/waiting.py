"""The lock of one producer, and the calls that wait for a change of what it guards.

Application threads share the producer's state with the sender's thread, under one lock. They change little there: they add a row,
or state a wish (flush, abort, close), which the sender carries out. A signal's handler, and so KeyboardInterrupt, runs in the main
thread only, where Python calls a function, returns from C code or repeats a loop. So `with lock` always frees the lock, and
assignments without a call between them are made together.

No call waits by Condition or Event: an exception that strikes there leaves their inner lock in disorder. A call waits outside the
shared lock, on a plain lock of its own, and looks again after a second at the latest, whoever was to wake it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from brokerd.clock import Clock
from brokerd.errors import ForkedProducerError, ProducerClosedError
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.waiter import Waiter

T = TypeVar("T")
FORKED = "this producer was made before the process was forked and works in the parent only: make one per process"
_LOOK_AGAIN_S = 1.0


class Wait(Generic[T]):
    """What one call waits for."""

    __slots__ = ("deadline_ms", "is_due", "is_over", "poll", "tell")

    def __init__(
        self, poll: Callable[[int], T | None], deadline_ms: int = NEVER_MS, is_due: Callable[[], bool] | None = None
    ) -> None:
        """`poll(now_ms)` returns the result, or None while there is none, and raises the call's own error from `deadline_ms` on.
        It runs under the lock, in the calling thread. `is_due`: whether polling may be worth it, for waits that are many or long.
        """
        self.poll = poll
        self.deadline_ms = deadline_ms
        self.is_due = is_due
        self.is_over = False  # the call has ended: whatever was kept for it is void
        self.tell: Callable[[], object] | None = None  # wakes the call, once


class SharedLock:
    """The lock of one producer. `lock` is taken by `with`, and for a short time only."""

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.RLock()  # which knows its owner: see `wait`
        self._clock = clock
        self._pid = os.getpid()
        self._waits: list[Wait[Any]] = []
        self._sender_id = 0
        self.is_ended = False  # the sender's thread has ended: nothing changes any more

    # --- the application's side

    @property
    def is_senders_thread(self) -> bool:
        """True in the thread that sends, which cannot wait for itself."""
        return threading.get_ident() == self._sender_id

    def refuse_senders_thread(self) -> None:
        """Raises RuntimeError in a callback, which would wait for itself if it flushed or closed."""
        if self.is_senders_thread:
            raise RuntimeError("a callback cannot flush or close its producer: it runs in the thread that sends")

    def refuse_fork(self, what: str = "") -> None:
        """Raises ForkedProducerError in another process than the producer's, where no thread sends."""
        if os.getpid() != self._pid:
            raise ForkedProducerError(what + FORKED)

    def now_ms(self) -> int:
        """The time of deadlines."""
        return self._clock.monotonic_ms()

    def after_fork(self) -> None:
        """In the child: some thread of the parent may have held the lock."""
        self.lock = threading.RLock()

    def wait(self, wait: Wait[T]) -> T:
        """Waits in this thread; returns or raises what `poll` does. ProducerClosedError if nothing changes any more,
        ForkedProducerError; RuntimeError in a callback that would wait for itself, and in a signal's handler that has interrupted
        a call of this producer inside the lock."""
        self.refuse_fork()
        if self.lock._is_owned():  # type: ignore[attr-defined]  # noqa: SLF001 (as threading.Condition does)
            raise RuntimeError(
                "this signal handler has interrupted a call of the same producer, and cannot wait for it: set a flag in the "
                "handler, and flush or close the producer outside of it"
            )
        try:
            while True:
                latch = threading.Lock()
                latch.acquire()
                result = self._poll(wait, latch.release)
                if result is not None:
                    return result
                if self.is_senders_thread:
                    raise RuntimeError("a callback cannot wait for its producer: it runs in the thread that sends")
                latch.acquire(timeout=self._sleep_s(wait))
        finally:
            wait.is_over = True

    async def wait_in_task(self, wait: Wait[T]) -> T:
        """As `wait`, in a task of an event loop."""
        self.refuse_fork()
        try:
            while True:
                told = Waiter()
                result = self._poll(wait, told.tell)
                if result is not None:
                    return result
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._sleep_s(wait)):
                        await told
        finally:
            wait.is_over = True

    def _poll(self, wait: Wait[T], tell: Callable[[], object]) -> T | None:
        with self.lock:
            result = wait.poll(self.now_ms())
            if result is None:
                if self.is_ended:
                    raise ProducerClosedError("the producer is closed")
                wait.tell = tell
                if wait not in self._waits:
                    self._waits.append(wait)
        return result

    def _sleep_s(self, wait: Wait[T]) -> float:
        left_ms = wait.deadline_ms - self.now_ms()
        return min(_LOOK_AGAIN_S, max(left_ms, 1) / 1000)

    # --- the sender's side

    def own(self) -> None:
        """Makes the calling thread the one that sends."""
        self._sender_id = threading.get_ident()

    def tell_waiting(self) -> None:
        """Wakes the calls for which something may have changed. Call it under the lock."""
        if self._waits:
            waits, self._waits = self._waits, []
            for wait in waits:
                if wait.is_over:
                    continue
                if wait.is_due is None or wait.is_due():
                    assert wait.tell is not None
                    wait.tell()
                else:
                    self._waits.append(wait)

    def end(self) -> None:
        """Ends all waiting: no thread sends any more."""
        with self.lock:
            self.is_ended = True
            self._sender_id = 0
            for wait in self._waits:
                assert wait.tell is not None
                wait.tell()
            self._waits = []
