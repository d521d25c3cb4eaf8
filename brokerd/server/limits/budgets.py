"""Budgets that throttle a client instead of failing it: it waits, its stream is not read, and gRPC's flow control stops it. Knows
nothing of gRPC. Who has how much and who is next, sharing/room.py decides.

ResponseBudget is that of fetch responses held in memory: how large the next may be, and which readers are too slow. A client that
does not read keeps its response in memory for as long as it likes, and there may be thousands. So

    one half of the limit   is shared: a response gets at most a quarter of its free part, and nothing while others wait
    the other half          is for first batches: a fetch gets one however little is left, if there is room for it
    all of it used up       fetches wait their turn; of the clients that have most of it, those that have not read their response
                            for a second are disconnected

so that fast readers continue, with smaller responses, next to any number of slow ones.
"""

from __future__ import annotations

import asyncio
from typing import Generic, NamedTuple, TypeVar

from brokerd.sharing.room import Caller, Room, Ticket

_SHARE = 4
_FREE, _OF = 4, 5  # below that, everybody has room: see sharing/shares.py
# No client is disconnected sooner, however many wait: this allows for a time slice of a busy event loop, or a garbage collection.
PATIENCE_MS = 1_000

W = TypeVar("W")


class Budget:
    """Units in use against a limit, with an owner each. When it is used up, callers wait their turn. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.is_free = True  # nobody waits, and there is room for all: kept, as every message of every stream asks
        self._free_below = limit * _FREE / _OF
        self._room: Room[asyncio.Future[None]] = Room(limit)
        self._shares = self._room.shares
        self._has_waiters = False

    @property
    def waiter_count(self) -> int:
        """The number of waiting callers."""
        return self._room.waiting

    def is_excessive(self, owner: str, times: int) -> bool:
        """True if more than so many times the limit is in use, and the owner has not less than others of it."""
        return self.used > times * self.limit and self._shares.has_average(owner)

    def add(self, owner: str, delta: int) -> None:
        """Takes units without asking (or returns them, if negative); a return wakes the next that may go. A hot path."""
        self._shares.add(owner, delta)
        if self._has_waiters and delta <= 0:
            self._wake_next()
        else:
            self.used = used = self._shares.total
            self.is_free = used < self._free_below and not self._has_waiters

    async def take(self, caller: Caller, count: int = 0) -> None:
        """Takes units when there is room for them and it is the caller's turn. With none, returns once there is room: the caller
        adds what it uses before it awaits anything else.
        """
        loop = asyncio.get_running_loop()
        ticket = Ticket(caller, count, loop.create_future())
        self._room.join(ticket)
        self._wake_next()
        try:
            if not ticket.waiter.done():
                await ticket.waiter
        except asyncio.CancelledError:
            if ticket.waiter.cancelled():
                self._room.leave(ticket)
                self._wake_next()
            else:
                self.add(caller.owner, -count)  # it had its turn: passes it to the next one
            raise

    def _wake_next(self) -> None:
        """Wakes one at a time, to avoid a rush: the next has its turn when that one has gone on."""
        while (ticket := self._room.pop()) is not None:
            if not ticket.waiter.done():
                ticket.waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._wake_next)
                break
            self._shares.add(ticket.caller.owner, -ticket.units)  # cancelled
        self.used = self._shares.total
        self._has_waiters = self._room.waiting > 0
        self.is_free = self.used < self._free_below and not self._has_waiters


class _Write(NamedTuple):
    """A response that is being written."""

    owner: str
    start_ms: int
    size_bytes: int


class ResponseBudget(Budget, Generic[W]):
    """Bytes of responses being read or written, and since when each is being written. `W` identifies the writer."""

    def __init__(self, limit_bytes: int, *, write_timeout_ms: int) -> None:
        super().__init__(limit_bytes)
        self._write_timeout_ms = write_timeout_ms
        self._writes: dict[W, _Write] = {}  # oldest first

    def share(self, wanted_bytes: int) -> int:
        """How many bytes the next response may take without waiting."""
        left_bytes = self.limit // 2 - self.used if not self.waiter_count else 0
        return min(wanted_bytes, max(0, left_bytes // _SHARE))

    def begin_write(self, writer: W, owner: str, size_bytes: int, *, now_ms: int) -> None:
        """`writer` starts to write a response. It writes one at a time."""
        self._writes[writer] = _Write(owner, now_ms, size_bytes)

    def end_write(self, writer: W) -> None:
        """The response is written, or never will be."""
        self._writes.pop(writer, None)

    def overdue(self, *, now_ms: int) -> list[W]:
        """The writers whose streams must end, oldest first: all beyond the timeout; while others wait for room, as many of the
        owners with most of it as it takes to free the first half, and what the next in line waits for.
        """
        overdue: list[W] = []
        left_bytes, enough_bytes = self.used, min(self.limit // 2, self.limit - self._room.next_units)
        for writer, write in self._writes.items():
            age_ms = now_ms - write.start_ms
            if age_ms < min(PATIENCE_MS, self._write_timeout_ms):
                break
            is_needed = self.waiter_count > 0 and age_ms >= PATIENCE_MS and left_bytes > enough_bytes
            if age_ms >= self._write_timeout_ms or (is_needed and self._shares.has_average(write.owner)):
                overdue.append(writer)
                left_bytes -= write.size_bytes
        return overdue
