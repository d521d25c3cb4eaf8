"""Turns of an event loop: letting one pass, and waiting until all tasks wait. Time that passes only while it turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from brokerd.clock import Clock, SystemClock

_TICK_S, _TICK_MAX_S = 0.05, 0.2


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


@asynccontextmanager
async def steady_time() -> AsyncIterator[Clock]:
    """The time of the running loop and of the yielded clock, in which a machine that stands still for seconds, or a loop that is
    kept from turning, lasts a fifth of a second. asyncio's timers and time limits follow it; those of gRPC do not."""
    loop: Any = asyncio.get_running_loop()
    real_time: Callable[[], float] = loop.time
    read_s, lost_s = real_time(), 0.0

    def steady() -> float:
        nonlocal read_s, lost_s
        now_s = real_time()
        lost_s += max(0.0, now_s - read_s - _TICK_MAX_S)
        read_s = now_s
        return now_s - lost_s

    class Steady(SystemClock):
        def monotonic_ms(self) -> int:
            steady()
            return super().monotonic_ms() - round(lost_s * 1000)

        def boot_ms(self) -> int:
            steady()
            return super().boot_ms() - round(lost_s * 1000)

    async def tick() -> None:
        while True:  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(_TICK_S)

    loop.time = steady
    ticking = asyncio.create_task(tick())
    try:
        yield Steady()
    finally:
        ticking.cancel()
        del loop.time
