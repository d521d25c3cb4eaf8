"""Closing connections by a peer's name or by a port, and no others."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from brokerd.server.limits.disconnect import address_of, disconnect, disconnect_all
from tests.support.wait import DEADLINE_S


@contextlib.contextmanager
def connected_pair(family: socket.AddressFamily, host: str, target: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    """(client, server) of a connection to a listener on `host`."""
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as listener:
        client = socket.create_connection((target, listener.getsockname()[1]), timeout=DEADLINE_S)
        with client, listener.accept()[0] as server:
            yield client, server


def is_open(client: socket.socket, server: socket.socket) -> bool:
    try:
        server.sendall(b"x")
        return client.recv(1) == b"x"
    except OSError:
        return False


def has_ipv6() -> bool:
    """True if this machine has an IPv6 loopback address; containers often have none."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


CONNECTIONS = [(socket.AF_INET, "127.0.0.1", "127.0.0.1", "ipv4:127.0.0.1:{}")]
if has_ipv6():
    CONNECTIONS += [
        (socket.AF_INET6, "::1", "::1", "ipv6:[::1]:{}"),
        (socket.AF_INET6, "::", "127.0.0.1", "ipv4:127.0.0.1:{}"),
    ]


@pytest.mark.parametrize(("family", "host", "target", "peer"), CONNECTIONS)
def test_the_named_connection_ends_and_the_others_stay(family: socket.AddressFamily, host: str, target: str, peer: str) -> None:
    with connected_pair(family, host, target) as named, connected_pair(family, host, target) as other:
        assert disconnect(peer.format(named[0].getsockname()[1])) == 1
        assert named[0].recv(1) == b""
        assert not is_open(*named)
        assert is_open(*other)


def test_all_connections_to_a_port_end_and_no_others() -> None:
    with (
        connected_pair(socket.AF_INET, "127.0.0.1", "127.0.0.1") as ours,
        connected_pair(socket.AF_INET, "127.0.0.1", "127.0.0.1") as other,
    ):
        assert disconnect_all(ours[1].getsockname()[1]) == 1
        assert not is_open(*ours)
        assert is_open(*other)


def test_a_client_that_is_not_there_is_no_error() -> None:
    assert disconnect("ipv4:127.0.0.1:1") == 0
    assert disconnect("unix:/x") == 0


@pytest.mark.parametrize("name", ["unix:/x", "unknown", "", "ipv4:", "ipv4:127.0.0.1:", "ipv6:[::1]:"])
def test_what_is_no_tcp_connection_has_no_address(name: str) -> None:
    assert address_of(name) is None
