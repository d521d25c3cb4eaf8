"""Completed fetches are answered a few at a time: one append may wake ten thousand of them, and producers must not wait until the
last is served. Owners and their connections take turns, or one whose ten thousand fetches complete at once would be served before
all others. Knows nothing of responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.sharing import Caller, RoundRobin

_AT_ONCE = 16
_PATIENCE_S = 0.005

StartResponse = Callable[[], "asyncio.Task[None]"]


class ResponseQueue:
    """Starts queued responses, a few at once, and the next few when those are written.

    Starting all of them, or a few in each iteration of the event loop, would not work: gRPC reads from its sockets only when no
    finished operation is left to deliver, so a producer's request was read only after ten thousand responses were out (3 s). A
    slow response (a cold read, a client that reads slowly) delays the following ones by `patience_s` only.
    """

    def __init__(self, *, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._queued: RoundRobin[StartResponse] = RoundRobin()
        self._server: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of responses not started yet."""
        return len(self._queued)

    def put(self, caller: Caller, start: StartResponse) -> None:
        """Schedules `start` after the caller's earlier ones; it returns the task that responds. It must not raise."""
        self._queued.join(*caller, start)
        if self._server is None:
            self._server = asyncio.get_running_loop().create_task(self._serve())

    def drop(self) -> None:
        """Drops all responses not started yet."""
        self._queued.clear()

    async def _serve(self) -> None:
        try:
            while self._queued:
                started = [self._queued.pop_next()() for _ in range(min(_AT_ONCE, len(self._queued)))]
                await asyncio.wait(started, timeout=self._patience_s)
        finally:
            self._server = None
