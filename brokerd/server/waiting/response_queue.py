"""Responses to completed fetches start a few at a time: one append may complete ten thousand fetches, and producers must not wait
for all of them. Owners and their connections take turns; otherwise one with ten thousand fetches would be served before all others.
Independent of what a response contains.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.sharing import Caller, RoundRobin

_AT_ONCE = 16
_PATIENCE_S = 0.005

StartResponse = Callable[[], "asyncio.Task[None]"]


class ResponseQueue:
    """Starts queued responses, a few at once, and the next few once those are written.

    Starting all of them, or a few in each iteration of the event loop, would not work: gRPC reads from its sockets only when no
    finished operation is left to deliver, so a producer's request was read only after ten thousand responses were out (3 s). A
    slow response (a cold read, a client that reads slowly) delays those after it by at most `patience_s`.
    """

    def __init__(self, *, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._queued: RoundRobin[StartResponse] = RoundRobin()
        self._server: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of responses not yet started."""
        return len(self._queued)

    def put(self, caller: Caller, start: StartResponse) -> None:
        """Queues `start` after the caller's earlier ones. It returns the task that responds, and must not raise."""
        self._queued.join(*caller, start)
        if self._server is None:
            self._server = asyncio.get_running_loop().create_task(self._serve())

    def drop(self) -> None:
        """Drops all responses not yet started."""
        self._queued.clear()

    async def _serve(self) -> None:
        try:
            while self._queued:
                started = [self._queued.pop_next()() for _ in range(min(_AT_ONCE, len(self._queued)))]
                await asyncio.wait(started, timeout=self._patience_s)
        finally:
            self._server = None
