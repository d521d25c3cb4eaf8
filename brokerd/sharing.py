"""Fair sharing of limited resources (memory, threads, event loop turns, table slots), so that no caller exhausts them.

    Shares       slots of a limit, counted by owner
    RoundRobin   the order of waiting entries
    FairQueue    both: a limit, and the entries that wait for free units
    Budget       a FairQueue that callers of an event loop await
    Turns        turns at the event loop itself

An owner is a principal or, on a broker where all callers share one principal, a connection.

    an owner that holds nothing     gets its request if that much is free, and any amount if the whole limit is free
    an owner that holds units       may hold up to four fifths of what the other owners leave
    waiting entries                 are served by owner, round-robin
    an owner at its own share       is overtaken
    an owner that holds nothing     is never overtaken: freed units are kept for it

So no owner fills the limit alone, an owner that uses little waits for at most one entry of each other owner, and no entry starves.
Only a waiting entry larger than the whole limit may exceed the limit, and `Budget.add`, which does not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextvars import ContextVar
from typing import Generic, NamedTuple, TypeVar

from brokerd.clock import stopwatch_ns
from brokerd.errors import ResourceExhaustedError

T = TypeVar("T", bound=Hashable)

_SHARE, _OF = 4, 5
_LONG_NS = 1_000_000  # after a longer turn, new calls are admitted first
_LET_IN_MAX = 256  # calls admitted between two turns
_IDLE_LOOPS = 3  # iterations without a new call after which none is pending: gRPC delivers within two


class Caller(NamedTuple):
    """The owner that a call's resources are charged to, and the call's connection."""

    owner: str
    peer: str


BROKER = Caller("", "")  # periodic jobs and the shutdown
# The caller of the unary call that the current task serves or was started by. A stream stores its caller itself, since tasks of
# other callers start tasks for it.
CALLER: ContextVar[Caller] = ContextVar("caller", default=BROKER)


def equal_shares(wanted: Sequence[int], limit: int) -> list[int]:
    """Max-min fair shares of `limit`: small requests are met in full, and the others share the rest equally."""
    given, left = [0] * len(wanted), max(0, limit)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for position, one in enumerate(order):
        given[one] = min(wanted[one], left // (len(order) - position))
        left -= given[one]
    return given


class Shares:
    """Slots of a limit, counted by owner. An owner may hold four fifths of what the others leave: the first gets four fifths of all
    slots, a second four fifths of the rest, and so on. If a slot is free, an owner may always hold one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: dict[str, int] = {}
        self.total = 0

    def has_room(self, principal: str, count: int) -> bool:
        """True if the principal may take `count` more slots."""
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

    @contextlib.contextmanager
    def hold(self, principal: str, what: str, why: str = "", *, units: int = 1) -> Iterator[None]:
        """Holds `units` slots during the body. Raises ResourceExhaustedError, whose message has the number of `what` and ends with
        `why`, if the principal may take no more."""
        if not self.has_room(principal, units):
            raise ResourceExhaustedError(
                f"{self.total} {what}, {self.count(principal)} of them of '{principal}'{why}: try again later"
            )
        self.add(principal, units)
        try:
            yield
        finally:
            self.add(principal, -units)

    def count(self, principal: str) -> int:
        """The number of slots that the principal holds."""
        return self._counts.get(principal, 0)

    def has_average(self, principal: str) -> bool:
        """True if the principal holds at least the average of all principals that hold any."""
        return self.count(principal) * len(self._counts) >= self.total


class RoundRobin(Generic[T]):
    """A queue without duplicates: round-robin over owners, then over an owner's connections, first in first out within a
    connection. Iterates over the owners, next one first. Every operation takes constant time."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, OrderedDict[str, OrderedDict[T, None]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """The number of entries."""
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def join(self, owner: str, peer: str, entry: T) -> None:
        """Queues an entry behind the others of its connection. The entry must not be queued already."""
        self._owners.setdefault(owner, OrderedDict()).setdefault(peer, OrderedDict())[entry] = None
        self._count += 1

    def first(self, owner: str) -> T:
        """The next entry of a waiting owner, without removing it."""
        return next(iter(next(iter(self._owners[owner].values()))))

    def pop(self, owner: str) -> T:
        """Removes and returns the next entry of a waiting owner. Owner and connection move to the back if they have further
        entries."""
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
        """Removes and returns the next entry of the next owner. Raises StopIteration if the queue is empty."""
        return self.pop(next(iter(self._owners)))

    def leave(self, owner: str, peer: str, entry: T) -> bool:
        """Removes an entry from anywhere in the queue; returns False if it is not queued."""
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
    """A request by `waiter` for a number of units."""

    caller: Caller
    units: int
    waiter: T


class FairQueue(Generic[T]):
    """A limit, its units in use by owner, and the entries waiting for units."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shares = Shares(limit)
        self._line: RoundRobin[Waiting[T]] = RoundRobin()
        self._least = 0  # lower bound of the units that any possible next entry requests

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
        """The units that the next entry requests; 0 if none waits."""
        return next((self._line.first(owner).units for owner in self._line), 0)

    def fits(self, owner: str, count: int) -> bool:
        """True if the owner could take `count` more units on its turn."""
        if self.shares.count(owner):
            return self.shares.has_room(owner, count)
        return self.used + count <= self.limit or self.used <= 0

    def join(self, entry: Waiting[T]) -> None:
        """Queues an entry. The entry must not be queued already."""
        self._least = min(self._least, entry.units) if self._line else entry.units
        self._line.join(*entry.caller, entry)

    def leave(self, entry: Waiting[T]) -> bool:
        """Removes an entry; returns False if `pop` has already returned it."""
        self._least = 0
        return self._line.leave(*entry.caller, entry)

    def pop(self) -> Waiting[T] | None:
        """Takes the units of the next entry that fits, and returns the entry; None if none fits. An entry of 0 units needs one free
        unit."""
        if self.used > 0 and self.limit - self.used < max(1, self._least):
            return None  # avoids visiting each waiting owner: there may be thousands
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


