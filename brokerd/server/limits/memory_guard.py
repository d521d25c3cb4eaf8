"""The last line against requests that begin and do not end: gRPC puts every message together before anybody else sees it, on each
stream that is sending one, and no budget of ours counts those bytes. So when the process holds more than max.memory.bytes, the
connections end that have sent most without its having become a request.

A call that has begun and of which nothing comes costs memory too, though its bytes are few: it counts with what gRPC holds for it.
Those connections go first of which no request has come whole for a while: honest senders are in the middle of one too, but finish
it.

What a connection has sent and what of it is explained is compared again and again, and not over its whole life: small errors would
add up to the size of a request, and what was explained too generously would hide one.

Pure, but for the few functions at the end that ask the system. Ending a connection is in disconnect.py.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig
from brokerd.server.limits.disconnect import Address, Traffic, address_of

# What a connection may receive beyond its requests: frames and TLS, a share of these; flow control, of what it was sent.
_OVERHEAD_SHARE = 0.005
# Around each message of a stream: 40 bytes of frames and window updates, 62 under TLS; around a call its headers too.
MESSAGE_BYTES = 96
_CALL_BYTES = 512
# What gRPC and the broker hold for a call of which no message has come.
HALF_OPEN_BYTES = 21_000
# Who has sent a whole request within this time, by the looks, is in use.
_IN_USE_MS = 5_000
# What nobody counts is forgiven in time: health checks, pings, messages that were on their way when their stream was ended.
_FORGIVEN_BYTES_PER_SECOND = 512
# Less than this is no reason to end a connection: an honest request is on its way.
_WORTH_BYTES = 1_048_576
_PEERS_MAX = 100_000
_LOOK_INTERVAL_MS = 30_000  # about 40 us a connection, in a thread
_FRUITLESS_INTERVAL_MS = 250
_PROCESS_BYTES = 134_217_728  # a broker that does nothing, and some thousand partitions
_FETCH_ANSWER_COPIES = 2  # see max.fetch.bytes.in.flight
_STATM = "/proc/self/statm"


class RequestBytes:
    """Bytes of the requests that came over each connection, by its peer as gRPC names it, since they were last taken."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[str, int] = OrderedDict()

    def add(self, peer: str, size_bytes: int) -> None:
        """A call has brought so many bytes."""
        self.add_messages(peer, size_bytes + _CALL_BYTES)

    def add_messages(self, peer: str, size_bytes: int) -> None:
        """An open stream has brought so many bytes, MESSAGE_BYTES for each message among them."""
        self._bytes[peer] = self._bytes.pop(peer, 0) + size_bytes
        if len(self._bytes) > _PEERS_MAX:  # nobody takes them; the longest silent are forgotten
            self._bytes.popitem(last=False)

    def take(self) -> Mapping[str, int]:
        """All of them; counting starts over."""
        taken, self._bytes = self._bytes, OrderedDict()
        return taken


class Suspect(NamedTuple):
    """A connection and about how many bytes are held for it that are no request yet; whether it sent whole requests of late."""

    address: Address
    unread_bytes: int
    is_in_use: bool = False


class _Account(NamedTuple):
    """A connection as it was last seen."""

    received_bytes: int
    sent_bytes: int
    unread_bytes: float
    in_use_until_ms: int = 0


class UnreadBytes:
    """About how many bytes of each connection are no request yet, looked at from time to time.

    From look to look what came is added, and what is explained taken off, never below zero (a cumulative sum, Page 1954): what
    is explained too generously is gone at the next look and cannot hide a request that begins later.
    """

    def __init__(self, *, now_ms: int) -> None:
        self._accounts: dict[Address, _Account] = {}
        self._looked_ms = now_ms

    def look(
        self, connections: Iterable[Traffic], requests: Mapping[str, int], *, half_open: Mapping[str, int], now_ms: int
    ) -> list[Suspect]:
        """All connections. `requests` is what RequestBytes has counted since the last look, taken before `connections` were asked
        for: what comes in between is on its way until the next look. `half_open`: calls of which no message has come.
        """
        explained = _by_client(requests)
        calls = _by_client(half_open)
        forgiven_bytes = _FORGIVEN_BYTES_PER_SECOND * (now_ms - self._looked_ms) / 1000
        self._looked_ms = now_ms
        self._accounts = {
            address: _settled(
                self._accounts.get(address), traffic, explained.get(address, 0) * (1 + _OVERHEAD_SHARE) + forgiven_bytes
            )
            for address, traffic in _by_address(connections).items()
        }
        for address in explained.keys() & self._accounts.keys():
            self._accounts[address] = self._accounts[address]._replace(in_use_until_ms=now_ms + _IN_USE_MS)
        return [
            Suspect(
                address,
                round(account.unread_bytes) + calls.get(address, 0) * HALF_OPEN_BYTES,
                is_in_use=now_ms < account.in_use_until_ms,
            )
            for address, account in self._accounts.items()
        ]


