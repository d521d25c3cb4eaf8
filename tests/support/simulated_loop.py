"""An event loop without time, threads and sockets, whose owner decides which task goes on: `until` suspends one until its condition
holds and the owner picks it. So the same choices lead to the same schedule, and a turn costs microseconds.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

Condition = Callable[[], bool]


def always() -> bool:
    """Holds at once: others may come between all the same."""
    return True


class _Wait(NamedTuple):
    """A task that waits."""

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
        """It is the thread's running loop meanwhile."""
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(None)

    def begin(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Starts a task, which runs until it waits; within another task, soon."""
        task = self.create_task(work)
        self.settle()
        return task

    async def until(self, condition: Condition = always) -> None:
        """Returns when the condition holds, and whoever owns the loop says so."""
        wait = _Wait(condition, self.create_future())
        self._waits.append(wait)
        await wait.future

    def go_on(self, rng: random.Random) -> bool:
        """One of those whose conditions hold goes on; False if there is none."""
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
        """True if `go_on` would find one."""
        return any(wait.condition() for wait in self._waits)

    def settle(self) -> None:
        """All tasks run until they wait."""
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
        """Whatever is under way ends here."""
        for task in sorted(asyncio.all_tasks(self), key=lambda task: int(task.get_name().rpartition("-")[2])):
            task.cancel()
        self._waits.clear()
        self.settle()

    # As an event loop

    def time(self) -> float:
        """There is none."""
        return 0.0

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What goes wrong in a callback fails the schedule; the end of a task is for whoever awaits it."""
        if "never retrieved" not in context["message"]:
            raise context.get("exception") or AssertionError(context["message"])
