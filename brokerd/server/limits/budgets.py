"""Budgets that throttle a reader instead of failing it: it waits, its stream is not read, and gRPC's flow control stops the
client. Knows nothing of gRPC.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class ByteBudget:
    """Bytes in use against a limit. When it is used up, callers wait in order of arrival."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0  # may exceed the limit by what was admitted last
        self.is_used_up = limit_bytes <= 0  # no room: kept by `add`, as every message of every stream asks
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def waiter_count(self) -> int:
        """The number of waiting callers."""
        return len(self._waiters)

    def add(self, delta_bytes: int) -> None:
        """Takes bytes (or returns them, if negative) and wakes the first waiter if there is room."""
        self.used_bytes += delta_bytes
        self.is_used_up = self.used_bytes >= self.limit_bytes
        if self._waiters:
            self._wake_next()

    async def wait_for_room(self) -> None:
        """Returns once there is room. Does not take bytes: the caller must, before it awaits anything else."""
        loop = asyncio.get_running_loop()
        queue = self._waiters.append
        while self.is_used_up:
            waiter: asyncio.Future[None] = loop.create_future()
            queue(waiter)
            queue = self._waiters.appendleft  # woken, but the room was taken meanwhile: stays first in line
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.cancelled():
                    with contextlib.suppress(ValueError):
                        self._waiters.remove(waiter)
                else:
                    self._wake_next()  # it had its turn: pass it to the next one
                raise
        # One waiter is woken at a time, to avoid a rush; each that proceeds wakes the next.
        loop.call_soon(self._wake_next)

    def _wake_next(self) -> None:
        while self._waiters and not self.is_used_up:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
