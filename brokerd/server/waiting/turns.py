"""Decides whose request is next. One waiting request is taken per iteration of the event loop, round-robin over principals, and
over the connections of one principal: a client that sends a thousand at once waits for them itself, and others wait for one of
them at most.

After a long one, all calls that have come are taken in before the next: gRPC hands them over one by one, and a call that stands
behind a hundred others can have no turn. And while several principals send requests, one that has used the loop rests as long as it
has used it, and longer while calls go on coming: it has half of the loop at most, and a principal that needs little finds the loop
free.

A turn covers the work up to a handler's first await: parsing the request, checking it, and most responses as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.clock import stopwatch_ns
from brokerd.sharing.line import Line

# A request on a stream that names more partitions takes a turn, as all unary ones do; smaller ones pass, one per stream at a
# time.
LARGE_PARTITIONS = 64
# So does work on so many bytes at once: copying them holds the loop for a millisecond or more.
LARGE_BYTES = 4_194_304

_LONG_NS = 1_000_000
_LET_IN_MAX = 256  # calls between two turns
_MIXED_NS = 10_000_000_000  # several principals send requests, if two did within so long
_REST_S = 0.001  # what an event loop can wait at least
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
        self._waiting: Line[asyncio.Future[None]] = Line()
        self._holder = ""  # whose turn it was last
        self.last_principal: str | None = None  # who sent the last request
        self._mixed_until_ns = 0  # several send requests
        self._used_ns: dict[str, int] = {}  # of the loop, since the last rest; by principal
        self._resting: dict[str, int] = {}  # principals, and until when
        self._is_asleep = False  # until a principal has rested

    def call_arrived(self) -> None:
        """A call has arrived."""
        self._arrived += 1

    def note(self, principal: str) -> None:
        """A request of the principal has come, be it one that takes no turn; nothing changes if it is the `last_principal`."""
        if principal != self.last_principal:
            if self.last_principal is not None:
                self._mixed_until_ns = self._now_ns() + _MIXED_NS
            self.last_principal = principal

    async def take(self, principal: str, peer: str) -> None:
        """Returns when it is the caller's turn: at once if nobody else has had it just now, and the principal need not rest."""
        self.note(principal)
        loop = asyncio.get_running_loop()
        if not self._is_taken and not self._must_rest(principal):
            self._is_taken = True
            self._begin(principal)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.join(principal, peer, turn)
        if not self._is_taken:
            self._sleep()
        await turn

    def _begin(self, principal: str) -> None:
        self._holder = principal
        self._taken_ns = self._now_ns()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        is_mixed = self._count_turn()
        if not self._waiting:
            self._is_taken = False
            return
        if not is_mixed and self._lets_others_in():
            asyncio.get_running_loop().call_soon(self._next)
            return
        while (principal := self._rested()) is not None:
            turn = self._waiting.pop(principal)
            if not turn.done():  # not if its caller is gone
                turn.set_result(None)
                self._begin(principal)
                return
        self._is_taken = False
        if self._waiting:
            self._sleep()

    def _count_turn(self) -> bool:
        """Makes the principal that had the turn rest, if it has used much of the loop and others want it. True if they do."""
        now_ns = self._now_ns()
        if now_ns >= self._mixed_until_ns:
            self._used_ns.clear()
            return False
        if self._taken_ns:
            used_ns = self._used_ns.pop(self._holder, 0) + now_ns - self._taken_ns
            self._taken_ns = 0
            if used_ns > _LONG_NS:
                self._resting[self._holder] = now_ns + used_ns
                self._let_in = _LET_IN_MAX
            else:
                self._used_ns[self._holder] = used_ns
        return True

    def _must_rest(self, principal: str) -> bool:
        until_ns = self._resting.get(principal)
        if until_ns is None:
            return False
        if self._now_ns() < until_ns:
            return True
        del self._resting[principal]
        return False

    def _rested(self) -> str | None:
        """The next principal among those that need not rest."""
        if not self._resting:
            return next(iter(self._waiting), None)
        return next((principal for principal in self._waiting if not self._must_rest(principal)), None)

    def _sleep(self) -> None:
        """All who wait must rest."""
        if not self._is_asleep:
            self._is_asleep = True
            asyncio.get_running_loop().call_later(_REST_S, self._wake)

    def _wake(self) -> None:
        self._is_asleep = False
        arrived, self._arrived = self._arrived, 0
        self._let_in -= arrived
        if self._is_taken or not self._waiting:
            return
        if arrived and self._let_in > 0:  # there may be more behind them
            self._sleep()
            return
        self._is_taken = True
        self._next()

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
