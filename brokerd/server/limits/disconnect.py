"""Closes clients' connections below gRPC, where a status cannot end a stream: grpc.aio servers have no cancel, and a status queues
behind the bytes that the client does not read, which stay in memory.

MemoryGuard limits memory that no budget counts, mainly incomplete requests, which gRPC assembles before other code sees them. While
the process uses more than max.memory.bytes, its connections are closed, which frees gRPC's memory for them. Clients reconnect.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

from brokerd.allocator import give_back_memory
from brokerd.config.broker import BrokerConfig

logger = logging.getLogger(__name__)

_FILES = "/proc/self/fd"
INTERVAL_MS = 50  # a local client sends a gigabyte per second; reading the resident set takes 13 us
# If memory is still short after closing all connections this many times in a row, something else uses it.
TIMES_MAX = 16
REST_MS = 60_000
_REPORT_INTERVAL_MS = 60_000
_PROCESS_BYTES = 134_217_728  # of an idle broker with some thousand partitions
_FETCH_ANSWER_COPIES = 2  # see max.fetch.bytes.in.flight
_CGROUP = "/proc/self/cgroup"
_UNIFIED = "/sys/fs/cgroup"
_LEGACY = "/sys/fs/cgroup/memory"

Read = Callable[[str], str | None]  # reads the text of a file; None = it cannot be read

Address: TypeAlias = tuple[str, int]


def disconnect(peer: str) -> int:
    """Shuts down the connection of a client (`peer` in gRPC's notation), and thereby all its streams; returns the number of
    connections. Blocks for some microseconds per open file."""
    named = address_of(peer)
    return sum(_shut_down(connection) for address, connection in _connections() if address == named)


async def disconnect_unread(peers: Collection[str]) -> None:
    """Closes the connections of clients that do not read their responses."""
    for peer in peers:
        if await asyncio.to_thread(disconnect, peer):
            logger.warning("%s does not read its responses: closing its connection", peer)


def disconnect_all(port: int) -> int:
    """Shuts down all of this process's connections to this local port, as `disconnect` does."""
    return sum(_shut_down(connection) for _, connection in _connections() if connection.getsockname()[1] == port)


def address_of(peer: str) -> Address | None:
    """The client's address as its socket reports it; None if `peer` is not a TCP connection. `peer` is a Caller's
    (`ipv4:127.0.0.1:50000`, `ipv6:[::1]:50000`)."""
    family, _, rest = peer.partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _plain(host.strip("[]")), int(port)


def _shut_down(connection: socket.socket) -> int:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed meanwhile
        return 0
    return 1


def _connections() -> Iterator[tuple[Address, socket.socket]]:
    """Every open connection, with a socket that is valid until the next iteration."""
    for descriptor in map(int, os.listdir(_FILES)):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if stat.S_ISSOCK(os.stat(descriptor).st_mode):
                # Duplicate the descriptor: its owner may close it at any time, and the number may be reused for another file.
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    name = connection.getpeername()
                    if isinstance(name, tuple) and len(name) >= 2:
                        yield (_plain(name[0]), name[1]), connection


@functools.lru_cache(maxsize=10_000)
def _plain(host: str) -> str:
    """The canonical form of an address: without scope, and IPv4 as such even if it arrived on an IPv6 socket."""
    parsed = ipaddress.ip_address(host.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


class MemoryGuard:
    """Closes the connections to `port` while more than `limit_bytes` of memory are in use."""

    def __init__(self, limit_bytes: int, port: int) -> None:
        self._limit_bytes = limit_bytes
        self._port = port
        self._times = 0  # consecutive times that connections were closed
        self._rests_until_ms = self._next_report_ms = 0

    async def look(self, *, now_ms: int) -> None:
        """Checks the memory in use; call it every INTERVAL_MS."""
        if not self._is_short():
            self._times = 0
            return
        if now_ms < self._rests_until_ms:
            return
        await asyncio.to_thread(give_back_memory)  # else resident memory includes what the allocator keeps for reuse
        if not self._is_short():
            self._times = 0
            return
        self._times += 1
        if self._times > TIMES_MAX:
            self._times, self._rests_until_ms = 0, now_ms + REST_MS
            logger.warning(
                "more than max.memory.bytes (%d) of memory are in use, and closing connections did not help: raise it, or lower "
                "other limits",
                self._limit_bytes,
            )
            return
        count = await asyncio.to_thread(disconnect_all, self._port)
        if count and now_ms >= self._next_report_ms:
            self._next_report_ms = now_ms + _REPORT_INTERVAL_MS
            logger.warning(
                "memory is short (max.memory.bytes is %d): %d connections were closed; their clients connect again",
                self._limit_bytes,
                count,
            )

    def _is_short(self) -> bool:
        return resident_bytes() > self._limit_bytes


def memory_limit_bytes(config: BrokerConfig, available_bytes: int) -> int:
    """max.memory.bytes, or its default: half of the available memory, but at least what the other limits allow, so that requests
    within them do not exceed it, and at most seven eighths, so that the system does not kill the process.
    """
    budgets_bytes = _PROCESS_BYTES + config.max_in_flight_bytes + config.max_fetch_bytes_in_flight * _FETCH_ANSWER_COPIES
    return config.max_memory_bytes or min(max(available_bytes // 2, budgets_bytes), available_bytes * 7 // 8)


def resident_bytes() -> int:
    """This process's resident set."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """The memory that this process may use: the machine's, or the lowest limit of its control groups."""
    return least_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _read)


def least_bytes(physical_bytes: int, read: Read) -> int:
    """The lowest of the machine's memory and the limits of the process's control groups. A limit applies to all groups below it."""
    texts = (read(path) for path in _limit_files(read(_CGROUP) or ""))
    limits = [int(text) for text in texts if text is not None and text.strip().isdecimal()]  # "max" = no limit
    return min([physical_bytes, *(limit for limit in limits if limit > 0)])


def _limit_files(groups: str) -> Iterator[str]:
    """The files that may hold a limit, for the process's own control groups (its /proc/PID/cgroup) and all their ancestors, in
    cgroup v1 and v2. In a container, the directory of its group is often the mount point itself."""
    for line in groups.splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            above = "/".join(["", *parts[:count]])
            if not controllers:
                # Above memory.high a group is throttled to a standstill, so for a broker it is a limit like memory.max.
                yield from (f"{_UNIFIED}{above}/memory.max", f"{_UNIFIED}{above}/memory.high")
            elif "memory" in controllers.split(","):
                yield f"{_LEGACY}{above}/memory.limit_in_bytes"


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
