"""The ways in which a task waits for another thread. Cancelled, it leaves nothing behind: work is withdrawn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

from brokerd.waiter import Waiter

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Begun(Protocol[T_co]):
    """Work that another thread does."""

    def outcome(self) -> T_co:
        """Its result, once it has ended. Raises its error."""

    def withdraw(self) -> None:
        """Gives it up: nobody waits any more."""


async def outcome_of(begin: Callable[[Callable[[], None]], Begun[T]]) -> T:
    """Begins work, with a function to be called when it has ended, and waits for that. Withdraws it if the task is cancelled."""
    ended = Waiter()
    begun = begin(ended.tell)
    try:
        await ended
    except BaseException:
        begun.withdraw()
        raise
    return begun.outcome()


class Bell:
    """Rung by any thread when something has come; heard by one task. Costs next to nothing while no task waits."""

    def __init__(self) -> None:
        self._waiter: Waiter | None = None

    def ring(self) -> None:
        """Ends the waiting, if any; for any thread."""
        waiter = self._waiter
        if waiter is not None:
            waiter.tell()

    async def wait(self, has_come: Callable[[], bool], timeout_ms: int | None) -> None:
        """Waits until it is rung, or for `timeout_ms`; not at all if something has come already."""
        waiter = self._waiter = Waiter()  # before the look: what comes later rings
        try:
            if has_come():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                    await waiter
        finally:
            self._waiter = None
