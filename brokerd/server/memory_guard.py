"""The last line against requests that begin and do not end: gRPC puts every message together before anybody else sees it, on each
stream that is sending one, and no budget of ours counts those bytes. So when the process holds more than max.memory.bytes, the
connections end that have sent most without its having become a request.

Pure, but for the few functions at the end that ask the system. Ending a connection is in disconnect.py.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from brokerd.server.disconnect import Address, Traffic, address_of

# What a connection may receive beyond its requests: frames, headers, TLS; flow control for what it was sent; its beginning.
_FRAMING_SHARE = 0.02
_FLOW_CONTROL_SHARE = 0.02
_CALL_BYTES = 512
_BEGINNING_BYTES = 65_536
# Less than this is no reason to end a connection: an honest request is on its way.
_WORTH_BYTES = 1_048_576
_PEERS_MAX = 100_000
_STATM = "/proc/self/statm"
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class RequestBytes:
    """Bytes of the requests that came over each connection, by its peer as gRPC names it. The longest silent are forgotten."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[str, int] = OrderedDict()

    def add(self, peer: str, size_bytes: int) -> None:
        """A call or a stream has brought so many bytes."""
        self._bytes[peer] = self._bytes.pop(peer, 0) + size_bytes + _CALL_BYTES
        if len(self._bytes) > _PEERS_MAX:
            self._bytes.popitem(last=False)

    def by_address(self, more: Iterable[tuple[str, int]]) -> dict[Address, int]:
        """All of them, with what the streams that are open have brought so far."""
        totals: dict[Address, int] = {}
        for peer, size_bytes in [*self._bytes.items(), *more]:
            address = address_of(peer)
            if address is not None:
                totals[address] = totals.get(address, 0) + size_bytes
        return totals


class Suspect(NamedTuple):
    """A connection and about how many bytes it has sent that are no request yet."""

    address: Address
    unread_bytes: int


def to_end(connections: Iterable[Traffic], requests: Mapping[Address, int], *, excess_bytes: int) -> list[Suspect]:
    """The connections to end so that `excess_bytes` come free, those first that hold most."""
    suspects = [Suspect(traffic.address, _unread_bytes(traffic, requests.get(traffic.address, 0))) for traffic in connections]
    suspects.sort(key=lambda suspect: suspect.unread_bytes, reverse=True)
    chosen: list[Suspect] = []
    for suspect in suspects:
        if excess_bytes <= 0 or suspect.unread_bytes < _WORTH_BYTES:
            break
        chosen.append(suspect)
        excess_bytes -= suspect.unread_bytes
    return chosen


def _unread_bytes(traffic: Traffic, request_bytes: int) -> int:
    explained = request_bytes * (1 + _FRAMING_SHARE) + traffic.sent_bytes * _FLOW_CONTROL_SHARE + _BEGINNING_BYTES
    return max(0, round(traffic.received_bytes - explained))


def resident_bytes() -> int | None:
    """This process's resident set; None where the system does not tell (no /proc)."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def machine_bytes() -> int:
    """Memory that this process may hope for: the machine's, or less if its container has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            with open(path, "rb") as file:
                total = min(total, int(file.read()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return total
