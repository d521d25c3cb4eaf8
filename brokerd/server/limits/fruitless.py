"""Calls that come to nothing: of callers who do not show who they are, of methods that there are not, taken back before their
request came, with a request that no correct client sends. Each costs the broker as much as one that does something, and what gRPC
has accepted of them stands before all that others send. So nothing more is read from a connection of which many come, and hardly
anything else, and after a while it is ended: who is cut off at once comes back at once, with as much again.

Pure; `now_ms` is monotonic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

# A client with a wrong token, or of another version, repeats a few calls; nothing legitimate exceeds this burst and this rate.
BURST = 200
PER_SECOND = 20
# All connections of a host that nothing useful has come over share another burst, at the same rate: each may have its own, so who
# opens fifty has fifty. Once it is used up, or one of them had too many by itself, each of them may make so many for a while.
SUSPECT_BURST = 30
SUSPECT_MS = 60_000
MUTED_MS = 10_000
# A large request is received and looked through before it is refused: it counts as one more call for each of these.
MORE_BYTES = 131_072
_PEERS_MAX = 100_000


class FruitlessCalls:
    """The number of fruitless calls of each connection beyond its share, by peer in gRPC's notation."""

    def __init__(self) -> None:
        self.on_overdue: Callable[[], None] = lambda: None  # called when there is something to take
        self._levels = _Levels()  # of connections
        self._strangers = _Levels()  # of hosts: of all their connections that nothing useful has come over
        self._useful: OrderedDict[str, None] = OrderedDict()  # connections that have made a useful call, oldest first
        self._suspects: OrderedDict[str, int] = OrderedDict()  # hosts, and until when; the first over first
        self._overdue: set[str] = set()
        self._muted: OrderedDict[str, int] = OrderedDict()  # and until when; the first over first

    def add(self, peer: str, request_bytes: int = 0, *, now_ms: int) -> None:
        """Counts a fruitless call, of which so many bytes were read."""
        if peer in self._overdue or peer in self._muted:
            return  # of those that gRPC had accepted before
        count = 1 + request_bytes // MORE_BYTES
        if peer not in self._useful and self._strangers.add(_host_of(peer), count, now_ms) > BURST:
            self._suspect(_host_of(peer), now_ms)
        level = self._levels.add(peer, count, now_ms)
        if level > SUSPECT_BURST and level > self._burst(peer, now_ms):
            self._overdue.add(peer)
            self._levels.forget(peer)
            self.on_overdue()

    def useful(self, peer: str) -> None:
        """Counts a useful call, which makes up for a fruitless one."""
        self._levels.make_up(peer)
        if peer not in self._useful:
            self._useful[peer] = None
            if len(self._useful) > _PEERS_MAX:
                self._useful.popitem(last=False)

    def take_overdue(self, *, now_ms: int) -> set[str]:
        """The connections of which nothing more is to be read from now on."""
        overdue, self._overdue = self._overdue, set()
        for peer in overdue:
            self._muted[peer] = now_ms + MUTED_MS
            self._suspect(_host_of(peer), now_ms)
        return overdue

    def take_ended(self, *, now_ms: int) -> set[str]:
        """The connections to end: nothing has been read from them for long enough. They are forgotten with that."""
        while self._suspects and next(iter(self._suspects.values())) <= now_ms:
            self._suspects.popitem(last=False)
        ended: set[str] = set()
        while self._muted and next(iter(self._muted.values())) <= now_ms:
            ended.add(self._muted.popitem(last=False)[0])
        return ended

    def take_muted(self) -> set[str]:
        """All connections of which nothing is read, to end them now: what has come of their requests stays in memory until then."""
        muted = set(self._muted)
        self._muted.clear()
        return muted

    def _suspect(self, host: str, now_ms: int) -> None:
        self._suspects.pop(host, None)
        self._suspects[host] = now_ms + SUSPECT_MS

    def _burst(self, peer: str, now_ms: int) -> int:
        is_suspect = self._suspects.get(_host_of(peer), now_ms) > now_ms and peer not in self._useful
        return SUSPECT_BURST if is_suspect else BURST


class _Levels:
    """How many fruitless calls somebody has made beyond the rate, by name."""

    def __init__(self) -> None:
        self._levels: OrderedDict[str, tuple[float, int]] = OrderedDict()  # (level, time); least recently used first

    def add(self, name: str, count: int, now_ms: int) -> float:
        """Counts so many more; how many there are."""
        level, then_ms = self._levels.pop(name, (0.0, now_ms))
        level = max(0.0, level - (now_ms - then_ms) * PER_SECOND / 1000) + count
        self._levels[name] = level, now_ms
        if len(self._levels) > _PEERS_MAX:
            self._levels.popitem(last=False)
        return level

    def make_up(self, name: str) -> None:
        """Takes one off."""
        found = self._levels.get(name)
        if found is not None:
            self._levels[name] = max(0.0, found[0] - 1), found[1]

    def forget(self, name: str) -> None:
        """It is zero again."""
        self._levels.pop(name, None)


def _host_of(peer: str) -> str:
    return peer.rpartition(":")[0]
