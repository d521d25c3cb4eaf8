"""Lets the sender's thread sleep, and any thread wake it. It is woken for news only: a thread that wakes in vain takes the
interpreter from the one that has work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Wakeup:
    """The sleep of one thread that runs an event loop. A thread that is interrupted in `set` leaves a step that comes later, and
    nothing that would hold up others.
    """

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
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile: the caller finds out that no thread serves
                loop.call_soon_threadsafe(self._event.set)

    # --- the thread's own side

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Makes the running loop of this thread the one to wake."""
        self._owner = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._loop = None

    def clear(self) -> None:
        """Clears the wake-ups so far: the thread is about to handle them."""
        self._event.clear()

    async def wait(self) -> None:
        """Sleeps until `set`."""
        await self._event.wait()
