"""Calls that come to nothing: of callers who do not show who they are, of methods that there are not, taken back before their
request came, with a request that no correct client sends. Each costs the broker as much as one that does something, and what gRPC
has accepted of them stands before all that others send. So a connection of which many come, and hardly anything else, is ended.

Pure; `now_ms` is monotonic.
"""

from __future__ import annotations

from collections import OrderedDict

# A client with a wrong token, or of another version, repeats a few calls; this many at once, and so many each second, is no client.
BURST = 200
PER_SECOND = 20
_PEERS_MAX = 100_000


class FruitlessCalls:
    """How many of them each connection has made beyond its share, by its peer as gRPC names it."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, int]] = OrderedDict()  # how many, and when; the longest silent first
        self._overdue: set[str] = set()

    def add(self, peer: str, *, now_ms: int) -> None:
        """A call has come to nothing."""
        level, then_ms = self._levels.pop(peer, (0.0, now_ms))
        level = max(0.0, level - (now_ms - then_ms) * PER_SECOND / 1000) + 1
        if level > BURST:
            self._overdue.add(peer)
            return
        self._levels[peer] = level, now_ms
        if len(self._levels) > _PEERS_MAX:
            self._levels.popitem(last=False)

    def useful(self, peer: str) -> None:
        """A call was worth its while, which makes up for one that was not."""
        found = self._levels.get(peer)
        if found is not None:
            self._levels[peer] = max(0.0, found[0] - 1), found[1]

    def take_overdue(self) -> set[str]:
        """The connections to end; they are forgotten with that."""
        overdue, self._overdue = self._overdue, set()
        return overdue
