"""A limited number of places, and how many of them each principal has. Pure.

Nobody fills it: each may have at most four times as many as are left free then, so one alone gets four fifths of the places, a
second four fifths of the rest, and so on.
"""

from __future__ import annotations

from collections import Counter

_SHARE = 4  # times the free room


class Shares:
    """See the module."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counts: Counter[str] = Counter()
        self.total = 0

    def has_room(self, principal: str, count: int) -> bool:
        """True if the principal may take so many more."""
        return self._counts[principal] + count <= _SHARE * (self._limit - self.total - count)

    def add(self, principal: str, count: int) -> None:
        """Takes so many, or gives them back if negative."""
        self.total += count
        self._counts[principal] += count
        if not self._counts[principal]:
            del self._counts[principal]

    def count(self, principal: str) -> int:
        """How many the principal has."""
        return self._counts[principal]
