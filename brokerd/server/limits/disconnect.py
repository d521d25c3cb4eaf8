"""Connections of this process, seen from below gRPC: muting one, ending one, and what came over each. Needed where a stream cannot
be ended: gRPC for asyncio has no cancel on the server's side, and a status waits behind the very bytes that the client does not
read, which stay in memory.

Where the system does not list a process's open files, nothing is found, and nothing is ended.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

# Linux; then what macOS and the BSDs have.
_FILES = ("/proc/self/fd", "/dev/fd")
# struct tcp_info of linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received (Linux 4.1 and newer).
_TCP_INFO_BYTES = 136
_MUTED_BYTES = 1_048_576
_TCP_INFO_TRAFFIC = struct.Struct("=120xQQ")

Address: TypeAlias = tuple[str, int]


class Traffic(NamedTuple):
    """One connection and what its client has sent and been sent since it began."""

    address: Address
    received_bytes: int
    sent_bytes: int


def disconnect(peer: str) -> bool:
    """Shuts the connection of `peer`, named as gRPC does (`ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`); all its streams end.
    False if there is none (any more). Blocks for some microseconds a file that is open.
    """
    address = address_of(peer)
    return address is not None and disconnect_all({address}) == 1


def mute_all(addresses: set[Address]) -> None:
    """Has nothing more read from the connections of these clients, which stay open; where the system cannot, they are shut.

    To the one who reads a connection it is readable once so many bytes are there: more than the client sends in a while. What it
    sends meanwhile stays with the kernel, which stops it there.
    """
    for address, connection in _connections():
        if address in addresses:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MUTED_BYTES)
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) < _MUTED_BYTES:
                    connection.shutdown(socket.SHUT_RDWR)


def file_count() -> int:
    """How many files this process has open: what it costs to look for a connection."""
    return len(_descriptors())


def disconnect_all(addresses: set[Address]) -> int:
    """Shuts the connections of these clients; how many there were."""
    count = 0
    for address, connection in _connections():
        if address in addresses:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def traffic() -> list[Traffic]:
    """What came over every connection. Empty where the system does not count it."""
    found: list[Traffic] = []
    if not hasattr(socket, "TCP_INFO"):
        return found
    for address, connection in _connections():
        with contextlib.suppress(OSError, struct.error):
            sent_bytes, received_bytes = _TCP_INFO_TRAFFIC.unpack(
                connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            )
            found.append(Traffic(address, received_bytes, sent_bytes))
    return found


def address_of(peer: str) -> Address | None:
    """The client's address as a socket names it; None for what is no TCP connection."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _plain(host.strip("[]")), int(port)


def _connections() -> Iterator[tuple[Address, socket.socket]]:
    """Every connection that is open, with a socket that is good until the next is asked for."""
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if stat.S_ISSOCK(os.stat(descriptor).st_mode):
                # A descriptor of our own: the number may be closed by its owner, and given to another file, at any time.
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    name = connection.getpeername()
                    if isinstance(name, tuple) and len(name) >= 2:
                        yield (_plain(name[0]), name[1]), connection


def _descriptors() -> list[int]:
    for directory in _FILES:
        with contextlib.suppress(OSError, ValueError):
            return [int(name) for name in os.listdir(directory)]
    return []


@functools.lru_cache(maxsize=10_000)
def _plain(host: str) -> str:
    """One spelling: without a scope, and IPv4 as such also where it came in over an IPv6 socket."""
    parsed = ipaddress.ip_address(host.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
