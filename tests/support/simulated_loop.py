"""An event loop without time, threads or sockets. Its owner decides which task continues: `until` suspends a task until its
condition holds and the owner picks it. Equal choices give equal schedules, and a turn costs microseconds."""

from __future__ import annotations

import asyncio
import random
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

Condition = Callable[[], bool]


def always() -> bool:
    """Always true, for `until` calls that only give other tasks a turn."""
    return True


class _Wait(NamedTuple):
    """A suspended task."""

    condition: Condition
    future: asyncio.Future[None]


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self._waits: list[_Wait] = []
        self._is_settling = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Makes this the thread's running loop."""
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(None)

    def begin(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Starts a task and runs it until it suspends; if called by a task, the new one runs soon after."""
        task = self.create_task(work)
        self.settle()
        return task

    async def until(self, condition: Condition = always) -> None:
        """Suspends the caller until the condition holds and the loop's owner picks it."""
        wait = _Wait(condition, self.create_future())
        self._waits.append(wait)
        await wait.future

    def go_on(self, rng: random.Random) -> bool:
        """Continues one task whose condition holds, chosen at random; False if there is none."""
        ready = [wait for wait in self._waits if wait.condition()]
        if not ready:
            return False
        wait = rng.choice(ready)
        self._waits.remove(wait)
        if not wait.future.done():
            wait.future.set_result(None)
        self.settle()
        return True

    @property
    def is_waiting_for_turn(self) -> bool:
        """True if `go_on` would continue a task."""
        return any(wait.condition() for wait in self._waits)

    def settle(self) -> None:
        """Runs all tasks until they suspend."""
        if self._is_settling:
            return
        self._is_settling = True
        ready: Any = self._ready  # type: ignore[attr-defined]
        try:
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            self._is_settling = False

    def cancel_all(self) -> None:
        """Cancels all tasks."""
        for task in sorted(asyncio.all_tasks(self), key=lambda task: int(task.get_name().rpartition("-")[2])):
            task.cancel()
        self._waits.clear()
        self.settle()

    # As an event loop

    def time(self) -> float:
        """Always 0: there is no time."""
        return 0.0

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception in a callback fails the schedule. A task's unretrieved exception is left to the task's owner."""
        if "never retrieved" not in context["message"]:
            raise context.get("exception") or AssertionError(context["message"])
