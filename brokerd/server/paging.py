"""Splits long work of many small pieces in the event loop, so that other callers get turns in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from brokerd.sharing import CALLER, Turns

LISTED_MAX = 1_000
_PIECES = 200  # pieces between pauses; each takes about 10 us, such as describing one partition
_NAMES_AT_ONCE = 2_000
_NAMES_PIECES = 100  # the cost of checking _NAMES_AT_ONCE names

T = TypeVar("T")


class Pauses:
    """Counts the pieces of one call's work, and pauses it."""

    def __init__(self, turns: Turns | None = None) -> None:
        """With `turns`, a pause waits for the caller's next turn, like a new call: of all such calls of a caller, one continues per
        turn. Without `turns`, the work is the broker's own, and a pause is one iteration of the event loop.
        """
        self._turns = turns
        self._left = _PIECES

    async def after(self, pieces: int = 1) -> None:
        """Call it after each `pieces` pieces of work: returns at once, or after a pause."""
        self._left -= pieces
        if self._left > 0:
            return
        self._left = _PIECES
        if self._turns is None:
            await asyncio.sleep(0)
        else:
            await self._turns.take(CALLER.get())


async def list_page(
    known: Mapping[str, T], *, prefix: str, after: str, pauses: Pauses, is_wanted: Callable[[T], bool], add: Callable[[T], object]
) -> bool:
    """Adds the next page of wanted entries whose names have the prefix and follow `after`, by name: at most LISTED_MAX. Returns
    whether more follow. Clients determine the mapping's size, so at most a page and _NAMES_AT_ONCE names are sorted at once. May
    miss entries added or removed meanwhile."""
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
    for name in found[:LISTED_MAX]:
        await pauses.after()
        one = known.get(name)
        if one is not None:  # None: removed meanwhile
            add(one)
    return len(found) > LISTED_MAX
