"""Work of many small pieces in the event loop: after each so many of them it is somebody else's turn."""

from __future__ import annotations

import asyncio

from brokerd.server.limits.callers import current_caller, current_principal
from brokerd.server.waiting.turns import Turns

_PIECES = 200  # of about 10 us: one description of a partition


class Pauses:
    """Counts the pieces of one call."""

    def __init__(self, turns: Turns | None = None) -> None:
        """With `turns` the caller waits for its turn again, as if it had called again: however many such calls it makes, one goes
        on in one turn of the loop. Without, the work is the broker's own, and others merely go between.
        """
        self._turns = turns
        self._left = _PIECES

    async def after(self, pieces: int = 1) -> None:
        """To be awaited after so many pieces: returns at once, or once others have had their turn."""
        self._left -= pieces
        if self._left > 0:
            return
        self._left = _PIECES
        if self._turns is None:
            await asyncio.sleep(0)
        else:
            await self._turns.take(current_principal(), current_caller().peer)
