"""How application threads have something done in the thread that sends, without a lock that an interrupted one could lose.

An exception may strike an application's thread between any two bytecodes: Ctrl-C, an alarm, a test's time-out. A lock that
such a thread holds may then stay held for ever, and what it was in the middle of stays half done. So there is none to hold: all
state of a producer belongs to the thread that sends, where no such exception arrives. Who wants something puts an errand into
the box (one append) and sleeps on a latch of its own. An errand is done there as a whole, or not at all, whatever becomes of
who asked for it.

An errand is a generator: it yields while it cannot go on yet, and is asked again after every event that somebody may have
waited for.
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
    """Work that one caller asked for. `latch` is released once it has a result or an error."""

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
        """True once there is nothing left to do."""
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
    """Of one producer. `wake` makes its thread call `serve` soon."""

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

    def refuse_fork(self, what: str = "") -> None:
        """Raises ForkedProducerError in another process than the producer's, where nobody would ever answer."""
        if os.getpid() != self._pid:
            raise ForkedProducerError(what + FORKED)

    def ask(self, work: Work[T], *, timeout_s: float | None = None, deadline_ms: int = NEVER_MS, is_kept: bool = False) -> T:
        """Waits for what `work` returns or raises. `work` raises at its own deadline: it is resumed at `deadline_ms` at the latest.

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
            del errand  # its error knows this frame by now

    def _await(self, errand: _Errand[T], timeout_s: float | None) -> None:
        self._wake()
        if self._is_ended:
            self._serve_alone(errand)
        if not errand.latch.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
            raise TimeoutError(f"no response in {timeout_s} s")

    def _serve_alone(self, errand: _Errand[T]) -> None:
        """The serving thread has ended, so nothing changes any more: the caller does the work itself."""
        try:
            self._posted.remove(errand)  # type: ignore[arg-type]
        except ValueError:
            return  # the thread took it on its way out
        if not errand.advance():
            errand.error = ProducerClosedError("the producer is closed")
            errand.latch.release()

    def post(self, work: Work[None]) -> None:
        """Has `work` done, in the order of asking; nobody waits for it."""
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
        """The calling thread is the one that serves."""
        self._owner = threading.get_ident()

    def serve(self) -> int:
        """Does what can be done of what was asked for. Returns the earliest deadline of what still waits."""
        while self._posted:
            self._waiting.append(self._posted.popleft())
        self.retry()
        return min((errand.deadline_ms for errand in self._waiting), default=NEVER_MS)

    def retry(self) -> None:
        """Something happened: all work that waits is resumed, in the order in which it was asked for."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._waiting = [errand for errand in waiting if not errand.advance()]

    def end(self) -> None:
        """Nobody will serve again: nobody is left waiting."""
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
