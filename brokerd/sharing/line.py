"""Decides who is next: owners in turn, the connections of an owner in turn, and what one connection waits for in its order. Pure.

So whoever asks for a thousand things at once waits for them alone; others wait for one of them. Every step takes the same time
however many wait, also that of an entry which leaves the middle of the line.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Line(Generic[T]):
    """Waiting entries by owner and connection, each once; iterates over the owners, next first."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, OrderedDict[str, OrderedDict[T, None]]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        """The number of entries."""
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(self._owners)

    def join(self, owner: str, peer: str, entry: T) -> None:
        """Adds an entry, which does not wait there yet, behind those of the same connection."""
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
        """Removes an entry, wherever it is in the line; False if it is not in it any more."""
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
