"""One thread at a time: who uses the consumer, and whether it still may be used. Other threads may only wake and close it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from types import TracebackType

from brokerd.consumer.uses import Uses
from brokerd.errors import ClientError, ConsumerClosedError, ConsumerStateError, ForkedConsumerError, WakeupError
from brokerd.process import end_daemon_thread


class Guard:
    """Held (`with`) by the thread that is inside a call of the consumer; entered again by the same thread, it changes nothing."""

    def __init__(self) -> None:
        self._uses = Uses()
        self._helpers: set[int] = set()  # idents of threads that the using thread awaits
        self.is_closed = False
        self.is_forked = False
        self._is_woken = False

    def __enter__(self) -> None:
        self.refuse_fork()
        self._acquire()
        if self.is_closed:
            self._release()
            raise self._closed()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._release()
        is_of_close = isinstance(error, (ClientError, CancelledError)) and not isinstance(error, ConsumerClosedError)
        if self.is_closed and is_of_close:  # what the call was waiting for is gone
            raise self._closed() from None

    def _acquire(self) -> None:
        """Raises ConsumerStateError if the consumer is in use."""
        use = self._uses.begin(sys._getframe(2))  # noqa: SLF001 - the caller's, whose `with` this is
        other = self._uses.before(use)
        if other is not None:
            self._release()
            name = threading.current_thread().name
            raise ConsumerStateError(
                f"thread '{other.thread_name}' is using this consumer, so thread '{name}' cannot: one thread may use it at a time, "
                "and others may only call wakeup() and close(); give each thread a consumer of its own"
            )

    def _release(self) -> None:
        self._uses.end()

    @property
    def user(self) -> str:
        """The name of the thread that is inside a call; empty if none is."""
        use = self._uses.before()
        return "" if use is None else use.thread_name

    def await_user(self, timeout_s: float) -> bool:
        """Waits until no other thread is inside a call; True if it then belongs to this one, until `leave`, or until the calling
        function ends."""
        use = self._uses.begin(sys._getframe(1))  # noqa: SLF001
        is_first = self._uses.await_first(use, timeout_s)
        if not is_first:
            self._release()
        return is_first

    def leave(self) -> None:
        """Ends what `await_user` began."""
        self._release()

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
