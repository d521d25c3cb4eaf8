"""Decides who may have how much of something limited (bytes of memory, threads), and who is next while there is too little. Pure.

    an owner that has nothing       gets what it asks for if that is free, and if all is free, however much it asks for
    one that has some already       may have four fifths of what the others leave (shares.py)
    what waits                      goes by turns of the owners (line.py)
    one whose own share is used up  is passed by: it waits for itself
    one that has nothing            is passed by nobody: what becomes free is kept for it

So nobody fills all of it alone, whoever has little waits for one entry of each other owner at most, and nobody waits for ever. The
limit is never exceeded but by one that alone is larger.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from brokerd.sharing.line import Line
from brokerd.sharing.shares import Shares

W = TypeVar("W", bound=Hashable)


class Caller(NamedTuple):
    """Those who share with all others as one, and the connection: see `caller_of`."""

    owner: str
    peer: str


class Ticket(NamedTuple, Generic[W]):
    """The units that `waiter` asks for."""

    caller: Caller
    units: int
    waiter: W


class Room(Generic[W]):
    """The units in use of a limit, their owners, and the line of those that wait for more."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.shares = Shares(limit)
        self._line: Line[Ticket[W]] = Line()
        self._least = 0  # no ticket that may be next asks for less

    @property
    def used(self) -> int:
        """Units in use."""
        return self.shares.total

    @property
    def waiting(self) -> int:
        """The number of those who wait."""
        return len(self._line)

    @property
    def next_units(self) -> int:
        """The units that the first in line asks for; 0 if nobody waits."""
        return next((self._line.first(owner).units for owner in self._line), 0)

    def fits(self, owner: str, count: int) -> bool:
        """True if there is room for `count` units more, but for the turns of others."""
        if self.shares.count(owner):
            return self.shares.has_room(owner, count)
        return self.used + count <= self.limit or self.used <= 0

    def join(self, ticket: Ticket[W]) -> None:
        """Puts a ticket, which waits no more than once, at its place in the line; `pop` says when it is its turn."""
        self._least = min(self._least, ticket.units) if self._line else ticket.units
        self._line.join(*ticket.caller, ticket)

    def leave(self, ticket: Ticket[W]) -> bool:
        """Takes a ticket out of the line; False if it has had its turn."""
        self._least = 0
        return self._line.leave(*ticket.caller, ticket)

    def pop(self) -> Ticket[W] | None:
        """The ticket whose turn it is, with its units taken; None if nobody's is. One of no units goes if there is room for any."""
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
