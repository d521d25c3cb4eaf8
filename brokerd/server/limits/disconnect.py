"""Closes clients' connections below gRPC, where a status cannot end a stream: servers of grpc.aio have no cancel, and a status
waits behind the very bytes that the client does not read, which stay in memory.
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
from collections.abc import Collection, Iterator
from typing import TypeAlias

logger = logging.getLogger(__name__)

_FILES = "/proc/self/fd"

Address: TypeAlias = tuple[str, int]


def disconnect(peer: str) -> int:
    """Shuts down the connection of a client, in gRPC's notation, which ends all its streams; returns the number of connections.
    Blocks for some microseconds per open file.
    """
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
    """The client's address as its socket reports it, from that of a Caller (`ipv4:127.0.0.1:50000`, `ipv6:[::1]:50000`); None if
    `peer` is not a TCP connection.
    """
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
