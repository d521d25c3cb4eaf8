"""A limited number of slots, and how many of them each principal has. Pure.

Nobody fills it: each may have four fifths of what the others leave, so one alone gets four fifths of the places, a second four
fifths of the rest, and so on; but one place, if it is free, whatever four fifths are.
"""

from __future__ import annotations

_SHARE, _OF = 4, 5


class Shares:
    """The slots and their owners; see the module docstring."""

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
