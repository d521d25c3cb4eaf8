"""The lock of one producer, and the blocking calls that wait for the state under it to change.

Application threads and the sender's thread share the producer's state under one lock. Application threads change little of it: they
add a row, or request a flush, abort or close, which the sender carries out. Python runs signal handlers, and so raises
KeyboardInterrupt, in the main thread only, and only at a function call, a return from C code or a loop's next iteration. So `with
lock` always releases the lock, and assignments without a call in between are atomic.

No call waits on a Condition or an Event, because an exception raised there corrupts their inner lock. A call waits outside the
shared lock, on a plain lock of its own, and polls again after at most a second in case its wake-up was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from brokerd.clock import Clock
from brokerd.errors import ForkedProducerError, ProducerClosedError
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.waiter import Waiter

T = TypeVar("T")
FORKED = "this producer was made before the process was forked and works in the parent only: make one per process"
_LOOK_AGAIN_S = 1.0


@dataclass(slots=True, eq=False)
class Wait(Generic[T]):
    """The condition that one call waits for. `poll(now_ms)` runs under the lock, in the calling thread. It returns the result, or
    None while there is none; from `deadline_ms` on it raises the call's error. `is_due`: a cheap check that polling may succeed, so
    that the sender does not wake the call needlessly."""

    poll: Callable[[int], T | None]
    deadline_ms: int = NEVER_MS
    is_due: Callable[[], bool] = lambda: True
    is_over: bool = False  # the call has ended, so its registrations are void
    tell: Callable[[], object] | None = None  # wakes the call, once


class SharedLock:
    """The lock of one producer, and its waiting calls. Take `lock` by `with`, and hold it briefly."""

    def __init__(self, clock: Clock) -> None:
        self.lock = threading.RLock()  # an RLock, because `wait` checks its owner
        self.now_ms = clock.monotonic_ms  # the clock of deadlines
        self._pid = os.getpid()
        self._waits: list[Wait[Any]] = []
        self._sender_id = 0
        self.is_ended = False  # the sender's thread has ended: the state no longer changes

    # --- the application's side

    @property
    def is_senders_thread(self) -> bool:
        """True in the sender's thread, which must not wait for itself."""
        return threading.get_ident() == self._sender_id

    def refuse_senders_thread(self) -> None:
        """Raises RuntimeError in a callback, where a flush or close would deadlock."""
        if self.is_senders_thread:
            raise RuntimeError("a callback cannot flush or close its producer: it runs in the thread that sends")

    @property
    def is_forked(self) -> bool:
        """True in a forked child of the process that created the lock."""
        return os.getpid() != self._pid

    def refuse_fork(self, what: str = "") -> None:
        """Raises ForkedProducerError in a forked child."""
        if self.is_forked:
            raise ForkedProducerError(what + FORKED)

    def after_fork(self) -> None:
        """In the child process: replaces the lock, which a thread of the parent may have held."""
        self.lock = threading.RLock()

    def wait(self, wait: Wait[T]) -> T:
        """Waits in this thread for the result or error of `poll`. Raises ProducerClosedError if the sender has ended,
        ForkedProducerError, and RuntimeError in a callback that would have to wait, or in a signal handler that interrupted a call
        of this producer under the lock."""
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
        """Like `wait`, in a task of an event loop."""
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
        left_ms = wait.deadline_ms - self.now_ms() if wait.deadline_ms < NEVER_MS else NEVER_MS
        return min(_LOOK_AGAIN_S, max(left_ms, 1) / 1000)

    # --- the sender's side

    def own(self) -> None:
        """Makes the calling thread the sender's thread."""
        self._sender_id = threading.get_ident()

    def tell_waiting(self) -> None:
        """Wakes the calls whose condition may now hold. Call it under the lock."""
        if self._waits:
            waits, self._waits = self._waits, []
            for wait in waits:
                if wait.is_over:
                    continue
                if wait.is_due():
                    assert wait.tell is not None
                    wait.tell()
                else:
                    self._waits.append(wait)

    def end(self) -> None:
        """Wakes all waiting calls for good, since the sender's thread is ending."""
        with self.lock:
            self.is_ended = True
            self._sender_id = 0
            for wait in self._waits:
                assert wait.tell is not None
                wait.tell()
            self._waits = []