def _by_client(counts: Mapping[str, int]) -> dict[Address, int]:
    """What is counted by gRPC's names of clients, by their addresses."""
    found: dict[Address, int] = {}
    for peer, count in counts.items():
        address = address_of(peer)
        if address is not None:
            found[address] = found.get(address, 0) + count
    return found


def _by_address(connections: Iterable[Traffic]) -> dict[Address, Traffic]:
    """A client may have connections to several ports of ours from one port of its own: together they are one."""
    found: dict[Address, Traffic] = {}
    for traffic in connections:
        other = found.get(traffic.address, Traffic(traffic.address, 0, 0))
        found[traffic.address] = Traffic(
            traffic.address, traffic.received_bytes + other.received_bytes, traffic.sent_bytes + other.sent_bytes
        )
    return found


def _settled(last: _Account | None, traffic: Traffic, explained_bytes: float) -> _Account:
    if last is None or traffic.received_bytes < last.received_bytes:  # a new connection, perhaps from where another was
        last = _Account(0, 0, 0.0)
    came_bytes = traffic.received_bytes - last.received_bytes
    flow_control_bytes = (traffic.sent_bytes - last.sent_bytes) * _OVERHEAD_SHARE
    unread_bytes = max(0.0, last.unread_bytes + came_bytes - explained_bytes - flow_control_bytes)
    return _Account(traffic.received_bytes, traffic.sent_bytes, unread_bytes, last.in_use_until_ms)


def to_end(suspects: Iterable[Suspect], *, excess_bytes: int) -> list[Suspect]:
    """The connections to end so that `excess_bytes` come free: those first that are not in use, of these those that hold most."""
    chosen: list[Suspect] = []
    for suspect in sorted(suspects, key=lambda suspect: (suspect.is_in_use, -suspect.unread_bytes)):
        if excess_bytes <= 0:
            break
        if suspect.unread_bytes < _WORTH_BYTES:
            continue
        chosen.append(suspect)
        excess_bytes -= suspect.unread_bytes
    return chosen


class LookTimes:
    """When the connections are looked at: at once while memory is short, but not soon again if there was nobody to end, since a
    look costs milliseconds; now and then while it is not, so that what is explained is not explained too late.
    """

    def __init__(self, *, now_ms: int) -> None:
        self._next_ms = now_ms
        self._next_short_ms = now_ms

    def is_due(self, *, is_short: bool, now_ms: int) -> bool:
        """True if they are to be looked at now."""
        return now_ms >= (self._next_short_ms if is_short else self._next_ms)

    def looked(self, *, now_ms: int) -> None:
        """They were looked at."""
        self._next_ms = now_ms + _LOOK_INTERVAL_MS

    def in_vain(self, *, now_ms: int) -> None:
        """Memory was short, and nobody was to be ended."""
        self._next_short_ms = now_ms + _FRUITLESS_INTERVAL_MS


def memory_limit_bytes(config: BrokerConfig, available_bytes: int) -> int:
    """max.memory.bytes, or its default: half of what there is, but room for what the other limits allow, so that requests within
    them are not to blame. Never more than seven eighths: the system would end the process.
    """
    budgets_bytes = _PROCESS_BYTES + config.max_in_flight_bytes + config.max_fetch_bytes_in_flight * _FETCH_ANSWER_COPIES
    return config.max_memory_bytes or min(max(available_bytes // 2, budgets_bytes), available_bytes * 7 // 8)


def resident_bytes() -> int | None:
    """This process's resident set; None where the system does not tell (no /proc)."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
