"""Hands work of application threads to the thread that sends, without a lock that an interrupted thread could leave held.

An exception may strike an application's thread between any two bytecodes: Ctrl-C, an alarm, a test's time-out. A lock that
such a thread holds may then stay held for ever, and the change that it was making stays half done. So there is no lock: all
state of a producer belongs to the thread that sends, where no such exception arrives. A caller puts an errand into the box (one
append) and sleeps on a latch of its own. The errand is done there as a whole, or not at all, even if its caller is interrupted.

An errand is a generator: it yields while it cannot continue, and is resumed after every event that it may be waiting for.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeAlias, TypeVar

from brokerd.errors import ForkedProducerError, ProducerClosedError
from brokerd.producer.core.accumulator import NEVER_MS

T = TypeVar("T")
Work: TypeAlias = Generator[None, None, T]
FORKED = "this producer was made before the process was forked and works in the parent only: make one per process"


def once(action: Callable[[], T]) -> Work[T]:
    """Work that never waits."""
    yield from ()
    return action()


class _Errand(Generic[T]):
    """The work of one caller. `latch` is released once it has a result or an error."""

    __slots__ = ("deadline_ms", "error", "is_withdrawn", "latch", "result", "work")

    def __init__(self, work: Work[T], deadline_ms: int) -> None:
        self.work = work
        self.deadline_ms = deadline_ms
        self.is_withdrawn = False
        self.result: T
        self.error: BaseException | None = None
        self.latch = threading.Lock()
        self.latch.acquire()

    def advance(self) -> bool:
        """Resumes the work; True once it is done."""
        if self.is_withdrawn:
            self.work.close()
            return True
        try:
            next(self.work)
        except StopIteration as end:
            self.result = end.value
        except BaseException as error:
            self.error = error
        else:
            return False
        self.latch.release()
        return True


class Mailbox:
    """The errands of one producer. `wake` makes its thread call `serve` soon."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pid = os.getpid()
        self._posted: deque[_Errand[object]] = deque()
        self._waiting: list[_Errand[object]] = []
        self._owner = 0
        self._is_ended = False

    # --- the application's side

    @property
    def is_own_thread(self) -> bool:
        """True in the thread that serves, which cannot wait for itself."""
        return threading.get_ident() == self._owner

    def refuse_own_thread(self) -> None:
        """Raises RuntimeError in a callback, which would wait for itself if it waited for the thread that serves."""
        if self.is_own_thread:
            raise RuntimeError("a callback cannot flush or close its producer: it runs in the thread that sends")

    def refuse_fork(self, what: str = "") -> None:
        """Raises ForkedProducerError in another process than the producer's, where no thread serves."""
        if os.getpid() != self._pid:
            raise ForkedProducerError(what + FORKED)

    def ask(self, work: Work[T], *, timeout_s: float | None = None, deadline_ms: int = NEVER_MS, is_kept: bool = False) -> T:
        """Waits for `work`, and returns or raises its result. `work` raises at its own deadline: it is resumed at `deadline_ms` at
        the latest.

        After `timeout_s`, or if an exception strikes meanwhile, it is withdrawn, unless `is_kept`: then it may have been done
        all the same. Raises TimeoutError, ForkedProducerError; RuntimeError in a callback that would wait for itself.
        """
        self.refuse_fork()
        if self.is_own_thread:
            return _at_once(work, RuntimeError("a callback cannot wait for its producer: it runs in the thread that sends"))
        errand: _Errand[T] = _Errand(work, deadline_ms)
        self._posted.append(errand)  # type: ignore[arg-type]
        try:
            self._await(errand, timeout_s)
        except BaseException:
            errand.is_withdrawn = not is_kept
            self._wake()
            raise
        try:
            if errand.error is not None:
                raise errand.error
            return errand.result
        finally:
            del errand  # its traceback refers to this frame

    def _await(self, errand: _Errand[T], timeout_s: float | None) -> None:
        self._wake()
        if self._is_ended:
            self._serve_alone(errand)
        if not errand.latch.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
            raise TimeoutError(f"no response in {timeout_s} s")

    def _serve_alone(self, errand: _Errand[T]) -> None:
        """Does the work in the calling thread: the serving thread has ended, so nothing else changes the state any more."""
        try:
            self._posted.remove(errand)  # type: ignore[arg-type]
        except ValueError:
            return  # the thread took it on its way out
        if not errand.advance():
            errand.error = ProducerClosedError("the producer is closed")
            errand.latch.release()

    def post(self, work: Work[None]) -> None:
        """Puts `work` into the box, in the order of calls, and does not wait for it."""
        self.refuse_fork()
        if self.is_own_thread:
            _at_once(work, None)
            return
        errand = _Errand(work, NEVER_MS)
        self._posted.append(errand)  # type: ignore[arg-type]
        self._wake()
        if self._is_ended:
            self._serve_alone(errand)

    # --- the serving thread's side

    def own(self) -> None:
        """Makes the calling thread the one that serves."""
        self._owner = threading.get_ident()

    def serve(self) -> int:
        """Does all errands that can be done. Returns the earliest deadline of those that still wait."""
        while self._posted:
            self._waiting.append(self._posted.popleft())
        self.retry()
        return min((errand.deadline_ms for errand in self._waiting), default=NEVER_MS)

    def retry(self) -> None:
        """Resumes all errands that wait, in the order of calls, after an event."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._waiting = [errand for errand in waiting if not errand.advance()]

    def end(self) -> None:
        """Ends all waiting errands: no thread will serve again."""
        self._is_ended = True
        self.serve()
        for errand in self._waiting:
            errand.work.close()
            errand.error = ProducerClosedError("the producer is closed")
            errand.latch.release()
        self._waiting = []
        self._owner = 0


def _at_once(work: Work[T], refusal: Exception | None) -> T:
    """Runs `work` here and now. Raises `refusal` if it would have to wait."""
    try:
        next(work)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    assert refusal is not None, "what nobody waits for does not wait"
    raise refusal
