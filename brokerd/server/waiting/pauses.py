"""Work of many small pieces in the event loop: after a number of them it is another caller's turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from brokerd.sharing import CALLER, Turns

LISTED_MAX = 1_000
_PIECES = 200  # of about 10 us: one description of a partition
_NAMES_AT_ONCE = 2_000
_NAMES_PIECES = 100  # what looking at so many names costs

T = TypeVar("T")


class Pauses:
    """Counts the pieces of one call."""

    def __init__(self, turns: Turns | None = None) -> None:
        """With `turns` the caller waits for its turn again, as if it had called again: however many such calls it makes, one goes
        on in one turn of the loop. Without, the work is the broker's own, and others merely go between.
        """
        self._turns = turns
        self._left = _PIECES

    async def after(self, pieces: int = 1) -> None:
        """Await it after so many pieces: returns at once, or once others have had their turn."""
        self._left -= pieces
        if self._left > 0:
            return
        self._left = _PIECES
        if self._turns is None:
            await asyncio.sleep(0)
        else:
            await self._turns.take(CALLER.get())


class Page(NamedTuple):
    """Names, in order; `more`: there are others after the last one."""

    names: list[str]
    more: bool


async def page_of(known: Mapping[str, T], *, prefix: str, after: str, pauses: Pauses, is_wanted: Callable[[T], bool]) -> Page:
    """The next names with a prefix, of a list whose length its caller decides. Never sorts more than a page and a piece. Names that
    are added or removed meanwhile may be left out."""
    found: list[str] = []
    names = list(known)
    for begin in range(0, len(names), _NAMES_AT_ONCE):
        piece = [
            name
            for name in names[begin : begin + _NAMES_AT_ONCE]
            if name > after and name.startswith(prefix) and (one := known.get(name)) is not None and is_wanted(one)
        ]
        found = sorted(found + piece)[: LISTED_MAX + 1]
        await pauses.after(_NAMES_PIECES)
    return Page(found[:LISTED_MAX], len(found) > LISTED_MAX)
