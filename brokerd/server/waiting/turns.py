"""Whose request is next. Requests that are here are taken one in each turn of the event loop, principals in turn, and connections
of one principal in turn: whoever sends a thousand at once waits for them himself, and others wait for one of them at most.

After a long one, all calls that have come are taken in before the next: gRPC hands them over one by one, and a call that stands
behind a hundred others can have no turn.

What a turn is for is the work up to a handler's first await: reading the request, checking it, and most answers as a whole.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from brokerd.clock import stopwatch_ns

# A request on a stream that names more takes a turn, as all unary ones do; smaller ones pass, one of each stream at a time.
LARGE_PARTITIONS = 64

_LONG_NS = 1_000_000
_LET_IN_MAX = 256  # calls between two turns
_IDLE_LOOPS = 3  # turns of the loop in which no call has come: there is none, since gRPC's hand-over takes one or two

_Waiting = deque["asyncio.Future[None]"]


class Turns:
    """The turns of one event loop."""

    def __init__(self, now_ns: Callable[[], int] = stopwatch_ns) -> None:
        self._now_ns = now_ns
        self._is_taken = False  # the turn of this moment
        self._taken_ns = 0
        self._arrived = 0  # calls, since this was last looked at
        self._let_in = 0  # how many more may come before the next turn
        self._idle_loops = 0  # how many more must pass
        self._waiting: OrderedDict[str, OrderedDict[str, _Waiting]] = OrderedDict()  # by principal, by connection; next first

    def call_arrived(self) -> None:
        """A call has begun."""
        self._arrived += 1

    async def take(self, principal: str, peer: str) -> None:
        """Returns when it is the caller's turn: at once if nobody else has had it just now."""
        loop = asyncio.get_running_loop()
        if not self._is_taken:
            self._is_taken = True
            self._taken_ns = self._now_ns()
            loop.call_soon(self._next)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(principal, OrderedDict()).setdefault(peer, deque()).append(turn)
        await turn

    def _next(self) -> None:
        if self._waiting and self._lets_others_in():
            asyncio.get_running_loop().call_soon(self._next)
            return
        while self._waiting:
            turn = self._pop()
            if not turn.done():  # its caller is gone
                turn.set_result(None)
                self._taken_ns = self._now_ns()
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._is_taken = False

    def _lets_others_in(self) -> bool:
        arrived, self._arrived = self._arrived, 0
        if self._taken_ns:  # the turn of the loop in which that turn was
            is_long = self._now_ns() - self._taken_ns > _LONG_NS
            self._taken_ns = 0
            self._let_in, self._idle_loops = (_LET_IN_MAX, _IDLE_LOOPS) if is_long else (0, 0)
        else:
            self._let_in -= arrived
            self._idle_loops = _IDLE_LOOPS if arrived else self._idle_loops - 1
        return self._let_in > 0 and self._idle_loops > 0

    def _pop(self) -> asyncio.Future[None]:
        """Who is next; their principal and their connection come last after that, if they have more."""
        principal, connections = self._waiting.popitem(last=False)
        peer, turns = connections.popitem(last=False)
        turn = turns.popleft()
        if turns:
            connections[peer] = turns
        if connections:
            self._waiting[principal] = connections
        return turn
