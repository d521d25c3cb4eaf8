"""A task that shows whether its event loop goes on, and a thread that is held meanwhile: no test needs to look at a clock."""

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
    """A thread that stands still from `hold` on until it is freed. `timed_out` if nobody has freed it."""

    def __init__(self) -> None:
        self._is_free = threading.Event()
        self._is_held = threading.Event()
        self.timed_out = False

    def hold(self, *_ignored: Any) -> None:
        """For the thread to call."""
        self._is_held.set()
        self.timed_out |= not self._is_free.wait(DEADLINE_S)

    def free(self) -> None:
        """Lets the thread go on."""
        self._is_free.set()

    async def reached(self) -> None:
        """Returns once the thread is held."""
        assert await asyncio.to_thread(self._is_held.wait, DEADLINE_S)


@contextlib.asynccontextmanager
async def held(call_in_thread: Callable[[Callable[..., None]], object]) -> AsyncIterator[Held]:
    """Holds a thread, which `call_in_thread` has call a function; afterwards sees that nothing but the test has freed it."""
    one = Held()
    call_in_thread(one.hold)
    try:
        await one.reached()
        yield one
    finally:
        one.free()
    assert not one.timed_out, "the event loop stood still until the thread went on by itself"


async def beat(turns: int = BEATS) -> None:
    """Gives all tasks turns; after many, each that can go on without a thread that is held has gone as far as it can."""
    for _ in range(turns):
        await one_turn()


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.wait([task], timeout=DEADLINE_S)
    assert task.cancelled()
