"""Completed fetches are answered a few at a time: one append may wake ten thousand of them, and producers must not wait
until the last is served. Knows nothing of what an answer is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_AT_ONCE = 16
_PATIENCE_S = 0.005

StartAnswer = Callable[[], "asyncio.Task[None]"]


class AnswerQueue:
    """Starts queued answers in order, a few at once, and the next few when those are written.

    Starting all, or a few in each turn of the event loop, would not do: gRPC reads from its sockets only when no finished
    operation is left to hand over, so that a producer's request came in after ten thousand answers were out (3 s). An answer that
    takes long (a cold read, a client that reads slowly) holds the next ones back for a few milliseconds only.
    """

    def __init__(self) -> None:
        self._queued: deque[StartAnswer] = deque()
        self._server: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many have not been started."""
        return len(self._queued)

    def put(self, start: StartAnswer) -> None:
        """Has `start` called soon, after those queued before it; it returns the task that answers. It must not raise."""
        self._queued.append(start)
        if self._server is None:
            self._server = asyncio.get_running_loop().create_task(self._serve())

    def drop(self) -> None:
        """What has not been started never will be."""
        self._queued.clear()

    async def _serve(self) -> None:
        try:
            while self._queued:
                started = [self._queued.popleft()() for _ in range(min(_AT_ONCE, len(self._queued)))]
                await asyncio.wait(started, timeout=_PATIENCE_S)
        finally:
            self._server = None
