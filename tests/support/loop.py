"""Turns of an event loop: letting one pass where turns are the subject of a test, and waiting until there is no more to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


async def one_turn() -> None:
    """Everything that is ready to run in the loop runs once. Tests that wait for something take `all_wait` instead."""
    await asyncio.sleep(0)


async def all_wait() -> None:
    """Returns once all other tasks of the loop wait for a future, a timer, a thread or a socket, however many turns that takes."""
    loop: Any = asyncio.get_running_loop()
    while loop._ready:  # what is scheduled; the loop has no public name for it
        await one_turn()


class TurnCount:
    """How many turns of a loop have begun."""

    def __init__(self) -> None:
        self.now = 0


@contextmanager
def counted_turns(loop: Any) -> Iterator[TurnCount]:
    """Counts the turns of this loop, also of one that runs in another thread, where they begin: a callback has no fixed place in
    its turn. The loop has no public name for a turn.
    """
    turns, run_once = TurnCount(), loop._run_once

    def counted() -> None:
        turns.now += 1
        run_once()

    loop._run_once = counted
    try:
        yield turns
    finally:
        del loop._run_once
