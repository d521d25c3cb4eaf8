"""Binds a client to the event loop that uses it first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.errors import EventLoopError


class Home:
    """The event loop of one client. `kind` is its name in errors: consumer or producer. `refuse_fork` raises in a forked child,
    which has no loop or another one."""

    def __init__(self, kind: str, refuse_fork: Callable[[], None] = lambda: None) -> None:
        self._kind = kind
        self._refuse_fork = refuse_fork
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Binds the client to the running loop. Raises EventLoopError if none runs, or not the one of the first call."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._refuse_fork()
            raise EventLoopError(
                f"this {self._kind} is brokerd.aio's and was called outside of an event loop: call it in a coroutine, or use "
                f"brokerd.{self._kind.capitalize()}, which blocks"
            ) from None
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            self._refuse_fork()
            raise EventLoopError(
                f"this {self._kind} belongs to the event loop in which it was used first, and was called in another: make one in "
                "each loop"
            )
