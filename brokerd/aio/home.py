"""The event loop that a client belongs to: the one in which it is used first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.errors import EventLoopError


class Home:
    """Of one client. `kind` is its name in errors: consumer or producer. `refuse_fork` raises in a child, where no loop runs,
    or one of its own."""

    def __init__(self, kind: str, refuse_fork: Callable[[], None] = lambda: None) -> None:
        self._kind = kind
        self._refuse_fork = refuse_fork
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Raises EventLoopError in a thread that runs no event loop, or another one than before."""
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
