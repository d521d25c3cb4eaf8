"""A connection is ended by its peer's name, and no other one with it."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

import pytest

from brokerd.server.limits.disconnect import address_of, disconnect, disconnect_all, mute_all
from tests.support.wait import DEADLINE_S, wait_until


@contextlib.contextmanager
def connected(family: socket.AddressFamily, host: str, target: str) -> Iterator[tuple[socket.socket, socket.socket]]:
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
    """True if this machine has the second version of loopback: a container often has not, and no such connection either."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


CONNECTIONS = [(socket.AF_INET, "127.0.0.1", "127.0.0.1", "ipv4:127.0.0.1:{}")]
if has_ipv6():
    CONNECTIONS += [
        (socket.AF_INET6, "::1", "::1", "ipv6:%5B::1%5D:{}"),
        (socket.AF_INET6, "::1", "::1", "ipv6:[::1]:{}"),
        (socket.AF_INET6, "::", "127.0.0.1", "ipv4:127.0.0.1:{}"),
    ]


@pytest.mark.parametrize(("family", "host", "target", "peer"), CONNECTIONS)
def test_the_named_connection_ends_and_the_others_stay(family: socket.AddressFamily, host: str, target: str, peer: str) -> None:
    with connected(family, host, target) as named, connected(family, host, target) as other:
        name = peer.format(named[0].getsockname()[1])
        assert disconnect(name)
        assert named[0].recv(1) == b""
        assert not is_open(*named)
        assert is_open(*other)


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "unix:/tmp/x", "unknown", "", "ipv4:127.0.0.1:"])
def test_a_peer_that_is_not_there_is_told(peer: str) -> None:
    assert not disconnect(peer)


def test_of_a_muted_connection_nothing_is_read_and_it_stays_open() -> None:
    with (
        connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as muted,
        connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as other,
        contextlib.closing(select.epoll()) as readable,
    ):
        for _, server in (muted, other):
            readable.register(server.fileno(), select.EPOLLIN)
        address = address_of(f"ipv4:127.0.0.1:{muted[0].getsockname()[1]}")
        assert address is not None
        mute_all({address})
        for client, _ in (muted, other):
            client.sendall(b"x" * 10_000)
        assert [number for number, _ in readable.poll(DEADLINE_S)] == [other[1].fileno()]
        other[1].recv(10_000)
        assert readable.poll(0) == []
        assert is_open(*muted), "the other direction is as before"
        assert disconnect_all({address}) == 1
        assert muted[0].recv(1) == b""


def test_what_a_muted_client_has_sent_is_never_read_even_if_it_or_the_broker_ends_the_connection() -> None:
    with (
        connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as gone,
        connected(socket.AF_INET, "127.0.0.1", "127.0.0.1") as ended,
        contextlib.closing(select.epoll()) as readable,
    ):
        addresses = {(client.getsockname()[0], client.getsockname()[1]) for client, _ in (gone, ended)}
        for client, server in (gone, ended):
            client.sendall(b"before")
            readable.register(server.fileno(), select.EPOLLIN)
        assert len(readable.poll(DEADLINE_S)) == 2
        mute_all(addresses)
        for client, _ in (gone, ended):
            client.sendall(b"after")
        gone[0].close()
        assert readable.poll(0) == [], "neither the bytes nor the end is seen"
        assert disconnect_all(addresses) == 2
        for _, server in (gone, ended):
            with contextlib.suppress(ConnectionResetError):  # the kernel may have answered already what the client sends again
                assert server.recv(100) == b""
        ended[1].close()
        wait_until(lambda: is_reset(ended[0]), what="the kernel to hear of the connection again, and to answer for us")


def is_reset(client: socket.socket) -> bool:
    """True once what the client sends is refused."""
    try:
        client.sendall(b"x")
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False
