"""How a task waits for another thread. If the task is cancelled, the work is withdrawn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from brokerd.waiter import Waiter

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Begun(Protocol[T_co]):
    """Work in another thread."""

    def outcome(self) -> T_co:
        """Returns the result of work that has ended, or raises its error."""

    def withdraw(self) -> None:
        """Cancels the work: its result is no longer wanted."""


async def outcome_of(begin: Callable[[Callable[[], None]], Begun[T]]) -> T:
    """Begins work, passing a callback for its end, and waits for it. Withdraws it if the task is cancelled."""
    ended = Waiter()
    begun = begin(ended.tell)
    try:
        await ended
    except BaseException:
        begun.withdraw()
        raise
    return begun.outcome()


class Bell:
    """Any thread rings it when something arrives; one task waits for it. Costs next to nothing while no task waits."""

    def __init__(self) -> None:
        self._waiter: Waiter | None = None

    def ring(self) -> None:
        """Ends the wait, if any; thread-safe."""
        waiter = self._waiter
        if waiter is not None:
            waiter.tell()

    async def wait(self, has_come: Callable[[], bool], timeout_ms: int | None) -> None:
        """Waits until it is rung, at most `timeout_ms`; not at all if `has_come`."""
        waiter = self._waiter = Waiter()  # before `has_come`: later arrivals ring it
        try:
            if has_come():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await waiter
        finally:
            self._waiter = None
