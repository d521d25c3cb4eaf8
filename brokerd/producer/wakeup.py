"""What the sender's thread sleeps on, and any thread wakes it by."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Wakeup:
    """Of one thread that runs an event loop. Whoever is interrupted in `set` leaves a step that comes later, and nothing that
    would hold others up."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner = 0

    def set(self) -> None:
        """Makes the thread take its next step soon."""
        loop = self._loop
        if threading.get_ident() == self._owner:
            self._event.set()
        elif loop is not None:
            with contextlib.suppress(RuntimeError):  # it has closed meanwhile: whoever posts sees that nobody serves
                loop.call_soon_threadsafe(self._event.set)

    # --- the thread's own side

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """The running loop, in this thread, is the one that sleeps here."""
        self._owner = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._loop = None

    def clear(self) -> None:
        """What was asked for so far is about to be done."""
        self._event.clear()

    async def wait(self) -> None:
        """Sleeps until `set`."""
        await self._event.wait()
