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
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from brokerd.errors import ForkedProducerError, ProducerClosedError
from brokerd.producer.core.accumulator import NEVER_MS

T = TypeVar("T")
Work: TypeAlias = Generator[None, None, T]


class Asked(NamedTuple):
    """Work that a call waits for: see `Mailbox.ask`."""

    work: Work[Any]
    deadline_ms: int = NEVER_MS
    is_kept: bool = False


# A call that asks more than once, written once for a thread and for a task: it yields what it asks for, and is resumed with the
# result or the error.
Steps: TypeAlias = Generator[Asked, Any, T]
FORKED = "this producer was made before the process was forked and works in the parent only: make one per process"


def once(action: Callable[[], T]) -> Work[T]:
    """Work that never waits."""
    yield from ()
    return action()


class Errand(Generic[T]):
    """The work of one caller. `on_end` is called, by whichever thread ends it, once it has a result or an error."""

    __slots__ = ("_on_end", "_wake", "deadline_ms", "error", "is_kept", "is_withdrawn", "result", "work")

    def __init__(
        self, work: Work[T], on_end: Callable[[], None], wake: Callable[[], None], *, deadline_ms: int, is_kept: bool
    ) -> None:
        self.work = work
        self.deadline_ms = deadline_ms
        self.is_kept = is_kept
        self.is_withdrawn = False
        self.result: T
        self.error: BaseException | None = None
        self._on_end = on_end
        self._wake = wake

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
        self._on_end()
        return True

    def refuse(self) -> None:
        """Ends it undone: no thread serves any more."""
        self.work.close()
        self.error = ProducerClosedError("the producer is closed")
        self._on_end()

    def withdraw(self) -> None:
        """Gives it up, unless it is kept: nobody waits any more. It may have been done all the same."""
        self.is_withdrawn = not self.is_kept
        self._wake()

    def outcome(self) -> T:
        """Its result, once it has ended. Raises its error."""
        if self.error is not None:
            raise self.error
        return self.result


class Mailbox:
    """The errands of one producer. `wake` makes its thread call `serve` soon."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._pid = os.getpid()
        self._posted: deque[Errand[object]] = deque()
        self._waiting: list[Errand[object]] = []
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
        latch = threading.Lock()
        latch.acquire()
        errand = Errand(work, latch.release, self._wake, deadline_ms=deadline_ms, is_kept=is_kept)
        self._posted.append(errand)  # type: ignore[arg-type]
        try:
            self._await(errand, latch, timeout_s)
        except BaseException:
            errand.withdraw()
            raise
        try:
            return errand.outcome()
        finally:
            del errand  # its traceback refers to this frame

    def begin(self, work: Work[T], on_end: Callable[[], None], *, deadline_ms: int = NEVER_MS, is_kept: bool = False) -> Errand[T]:
        """As `ask`, for a caller that waits in another way: `on_end` is called, by whichever thread, when there is an outcome."""
        self.refuse_fork()
        errand = Errand(work, on_end, self._wake, deadline_ms=deadline_ms, is_kept=is_kept)
        self._put(errand)
        return errand

    def _put(self, errand: Errand[T]) -> None:
        self._posted.append(errand)  # type: ignore[arg-type]
        self._wake()
        if self._is_ended:
            self._serve_alone(errand)

    def _await(self, errand: Errand[T], latch: threading.Lock, timeout_s: float | None) -> None:
        self._wake()
        if self._is_ended:
            self._serve_alone(errand)
        if not latch.acquire(timeout=-1 if timeout_s is None else min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
            raise TimeoutError(f"no response in {timeout_s} s")

    def _serve_alone(self, errand: Errand[T]) -> None:
        """Does the work in the calling thread: the serving thread has ended, so nothing else changes the state any more."""
        try:
            self._posted.remove(errand)  # type: ignore[arg-type]
        except ValueError:
            return  # the thread took it on its way out
        if not errand.advance():
            errand.refuse()

    def post(self, work: Work[None]) -> None:
        """Puts `work` into the box, in the order of calls, and does not wait for it."""
        self.refuse_fork()
        if self.is_own_thread:
            _at_once(work, None)
            return
        self._put(Errand(work, _nobody, self._wake, deadline_ms=NEVER_MS, is_kept=True))

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
            errand.refuse()
        self._waiting = []
        self._owner = 0


def _nobody() -> None:
    """Nobody waits for what is posted."""


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
