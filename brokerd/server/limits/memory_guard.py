"""The last defence against requests that start and never finish. gRPC assembles every message before other code sees it, on each
stream that is sending one, and none of our budgets counts those bytes. So when the process uses more than max.memory.bytes, the
connections that have sent the most unfinished request bytes are closed.

A call that has started but delivered nothing costs memory too, though its bytes are few: it counts with what gRPC allocates for
it. Connections that have not completed a request for a while are closed first: honest senders are in the middle of one too, but
finish it.

The bytes that a connection has sent are compared with its finished requests periodically, not over its whole life: small errors
would add up to the size of a request, and an overestimate of finished ones would hide an unfinished one.

Pure, except for a few functions at the end that query the system. disconnect.py closes a connection.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from brokerd.config.broker import BrokerConfig
from brokerd.server.limits.disconnect import Address, Traffic, address_of

# Bytes that a connection may receive besides its requests: frames and TLS, a share of these; flow control, of what it was sent.
_OVERHEAD_SHARE = 0.005
# Overhead of each message of a stream: 40 bytes of frames and window updates, 62 with TLS; of a call, its headers too.
MESSAGE_BYTES = 96
_CALL_BYTES = 512
# Memory that gRPC and the broker use for a call that has not delivered a message.
HALF_OPEN_BYTES = 21_000
# A connection that has completed a request within this time counts as active.
_IN_USE_MS = 5_000
# Uncounted bytes are forgiven over time: health checks, pings, messages in transit when their stream was ended.
_FORGIVEN_BYTES_PER_SECOND = 512
# Fewer bytes than this are no reason to close a connection: an honest request may be in transit.
_WORTH_BYTES = 1_048_576
_PEERS_MAX = 100_000
_LOOK_INTERVAL_MS = 30_000  # about 40 us per connection, in a thread
_FRUITLESS_INTERVAL_MS = 250
_PROCESS_BYTES = 134_217_728  # an idle broker with some thousand partitions
_FETCH_ANSWER_COPIES = 2  # see max.fetch.bytes.in.flight
_STATM = "/proc/self/statm"


class RequestBytes:
    """Bytes of the requests that arrived over each connection, by peer in gRPC's notation, since last taken."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[str, int] = OrderedDict()

    def add(self, peer: str, size_bytes: int) -> None:
        """Counts the bytes of a call."""
        self.add_messages(peer, size_bytes + _CALL_BYTES)

    def add_messages(self, peer: str, size_bytes: int) -> None:
        """Counts the bytes of an open stream, including MESSAGE_BYTES for each message."""
        self._bytes[peer] = self._bytes.pop(peer, 0) + size_bytes
        if len(self._bytes) > _PEERS_MAX:  # if nobody takes them, the least recently active are dropped
            self._bytes.popitem(last=False)

    def take(self) -> Mapping[str, int]:
        """Returns all counts and starts over."""
        taken, self._bytes = self._bytes, OrderedDict()
        return taken


class Suspect(NamedTuple):
    """A connection, about how many bytes of unfinished requests are held for it, and whether it completed a request recently."""

    address: Address
    unread_bytes: int
    is_in_use: bool = False


class _Account(NamedTuple):
    """A connection as last seen."""

    received_bytes: int
    sent_bytes: int
    unread_bytes: float
    in_use_until_ms: int = 0


class UnreadBytes:
    """An estimate of the unfinished request bytes of each connection, updated from time to time.

    At each look, received bytes are added and accounted bytes subtracted, never going below zero (a cumulative sum, Page 1954):
    an overestimate of accounted bytes is gone at the next look and cannot hide a request that starts later.
    """

    def __init__(self, *, now_ms: int) -> None:
        self._accounts: dict[Address, _Account] = {}
        self._looked_ms = now_ms

    def look(
        self, connections: Iterable[Traffic], requests: Mapping[str, int], *, half_open: Mapping[str, int], now_ms: int
    ) -> list[Suspect]:
        """All connections. `requests` is what RequestBytes has counted since the last look, taken before `connections` were
        measured: bytes that arrive in between count at the next look. `half_open`: calls that have not delivered a message.
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
    """Counts by gRPC's names of clients, as counts by their addresses."""
    found: dict[Address, int] = {}
    for peer, count in counts.items():
        address = address_of(peer)
        if address is not None:
            found[address] = found.get(address, 0) + count
    return found


def _by_address(connections: Iterable[Traffic]) -> dict[Address, Traffic]:
    """Merges a client's connections from one port of its own to several of ours."""
    found: dict[Address, Traffic] = {}
    for traffic in connections:
        other = found.get(traffic.address, Traffic(traffic.address, 0, 0))
        found[traffic.address] = Traffic(
            traffic.address, traffic.received_bytes + other.received_bytes, traffic.sent_bytes + other.sent_bytes
        )
    return found


def _settled(last: _Account | None, traffic: Traffic, explained_bytes: float) -> _Account:
    if last is None or traffic.received_bytes < last.received_bytes:  # a new connection, perhaps from a reused port
        last = _Account(0, 0, 0.0)
    came_bytes = traffic.received_bytes - last.received_bytes
    flow_control_bytes = (traffic.sent_bytes - last.sent_bytes) * _OVERHEAD_SHARE
    unread_bytes = max(0.0, last.unread_bytes + came_bytes - explained_bytes - flow_control_bytes)
    return _Account(traffic.received_bytes, traffic.sent_bytes, unread_bytes, last.in_use_until_ms)


def to_end(suspects: Iterable[Suspect], *, excess_bytes: int) -> list[Suspect]:
    """The connections to close to free `excess_bytes`: inactive ones first, and of these the largest first."""
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
    """When the connections are checked: at once while memory is short, but not again soon if there was none to close, since a
    check costs milliseconds; otherwise now and then, so that accounted bytes are subtracted in time.
    """

    def __init__(self, *, now_ms: int) -> None:
        self._next_ms = now_ms
        self._next_short_ms = now_ms

    def is_due(self, *, is_short: bool, now_ms: int) -> bool:
        """True if a check is due now."""
        return now_ms >= (self._next_short_ms if is_short else self._next_ms)

    def looked(self, *, now_ms: int) -> None:
        """A check has been made."""
        self._next_ms = now_ms + _LOOK_INTERVAL_MS

    def in_vain(self, *, now_ms: int) -> None:
        """Memory was short, and there was no connection to close."""
        self._next_short_ms = now_ms + _FRUITLESS_INTERVAL_MS


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
