"""Admits one task at a time to a consumer; other tasks may only wake and close it."""

from __future__ import annotations

import asyncio
import contextlib
from types import FrameType
from typing import Any

from brokerd.aio.home import Home
from brokerd.consumer.guard import Guard
from brokerd.errors import ConsumerStateError
from brokerd.waiter import Waiter


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
