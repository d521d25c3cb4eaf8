"""Ends a client's connection from the broker's side. Needed where a stream can not be ended: gRPC for asyncio has no cancel on
the server's side, and a status waits behind the very bytes that the client does not read, which stay in memory.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
from urllib.parse import unquote

_FILES = "/proc/self/fd"


def disconnect(peer: str) -> bool:
    """Shuts the connection of `peer`, named as gRPC does (`ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`); all its streams end.
    False if there is none (any more). Blocks for some microseconds a file that is open.
    """
    address = _parse(peer)
    if address is None:
        return False
    for name in os.listdir(_FILES):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                # A descriptor of our own: the number may be closed by its owner, and given to another file, at any time.
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    if _same(connection.getpeername(), address):
                        connection.shutdown(socket.SHUT_RDWR)
                        return True
    return False


def _parse(peer: str) -> tuple[str, int] | None:
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return _plain(host.strip("[]")), int(port)


def _same(name: object, address: tuple[str, int]) -> bool:
    return isinstance(name, tuple) and len(name) >= 2 and (_plain(name[0]), name[1]) == address


def _plain(host: str) -> str:
    """One spelling: without a scope, and IPv4 as such also where it came in over an IPv6 socket."""
    parsed = ipaddress.ip_address(host.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
