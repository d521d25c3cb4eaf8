"""Shows that an event loop keeps running while a thread is held, without looking at a clock."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.support.loop import one_turn
from tests.support.wait import DEADLINE_S

BEATS = 50


class Held:
    """A thread that is held from `hold` until freed. `timed_out` is true if it was not freed in time."""

    def __init__(self) -> None:
        self._is_free = threading.Event()
        self._is_held = threading.Event()
        self.timed_out = False

    def hold(self, *_ignored: Any) -> None:
        """Blocks; called by the thread."""
        self._is_held.set()
        self.timed_out |= not self._is_free.wait(DEADLINE_S)

    def free(self) -> None:
        """Lets the thread continue."""
        self._is_free.set()

    async def reached(self) -> None:
        """Returns once the thread is held."""
        assert await asyncio.to_thread(self._is_held.wait, DEADLINE_S)


@contextlib.asynccontextmanager
async def held(call_in_thread: Callable[[Callable[..., None]], object]) -> AsyncIterator[Held]:
    """Holds the thread in which `call_in_thread` calls a function. Afterwards asserts that the test freed it."""
    one = Held()
    call_in_thread(one.hold)
    try:
        await one.reached()
        yield one
    finally:
        one.free()
    assert not one.timed_out, "the event loop stood still until the thread went on by itself"


async def beat(turns: int = BEATS) -> None:
    """Gives all tasks turns. After many, every task that does not need the held thread has run as far as it can."""
    for _ in range(turns):
        await one_turn()


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.wait([task], timeout=DEADLINE_S)
    assert task.cancelled()
