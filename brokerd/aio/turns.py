"""Which loop and task may use a client: it belongs to the event loop that uses it first, and a consumer to one of its tasks at a
time. Also wakes a task that waits for arrivals, from another thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import FrameType
from typing import Any

from brokerd.consumer.guard import Guard
from brokerd.errors import ConsumerStateError, EventLoopError
from brokerd.waiter import Waiter


class Home:
    """The event loop of one client. `kind` is its name in errors: consumer or producer. `refuse_fork` raises in a forked child,
    where no loop or a different one runs."""

    def __init__(self, kind: str, refuse_fork: Callable[[], None] = lambda: None) -> None:
        self._kind = kind
        self._refuse_fork = refuse_fork
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Binds the client to the running loop. Raises EventLoopError if no loop runs, or another than at the first call."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._refuse_fork()
            raise EventLoopError(
                f"this {self._kind} is brokerd.aio's and was called outside of an event loop: call it in a coroutine, or use "
                f"brokerd.{self._kind.capitalize()}, which blocks"
            ) from None
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            self._refuse_fork()
            raise EventLoopError(
                f"this {self._kind} belongs to the event loop in which it was used first, and was called in another: make one in "
                "each loop"
            )


class TaskGuard(Guard):
    """Held (`with`) by the task inside a call of the consumer, also while it awaits."""

    def __init__(self, home: Home) -> None:
        super().__init__()
        self._home = home
        self._task: asyncio.Task[Any] | None = None
        self._depth = 0
        self._waiters: list[Waiter] = []  # of tasks in `alone`

    def _acquire(self, _frame: FrameType) -> None:
        self._home.enter()
        task = asyncio.current_task()
        if self._depth and task is not self._task:
            raise ConsumerStateError(
                f"task '{_name(self._task)}' is using this consumer, so task '{_name(task)}' cannot: one task may use it at a "
                "time, and others may only call wakeup() and close(); give each task a consumer of its own"
            )
        self._task = task
        self._depth += 1

    def _release(self, _frame: FrameType) -> None:
        self._depth -= 1
        if not self._depth:
            self._task = None
            for waiter in self._waiters:
                waiter.tell()

    async def alone(self, timeout_ms: int) -> bool:
        """Waits until no other task is inside a call; False after `timeout_ms`."""
        if self._depth:
            waiter = Waiter()
            self._waiters.append(waiter)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout_ms / 1000):
                        await waiter
            finally:
                self._waiters.remove(waiter)
        return not self._depth


def _name(task: asyncio.Task[Any] | None) -> str:
    return "none" if task is None else task.get_name()


class Bell:
    """Wakes the one task that waits for arrivals, from any thread. Costs next to nothing while no task waits."""

    def __init__(self) -> None:
        self._waiter: Waiter | None = None

    def ring(self) -> None:
        """Ends the wait, if any. Thread-safe."""
        waiter = self._waiter
        if waiter is not None:
            waiter.tell()

    async def wait(self, has_come: Callable[[], bool], timeout_ms: int | None) -> None:
        """Waits until `ring`, at most `timeout_ms`. Does not wait if `has_come`."""
        waiter = self._waiter = Waiter()  # before `has_come`: later arrivals ring it
        try:
            if has_come():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await waiter
        finally:
            self._waiter = None
