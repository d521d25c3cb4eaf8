"""Turns of an event loop: letting one pass where turns are the subject of a test, and waiting until there is no more to do."""

from __future__ import annotations

import asyncio
from typing import Any


async def one_turn() -> None:
    """Everything that is ready to run in the loop runs once. Tests that wait for something take `all_wait` instead."""
    await asyncio.sleep(0)


async def all_wait() -> None:
    """Returns once all other tasks of the loop wait for a future, a timer, a thread or a socket, however many turns that takes."""
    loop: Any = asyncio.get_running_loop()
    while loop._ready:  # what is scheduled; the loop has no public name for it
        await one_turn()
