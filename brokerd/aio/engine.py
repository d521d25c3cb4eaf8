"""The blocking producer as the tasks of an event loop use it: a call that would block the loop says what it would wait for."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from brokerd.errors import EventLoopError
from brokerd.producer.producer import Producer, open_producers
from brokerd.producer.waiting import SharedLock, Wait

T = TypeVar("T")


class WouldBlockError(EventLoopError):
    """A call would block the event loop. Its result is that of `wait`."""

    def __init__(self, wait: Wait[Any]) -> None:
        super().__init__("this call would block the event loop: await the future instead of asking for its result")
        self.wait = wait


class LoopLock(SharedLock):
    """The lock of a producer whose calls never wait in a thread that runs an event loop."""

    def wait(self, wait: Wait[T]) -> T:
        """Raises WouldBlockError in a thread that runs an event loop; in others, waits."""
        if self.is_senders_thread or not _runs_a_loop():
            return super().wait(wait)
        self.refuse_fork()
        raise WouldBlockError(wait)


class Engine(Producer):
    """Of one aio.Producer. Closed by its own close() only at exit, when no event loop runs any more."""

    deadline_ms: int | None = None  # of the call that is made now, if it has waited before

    def _new_lock(self) -> SharedLock:
        return LoopLock(self._clock)

    def _deadline_ms(self) -> int:
        return super()._deadline_ms() if self.deadline_ms is None else self.deadline_ms

    async def close_in_loop(self, timeout: float | None) -> None:  # noqa: ASYNC109 (cancelled, it does not give up)
        """`close` for a task; it goes on if the task is cancelled."""
        await self._shared.wait_in_task(self.closing(timeout))
        open_producers.discard(self)

    @property
    def shared(self) -> SharedLock:
        """Where a task waits for what a call would wait for."""
        return self._shared


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
