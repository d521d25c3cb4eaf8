"""One thread at a time: who uses the consumer, and whether it still may be used. Other threads may only wake and close it.

An interrupt may strike while a call begins or ends, and leave its thread noted as the user. Such a note is recognised: the frame
that made it no longer runs.
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

# How often a waiting thread checks whether an interrupt has ended the call before it, which then tells nobody.
_LOOK_S = 1.0


class _Use(NamedTuple):
    """A call in progress: its thread, and the frame that ends with it."""

    thread_id: int
    frame: FrameType

    @property
    def thread_name(self) -> str:
        """The name of its thread."""
        return next((thread.name for thread in threading.enumerate() if thread.ident == self.thread_id), "a thread that has ended")

    @property
    def is_left(self) -> bool:
        """True if the frame runs no more."""
        frame = sys._current_frames().get(self.thread_id)  # noqa: SLF001 - there is no public way
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is None


class Guard:
    """Held (`with`) by the thread that is inside a call of the consumer; entered again by the same thread, it changes nothing."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # never held while waiting; a signal's handler may close the consumer that holds it
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
        if self.is_closed and is_of_close:  # the call was waiting for something that is gone
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
        """Gives the consumer to the calling thread for as long as `frame` runs, or until `_release`; returns the use of another
        thread that prevents it."""
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

    @property
    def user(self) -> str:
        """The name of the thread that is inside a call; empty if none is."""
        use = self._use
        return "" if use is None or use.is_left else use.thread_name

    def await_user(self, timeout_s: float) -> bool:
        """Waits until no other thread is inside a call; True if the consumer then belongs to this one, until `leave`, or until the
        calling function ends."""
        frame = sys._getframe(1)  # noqa: SLF001
        while self._begin(frame) is not None:
            latch = threading.Lock()
            latch.acquire()
            self._latches.append(latch)
            if self._begin(frame) is None:  # it ended before the latch was there
                return True
            if timeout_s <= 0:
                return False
            if not latch.acquire(timeout=min(timeout_s, _LOOK_S)):
                timeout_s -= _LOOK_S
        return True

    def leave(self) -> None:
        """Ends what the calling function began by `await_user`."""
        self._release(sys._getframe(1))  # noqa: SLF001

    @contextlib.contextmanager
    def helper(self) -> Iterator[None]:
        """Marks the calling thread as one that the using thread awaits, or as that one itself: it must not wait for it in turn."""
        self._helpers.add(threading.get_ident())
        try:
            yield
        finally:
            self._helpers.discard(threading.get_ident())

    @property
    def is_helper(self) -> bool:
        """True in such a thread."""
        return threading.get_ident() in self._helpers

    def refuse_fork(self) -> None:
        """Raises ForkedConsumerError in a child."""
        if self.is_forked:
            raise ForkedConsumerError("this consumer was created before this process was forked: create one in the child")

    def wake(self) -> None:
        """Has `check` raise WakeupError once."""
        self._is_woken = True

    @property
    def is_asked_to_end(self) -> bool:
        """True if `check` would raise."""
        return self.is_closed or self._is_woken

    def check(self) -> None:
        """Raises ConsumerClosedError and WakeupError if another thread has asked for the end of the call."""
        if self.is_closed:
            raise self._closed()
        if self._is_woken:
            self._is_woken = False
            raise WakeupError("wakeup() was called")

    @staticmethod
    def _closed() -> ConsumerClosedError:
        end_daemon_thread()
        return ConsumerClosedError("the consumer is closed: create another one")
