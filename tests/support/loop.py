"""Turns of an event loop: letting one pass, and waiting until all tasks wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


async def one_turn() -> None:
    """Runs every ready callback of the loop once. Tests that wait for something use `all_wait`."""
    await asyncio.sleep(0)


async def all_wait() -> None:
    """Returns once all other tasks wait for a future, a timer, a thread or a socket, however many turns it takes."""
    loop: Any = asyncio.get_running_loop()
    while loop._ready:  # scheduled callbacks; asyncio has no public name for them
        await one_turn()


class TurnCount:
    """The number of loop turns begun."""

    def __init__(self) -> None:
        self.now = 0


@contextmanager
def counted_turns(loop: Any) -> Iterator[TurnCount]:
    """Counts the turns of a loop where they begin, since a callback has no fixed place in its turn; the loop may run in another
    thread. asyncio has no public name for a turn."""
    turns, run_once = TurnCount(), loop._run_once

    def counted() -> None:
        turns.now += 1
        run_once()

    loop._run_once = counted
    try:
        yield turns
    finally:
        del loop._run_once
