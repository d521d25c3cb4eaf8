"""The bound on memory that no budget counts, above all requests that are not complete: gRPC assembles each before other code sees
it. While the process uses more than max.memory.bytes, half of the connections are closed at a time, those first whose last complete
request is longest ago. Their clients connect again; what gRPC held for them is free.

Pure, except for the last function. background.py looks at the memory, disconnect.py closes connections.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from brokerd.config.broker import BrokerConfig
from brokerd.server.limits.disconnect import Address, address_of

_PEERS_MAX = 100_000
# After so many rounds, each of half of the connections, all that were there have been closed, and they are not to blame.
ROUNDS_MAX = 16
REST_MS = 60_000
_PROCESS_BYTES = 134_217_728  # an idle broker with some thousand partitions
_FETCH_ANSWER_COPIES = 2  # see max.fetch.bytes.in.flight
_STATM = "/proc/self/statm"


class LastRequests:
    """Connections in the order of their last complete request, by peer in gRPC's notation."""

    def __init__(self) -> None:
        self._peers: dict[str, None] = {}

    def completed(self, peer: str) -> None:
        """A request of this connection is complete. A hot path."""
        self._peers.pop(peer, None)
        self._peers[peer] = None
        if len(self._peers) > _PEERS_MAX:
            del self._peers[next(iter(self._peers))]

    def longest_silent(self, connected: Iterable[Address]) -> set[Address]:
        """Half of these connections, rounded up: first those without any complete request, then the oldest."""
        places = {address_of(peer): place for place, peer in enumerate(self._peers)}
        ordered = sorted(set(connected), key=lambda address: places.get(address, -1))
        return set(ordered[: (len(ordered) + 1) // 2])


class Rounds:
    """When to close connections while memory is short: at each look, but after ROUNDS_MAX in a row not for a while. `now_ms` is
    monotonic."""

    def __init__(self) -> None:
        self._count = 0
        self._rests_until_ms = 0

    def enough(self) -> None:
        """Memory is not short, or no longer."""
        self._count = 0

    def is_resting(self, *, now_ms: int) -> bool:
        """True while nothing is to be done."""
        return now_ms < self._rests_until_ms

    def begin(self, *, now_ms: int) -> bool:
        """Begins another round; False if there were too many, and a rest begins."""
        self._count += 1
        if self._count <= ROUNDS_MAX:
            return True
        self._count = 0
        self._rests_until_ms = now_ms + REST_MS
        return False


def memory_limit_bytes(config: BrokerConfig, available_bytes: int) -> int:
    """max.memory.bytes, or its default: half of the available memory, but at least what the other limits allow, so that requests
    within them are not blamed. Never more than seven eighths: the system would kill the process.
    """
    budgets_bytes = _PROCESS_BYTES + config.max_in_flight_bytes + config.max_fetch_bytes_in_flight * _FETCH_ANSWER_COPIES
    return config.max_memory_bytes or min(max(available_bytes // 2, budgets_bytes), available_bytes * 7 // 8)


def resident_bytes() -> int | None:
    """This process's resident set; None if the system does not report it (no /proc)."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
