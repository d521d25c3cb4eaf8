"""Admits one thread at a time to a consumer, until it is closed. Other threads may only wake and close it.

An interrupt at the start or end of a call may leave its thread registered as the user. Such a registration is recognised by its
frame, which no longer runs.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from types import FrameType, TracebackType
from typing import NamedTuple

from brokerd.errors import ClientError, ConsumerClosedError, ConsumerStateError, ForkedConsumerError, WakeupError
from brokerd.process import end_daemon_thread

# How often a waiting thread checks whether the call ahead of it was ended by an interrupt, which may not release the latches.
_LOOK_S = 1.0


class _Use(NamedTuple):
    """A call in progress: its thread and its frame."""

    thread_id: int
    frame: FrameType

    @property
    def thread_name(self) -> str:
        """The name of its thread."""
        return next((thread.name for thread in threading.enumerate() if thread.ident == self.thread_id), "a thread that has ended")

    @property
    def is_left(self) -> bool:
        """True if the frame no longer runs."""
        frame = sys._current_frames().get(self.thread_id)  # noqa: SLF001 - there is no public way
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None


class Guard:
    """Held (`with`) by the thread inside a call of the consumer. Reentrant."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # never held while waiting; reentrant, as a signal handler may close the consumer
        self._use: _Use | None = None
        self._latches: list[threading.Lock] = []  # of threads that wait until the use ends
        self._helpers: set[int] = set()  # idents of threads that the using thread awaits
        self.is_closed = False
        self.is_forked = False
        self._is_woken = False

    def __enter__(self) -> None:
        self.refuse_fork()
        frame = sys._getframe(1)  # noqa: SLF001 - the caller's, whose `with` this is
        self._acquire(frame)
        if self.is_closed:
            self._release(frame)
            raise self._closed()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._release(sys._getframe(1))  # noqa: SLF001
        is_of_close = isinstance(error, (ClientError, CancelledError)) and not isinstance(error, ConsumerClosedError)
        if self.is_closed and is_of_close:  # the call was waiting for something that `close` ended
            raise self._closed() from None

    def _acquire(self, frame: FrameType) -> None:
        """Raises ConsumerStateError if the consumer is in use."""
        other = self._begin(frame)
        if other is not None:
            name = threading.current_thread().name
            raise ConsumerStateError(
                f"thread '{other.thread_name}' is using this consumer, so thread '{name}' cannot: one thread may use it at a time, "
                "and others may only call wakeup() and close(); give each thread a consumer of its own"
            )

    def _begin(self, frame: FrameType) -> _Use | None:
        """Registers the calling thread as the user while `frame` runs, or until `_release`; returns another thread's use if that
        prevents it."""
        with self._lock:
            use, thread_id = self._use, threading.get_ident()
            if use is None or use.is_left:
                self._use = _Use(thread_id, frame)
            elif use.thread_id != thread_id:
                return use
            return None

    def _release(self, frame: FrameType) -> None:
        with self._lock:
            if self._use is None or self._use.frame is not frame:  # an outer call of this thread continues
                return
            self._use = None
            latches, self._latches = self._latches, []
        for latch in latches:
            latch.release()

    def await_user(self, timeout_s: float) -> bool:
        """Waits until no other thread is inside a call, then registers this one until `leave` or the end of the calling function.
        False after `timeout_s`."""
        frame = sys._getframe(1)  # noqa: SLF001
        while self._begin(frame) is not None:
            latch = threading.Lock()
            latch.acquire()
            self._latches.append(latch)
            if self._begin(frame) is None:  # the use ended before the latch was there
                return True
            if timeout_s <= 0:
                return False
            if not latch.acquire(timeout=min(timeout_s, _LOOK_S)):
                timeout_s -= _LOOK_S
        return True

    def leave(self) -> None:
        """Ends the registration that the calling function began with `await_user`."""
        self._release(sys._getframe(1))  # noqa: SLF001

    @contextlib.contextmanager
    def helper(self) -> Iterator[None]:
        """Marks the calling thread as one that must not wait for the user: the user waits for it, or it is the user itself."""
        self._helpers.add(threading.get_ident())
        try:
            yield
        finally:
            self._helpers.discard(threading.get_ident())

    @property
    def is_helper(self) -> bool:
        """True in a thread marked by `helper`."""
        return threading.get_ident() in self._helpers

    def refuse_fork(self) -> None:
        """Raises ForkedConsumerError in a forked child."""
        if self.is_forked:
            raise ForkedConsumerError("this consumer was created before this process was forked: create one in the child")

    def wake(self) -> None:
        """Makes `check` raise WakeupError once."""
        self._is_woken = True

    @property
    def is_asked_to_end(self) -> bool:
        """True if `check` would raise."""
        return self.is_closed or self._is_woken

    def check(self) -> None:
        """Raises ConsumerClosedError after `close`, WakeupError after `wakeup`."""
        if self.is_closed:
            raise self._closed()
        if self._is_woken:
            self._is_woken = False
            raise WakeupError("wakeup() was called")

    @staticmethod
    def _closed() -> ConsumerClosedError:
        end_daemon_thread()
        return ConsumerClosedError("the consumer is closed: create another one")
