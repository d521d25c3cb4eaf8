"""The blocking producer adapted to event loops: a call that would block the loop raises WouldBlockError with what to await."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from brokerd.errors import EventLoopError
from brokerd.producer.producer import Producer, open_producers
from brokerd.producer.waiting import SharedLock, Wait

T = TypeVar("T")


class WouldBlockError(EventLoopError):
    """A call would block the event loop. Awaiting `wait` gives its result."""

    def __init__(self, wait: Wait[Any]) -> None:
        super().__init__("this call would block the event loop: await the future instead of asking for its result")
        self.wait = wait


class LoopLock(SharedLock):
    """A producer's lock that never waits in a thread that runs an event loop."""

    def wait(self, wait: Wait[T]) -> T:
        """Waits; in a thread that runs an event loop, raises WouldBlockError instead."""
        if self.is_senders_thread or not _runs_a_loop():
            return super().wait(wait)
        self.refuse_fork()
        raise WouldBlockError(wait)


class Engine(Producer):
    """The blocking producer inside one aio.Producer. Its blocking `close` runs only at exit, when no event loop runs any more."""

    deadline_ms: int | None = None  # of the current call, if it has waited before

    def _new_lock(self) -> SharedLock:
        return LoopLock(self._clock)

    def _deadline_ms(self) -> int:
        return super()._deadline_ms() if self.deadline_ms is None else self.deadline_ms

    async def close_in_loop(self, timeout: float | None) -> None:  # noqa: ASYNC109 (cancelled, it does not give up)
        """As `close`, for a task; continues if the task is cancelled."""
        await self._shared.wait_in_task(self.closing(timeout))
        open_producers.discard(self)

    @property
    def shared(self) -> SharedLock:
        """The lock on which a task awaits the `wait` of a WouldBlockError."""
        return self._shared


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
