"""Decides whose request is next. One waiting request is taken per iteration of the event loop, round-robin over principals, and
over the connections of one principal: a client that sends a thousand at once waits for them itself, and others wait for one of
them at most.

After a long turn, all calls that have come are taken in before the next: gRPC hands them over one by one, and a call behind a
hundred others cannot wait for its turn before it is there.

A turn covers the work up to a handler's first await: parsing the request, checking it, and most responses as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.clock import stopwatch_ns
from brokerd.sharing import Caller, RoundRobin

# A request on a stream that names more partitions takes a turn, as all unary ones do; smaller ones pass, one per stream at a
# time.
LARGE_PARTITIONS = 64
# So does work on so many bytes at once: copying them holds the loop for a millisecond or more.
LARGE_BYTES = 4_194_304

_LONG_NS = 1_000_000
_LET_IN_MAX = 256  # calls between two turns
_IDLE_LOOPS = 3  # iterations without a new call after which none is pending, since gRPC's delivery takes one or two


class Turns:
    """The turns of one event loop."""

    def __init__(self, now_ns: Callable[[], int] = stopwatch_ns) -> None:
        self._now_ns = now_ns
        self._is_taken = False  # the current turn
        self._taken_ns = 0
        self._arrived = 0  # calls since the last check
        self._let_in = 0  # how many more are admitted before the next turn
        self._idle_loops = 0  # how many more idle iterations to wait
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

    def call_arrived(self) -> None:
        """A call has arrived."""
        self._arrived += 1

    async def take(self, caller: Caller) -> None:
        """Returns when it is the caller's turn: at once if nobody else has had it in this iteration of the loop."""
        if not self._is_taken:
            self._begin()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.join(*caller, turn)
        await turn

    def _begin(self) -> None:
        self._is_taken = True
        self._taken_ns = self._now_ns()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self._waiting and self._lets_others_in():
            asyncio.get_running_loop().call_soon(self._next)
            return
        while self._waiting:
            turn = self._waiting.pop_next()
            if not turn.done():  # not if its caller is gone
                turn.set_result(None)
                self._begin()
                return
        self._is_taken = False

    def _lets_others_in(self) -> bool:
        arrived, self._arrived = self._arrived, 0
        if self._taken_ns:  # the iteration of the loop in which that turn was
            is_long = self._now_ns() - self._taken_ns > _LONG_NS
            self._taken_ns = 0
            self._let_in, self._idle_loops = (_LET_IN_MAX, _IDLE_LOOPS) if is_long else (0, 0)
        else:
            self._let_in -= arrived
            self._idle_loops = _IDLE_LOOPS if arrived else self._idle_loops - 1
        return self._let_in > 0 and self._idle_loops > 0
