"""Administrative work, one at a time: what changes state runs in the event loop, what waits for the disk in a thread."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from brokerd.datadir.steps import Steps, drive
from brokerd.errors import Fate, NotReadyError
from brokerd.server.tasks import forget_end

T = TypeVar("T")
STOPPING = "the broker is stopping: try again, it or another will be back"


class Admin:
    """Lives in one event loop."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._is_stopping = False

    async def run(self, steps: Steps[T]) -> T:
        """Runs all steps. Whoever gives up waiting does not stop them in the middle. Raises what the steps raise."""
        task = asyncio.create_task(self._run(steps))
        forget_end(task)
        return await asyncio.shield(task)

    def begin_stop(self) -> None:
        """What has begun goes on; what waits for its turn, or comes from now on, is refused with NotReadyError."""
        self._is_stopping = True

    async def drain(self) -> None:
        """Returns once nothing is under way."""
        async with self._lock:
            return

    async def _run(self, steps: Steps[T]) -> T:
        async with self._lock:
            if self._is_stopping:  # hundreds may wait, and a stop has no time for them
                raise NotReadyError(STOPPING, fate=Fate.NOT_APPENDED)
            return await drive(steps, asyncio.to_thread)
