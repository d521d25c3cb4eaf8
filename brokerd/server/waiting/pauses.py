"""Work of many small pieces in the event loop, which lets others in after each so many of them."""

from __future__ import annotations

import asyncio

_PIECES = 200  # of about 10 us: one description of a partition


class Pauses:
    """Counts the pieces of one request."""

    def __init__(self) -> None:
        self._left = _PIECES

    async def after(self, pieces: int = 1) -> None:
        """To be awaited after so many pieces: returns at once, or once the others in the loop have had their turn."""
        self._left -= pieces
        if self._left <= 0:
            self._left = _PIECES
            await asyncio.sleep(0)
