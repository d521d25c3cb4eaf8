"""Connections of this process, seen from below gRPC: muting one, ending one, and what came over each. Needed where a stream cannot
be ended: gRPC for asyncio has no cancel on the server's side, and a status waits behind the very bytes that the client does not
read, which stay in memory.

If the system does not list a process's open files, nothing is found and nothing is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import ipaddress
import os
import socket
import stat
import struct
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

# Linux; then macOS and the BSDs.
_FILES = ("/proc/self/fd", "/dev/fd")
# struct tcp_info of linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received (Linux 4.1 and newer).
_TCP_INFO_BYTES = 136
_MUTED_BYTES = 1_048_576
_PIECE_BYTES = 65_536
# asm-generic/socket.h and linux/filter.h. A program for the kernel: of every packet, keep no byte.
_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
_DROP_ALL_CODE = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
_DROP_ALL = struct.pack("HP", 1, ctypes.addressof(_DROP_ALL_CODE))
_TCP_INFO_TRAFFIC = struct.Struct("=120xQQ")

Address: TypeAlias = tuple[str, int]


class Traffic(NamedTuple):
    """One connection, and the bytes sent in each direction since it was opened."""

    address: Address
    received_bytes: int
    sent_bytes: int


def disconnect(peer: str) -> bool:
    """Shuts down the connection of `peer`, in gRPC's notation (`ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`); all its streams
    end. Returns False if there is none. Blocks for some microseconds per open file.
    """
    address = address_of(peer)
    return address is not None and disconnect_all({address}) == 1


def mute_all(addresses: set[Address]) -> None:
    """Has nothing more read from the connections of these clients, which stay open; where the system cannot, they are shut.

    The kernel drops whatever comes from then on, also the end of the connection: what it had taken in would be read then, and when
    the connection is ended. The client sees one that has stopped moving.
    """
    for address, connection in _connections():
        if address in addresses:
            try:
                connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _DROP_ALL)
                while connection.recv(_PIECE_BYTES, socket.MSG_DONTWAIT):
                    pass
            except BlockingIOError:
                pass  # nothing is left
            except OSError:
                _raise_low_water(connection)


def _raise_low_water(connection: socket.socket) -> None:
    """To the one who reads it, the connection is readable once so many bytes are there: more than the client sends in a while. What
    it sends meanwhile stays with the kernel, which stops it there.
    """
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, _MUTED_BYTES)
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) < _MUTED_BYTES:
            connection.shutdown(socket.SHUT_RDWR)


def file_count() -> int:
    """How many files this process has open: what it costs to look for a connection."""
    return len(_descriptors())


def disconnect_all(addresses: set[Address]) -> int:
    """Shuts down the connections of these clients; returns how many there were."""
    count = 0
    for address, connection in _connections():
        if address in addresses:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
            with contextlib.suppress(OSError):  # most were not muted
                connection.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    return count


def traffic() -> list[Traffic]:
    """The traffic of every connection. Empty if the system does not count it."""
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
    """The client's address as a socket reports it; None if `peer` is not a TCP connection."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _plain(host.strip("[]")), int(port)


def _connections() -> Iterator[tuple[Address, socket.socket]]:
    """Every open connection, with a socket that is valid until the next one is requested."""
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if stat.S_ISSOCK(os.stat(descriptor).st_mode):
                # A duplicated descriptor: the owner may close the number at any time, and it may be reused for another file.
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
    """The canonical spelling: without a scope, and IPv4 as such even if it arrived over an IPv6 socket."""
    parsed = ipaddress.ip_address(host.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
