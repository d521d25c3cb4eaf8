"""How callers share what is scarce (memory, threads, turns, places in a table), so that none takes what all need.

    Shares       how much of a limit an owner may have
    RoundRobin   who is next
    FairQueue    both: who may have how much, and who is next while there is too little
    Budget       a FairQueue that callers of an event loop await
    Turns        the turns at the event loop itself

An owner is a principal; where everybody is the same principal, a connection.

    an owner that has nothing        gets what it asks for if that is free, and if all is free, however much it asks for
    one that has some already        may have four fifths of what the others leave
    waiting entries                  go by turns of the owners
    one whose own share is used up   is overtaken: it waits for itself
    one that has nothing             is never overtaken: what becomes free is kept for it

So nobody fills all of it alone, an owner with little waits for one entry of each other owner at most, and nobody waits for ever.
The limit is never exceeded except by an entry that is larger by itself.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import Generic, NamedTuple, TypeVar

from brokerd.clock import stopwatch_ns

T = TypeVar("T", bound=Hashable)

_SHARE, _OF = 4, 5
_LONG_NS = 1_000_000  # a turn after which calls are let in
_LET_IN_MAX = 256  # calls between two turns
_IDLE_LOOPS = 3  # iterations without a new call after which none is pending, since gRPC's delivery takes one or two


class Caller(NamedTuple):
    """The one who pays for a call: the owner of all that it uses, and its connection."""

    owner: str
    peer: str


BROKER = Caller("", "")  # periodic jobs, and a stop
# The caller of the unary call that a task belongs to, and of tasks that it starts. A stream carries its caller itself: others start
# tasks for it.
CALLER: ContextVar[Caller] = ContextVar("caller", default=BROKER)


class Shares:
    """A limited number of slots and their owners. Each owner may have four fifths of what the others leave, so one alone gets four
    fifths of the slots, a second four fifths of the rest, and so on; but one slot, if it is free, whatever four fifths are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}
        self.total = 0

    def has_room(self, principal: str, count: int) -> bool:
        """True if the principal may take `count` more."""
        has = self.count(principal)
        left_by_others = self._limit - self.total + has
        return has + count <= max(min(1, left_by_others), left_by_others * _SHARE // _OF)

    def add(self, principal: str, count: int) -> None:
        """Takes `count` slots, or returns them if negative."""
        self.total += count
        has = self._counts.get(principal, 0) + count
        if has:
            self._counts[principal] = has
        else:
            self._counts.pop(principal, None)

    def count(self, principal: str) -> int:
        """The number of slots that the principal has."""
        return self._counts.get(principal, 0)

    def has_average(self, principal: str) -> bool:
        """True if the principal has as many slots as those who have any have on average, or more."""
        return self.count(principal) * len(self._counts) >= self.total


class RoundRobin(Generic[T]):
    """Waiting entries, each once: owners in turn, the connections of an owner in turn, and those of one connection in their order.
    Iterates over the owners, next first. Every step takes the same time however many wait.
    """

    def __init__(self) -> None:
        self._owners: OrderedDict[str, OrderedDict[str, OrderedDict[T, None]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """The number of entries."""
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def join(self, owner: str, peer: str, entry: T) -> None:
        """Adds an entry, which is not waiting yet, after those of the same connection."""
        self._owners.setdefault(owner, OrderedDict()).setdefault(peer, OrderedDict())[entry] = None
        self._count += 1

    def first(self, owner: str) -> T:
        """The next entry of an owner that waits."""
        return next(iter(next(iter(self._owners[owner].values()))))

    def pop(self, owner: str) -> T:
        """Removes the next entry of an owner that waits; the owner and the connection come last after that, if they have more."""
        connections = self._owners.pop(owner)
        peer, entries = connections.popitem(last=False)
        entry, _ = entries.popitem(last=False)
        if entries:
            connections[peer] = entries
        if connections:
            self._owners[owner] = connections
        self._count -= 1
        return entry

    def pop_next(self) -> T:
        """Removes the next entry of all. Raises StopIteration if there is none."""
        return self.pop(next(iter(self._owners)))

    def leave(self, owner: str, peer: str, entry: T) -> bool:
        """Removes an entry, wherever it is; False if it is gone already."""
        connections = self._owners.get(owner, OrderedDict())
        entries = connections.get(peer)
        if entries is None or entry not in entries:
            return False
        del entries[entry]
        if not entries:
            del connections[peer]
        if not connections:
            del self._owners[owner]
        self._count -= 1
        return True

    def clear(self) -> None:
        """Removes all entries."""
        self._owners.clear()
        self._count = 0


class Waiting(NamedTuple, Generic[T]):
    """The units that `waiter` asks for."""

    caller: Caller
    units: int
    waiter: T


class FairQueue(Generic[T]):
    """The units in use of a limit, their owners, and the entries that wait for more."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shares = Shares(limit)
        self._line: RoundRobin[Waiting[T]] = RoundRobin()
        self._least = 0  # no entry that may be next asks for less

    @property
    def used(self) -> int:
        """Units in use."""
        return self.shares.total

    @property
    def waiting(self) -> int:
        """The number of waiting entries."""
        return len(self._line)

    @property
    def next_units(self) -> int:
        """The units that the next entry asks for; 0 if nobody waits."""
        return next((self._line.first(owner).units for owner in self._line), 0)

    def fits(self, owner: str, count: int) -> bool:
        """True if there is room for `count` more units, were it the owner's turn."""
        if self.shares.count(owner):
            return self.shares.has_room(owner, count)
        return self.used + count <= self.limit or self.used <= 0

    def join(self, entry: Waiting[T]) -> None:
        """Adds an entry, which is not waiting yet; `pop` returns it when it is its turn."""
        self._least = min(self._least, entry.units) if self._line else entry.units
        self._line.join(*entry.caller, entry)

    def leave(self, entry: Waiting[T]) -> bool:
        """Removes an entry; False if it has had its turn."""
        self._least = 0
        return self._line.leave(*entry.caller, entry)

    def pop(self) -> Waiting[T] | None:
        """The entry whose turn it is, with its units taken, or None. One of no units goes if there is room for any."""
        if self.used > 0 and self.limit - self.used < max(1, self._least):
            return None  # without a look at each owner in line: there may be thousands
        least = self.limit
        for owner in self._line:
            count = self._line.first(owner).units
            if self.fits(owner, max(1, count)):
                self.shares.add(owner, count)
                self._least = 0
                return self._line.pop(owner)
            least = min(least, count)
            if not self.shares.count(owner):
                break
        self._least = least
        return None


class Budget:
    """Units in use against a limit, with an owner each. When it is used up, callers wait their turn. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.is_free = True  # nobody waits, and there is room for all: kept, as every message of every stream asks
        self._free_below = limit * _SHARE / _OF
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(limit)
        self._shares = self._queue.shares
        self._has_waiters = False

    @property
    def waiter_count(self) -> int:
        """The number of waiting callers."""
        return self._queue.waiting

    @property
    def next_units(self) -> int:
        """The units that the next caller waits for; 0 if nobody waits."""
        return self._queue.next_units

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
        entry = Waiting(caller, count, loop.create_future())
        self._queue.join(entry)
        self._wake_next()
        try:
            if not entry.waiter.done():
                await entry.waiter
        except asyncio.CancelledError:
            if entry.waiter.cancelled():
                self._queue.leave(entry)
                self._wake_next()
            else:
                self.add(caller.owner, -count)  # it had its turn: passes it to the next one
            raise

    def _wake_next(self) -> None:
        """Wakes one at a time, to avoid a rush: the next has its turn when that one has gone on."""
        while (entry := self._queue.pop()) is not None:
            if not entry.waiter.done():
                entry.waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._wake_next)
                break
            self._shares.add(entry.caller.owner, -entry.units)  # cancelled
        self.used = self._shares.total
        self._has_waiters = self._queue.waiting > 0
        self.is_free = self.used < self._free_below and not self._has_waiters


class Turns:
    """Turns at one event loop: one waiting request is taken per iteration, so a client that sends a thousand at once waits for them
    itself, and others wait for one of them at most. A turn covers the work up to a handler's first await: parsing the request,
    checking it, and most responses as a whole.

    After a long turn, all calls that have come are taken in before the next: gRPC hands them over one by one, and a call behind a
    hundred others cannot wait for its turn before it is there.
    """

    def __init__(self, now_ns: Callable[[], int] = stopwatch_ns) -> None:
        self._now_ns = now_ns
        self._is_taken = False  # the current turn
        self._taken_ns = 0
        self.arrived = 0  # calls since the last check: whoever takes in a call adds one
        self._let_in = 0  # how many more are admitted before the next turn
        self._idle_loops = 0  # how many more idle iterations to wait
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

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
        arrived, self.arrived = self.arrived, 0
        if self._taken_ns:  # the iteration of the loop in which that turn was
            is_long = self._now_ns() - self._taken_ns > _LONG_NS
            self._taken_ns = 0
            self._let_in, self._idle_loops = (_LET_IN_MAX, _IDLE_LOOPS) if is_long else (0, 0)
        else:
            self._let_in -= arrived
            self._idle_loops = _IDLE_LOOPS if arrived else self._idle_loops - 1
        return self._let_in > 0 and self._idle_loops > 0