class Budget(FairQueue["asyncio.Future[None]"]):
    """A limit whose callers wait in turn when it is used up. Belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.is_free = True  # no caller waits and any owner has room: cached, since every message reads it
        self._free_below = limit * _SHARE / _OF
        self.has_waiters = False

    def is_excessive(self, owner: str, times: int) -> bool:
        """True if more than `times` times the limit is in use, and the owner holds at least the average of all owners."""
        return self.used > times * self.limit and self.shares.has_average(owner)

    def add(self, owner: str, delta: int) -> None:
        """Takes units without waiting. A negative `delta` returns units and wakes the next caller that fits. A hot path."""
        self.shares.add(owner, delta)
        if self.has_waiters and delta <= 0:
            self._wake_next()
        else:
            self.is_free = self.shares.total < self._free_below and not self.has_waiters

    async def take(self, caller: Caller, count: int = 0) -> None:
        """Takes `count` units once there is room and it is the caller's turn. With `count` 0, returns once there is any room; the
        caller must `add` what it uses before its next await."""
        loop = asyncio.get_running_loop()
        entry = Waiting(caller, count, loop.create_future())
        self.join(entry)
        self._wake_next()
        try:
            if not entry.waiter.done():
                await entry.waiter
        except asyncio.CancelledError:
            if entry.waiter.cancelled():
                self.leave(entry)
                self._wake_next()
            else:
                self.add(caller.owner, -count)  # the units were already granted: pass them on
            raise

    def _wake_next(self) -> None:
        """Wakes one caller per iteration of the loop, to avoid a thundering herd."""
        while (entry := self.pop()) is not None:
            if not entry.waiter.done():
                entry.waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._wake_next)
                break
            self.shares.add(entry.caller.owner, -entry.units)  # cancelled
        self.has_waiters = self.waiting > 0
        self.is_free = self.used < self._free_below and not self.has_waiters


class Turns:
    """Turns at one event loop. Each iteration of the loop serves one waiting request, so a client that sends a thousand requests
    delays itself, and every other client by at most one. A turn covers the work up to a handler's first await: parsing, checking,
    and most responses as a whole.

    After a long turn, all calls that have arrived are admitted before the next turn: gRPC delivers calls one by one, and a call
    behind a hundred others can queue for a turn only after its delivery.
    """

    def __init__(self, now_ns: Callable[[], int] = stopwatch_ns) -> None:
        self._now_ns = now_ns
        self._is_taken = False  # this iteration's turn is taken
        self._is_handed_on = False  # the turn went to a waiting caller, which runs in the next iteration
        self._taken_ns = 0
        self.arrived = 0  # calls since the last check; incremented on receiving each call
        self._let_in = 0  # calls still to admit before the next turn
        self._idle_loops = 0  # iterations without a new call still to wait for
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

    async def take(self, caller: Caller) -> None:
        """Waits for the caller's turn; returns at once if this iteration's turn is free."""
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
            if not turn.done():  # done: its caller was cancelled
                turn.set_result(None)
                self._is_handed_on = True
                self._begin()
                return
        if self._is_handed_on:  # the waiting caller runs in this iteration, before or after this callback
            self._is_handed_on = False
            asyncio.get_running_loop().call_soon(self._next)
            return
        self._is_taken = False

    def _lets_others_in(self) -> bool:
        arrived, self.arrived = self.arrived, 0
        if self._taken_ns:  # the iteration that contained the turn
            is_long = self._now_ns() - self._taken_ns > _LONG_NS
            self._taken_ns = 0
            self._let_in, self._idle_loops = (_LET_IN_MAX, _IDLE_LOOPS) if is_long else (0, 0)
        else:
            self._let_in -= arrived
            self._idle_loops = _IDLE_LOOPS if arrived else self._idle_loops - 1
        return self._let_in > 0 and self._idle_loops > 0
