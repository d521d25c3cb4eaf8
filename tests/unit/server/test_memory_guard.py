"""Who is to blame for memory that no request accounts for: those who sent most without ending a request, and nobody else."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from brokerd.allocator import freed_bytes, give_back_memory, keep_freed_memory
from brokerd.server import disconnect, memory_guard
from brokerd.server.disconnect import Traffic, address_of
from brokerd.server.memory_guard import RequestBytes, machine_bytes, resident_bytes, to_end

MIB = 1_048_576
HONEST, IDLE, GREEDY, GREEDIER = (("10.0.0.1", port) for port in range(1, 5))


def test_those_who_sent_most_go_first_and_no_more_than_needed() -> None:
    connections = [
        Traffic(IDLE, 50_000, 50_000),
        Traffic(GREEDY, 20 * MIB, 0),
        Traffic(HONEST, 5_010 * MIB, 1_000),
        Traffic(GREEDIER, 30 * MIB, 0),
    ]
    requests = {HONEST: 5_000 * MIB, GREEDY: 1 * MIB}
    assert [suspect.address for suspect in to_end(connections, requests, excess_bytes=1)] == [GREEDIER]
    assert [suspect.address for suspect in to_end(connections, requests, excess_bytes=35 * MIB)] == [GREEDIER, GREEDY]
    assert [suspect.address for suspect in to_end(connections, requests, excess_bytes=999 * MIB)] == [GREEDIER, GREEDY]
    assert to_end(connections, requests, excess_bytes=0) == []


def test_flow_control_and_small_calls_are_no_unfinished_request() -> None:
    told = RequestBytes()
    for _ in range(100_000):
        told.add("ipv4:10.0.0.1:1", 20)
    # A header of a hundred bytes for each call; a window update of 13 bytes for every 4 KiB that were read.
    connections = [Traffic(HONEST, 100_000 * 120, 0), Traffic(IDLE, 13 * 2**18, 2**30)]
    assert to_end(connections, told.by_address([]), excess_bytes=10**12) == []


def test_requests_are_counted_by_connection_in_either_spelling() -> None:
    told = RequestBytes()
    told.add("ipv4:10.0.0.1:1", 1_000)
    told.add("ipv6:%5B::ffff:10.0.0.1%5D:1", 1_000)
    told.add("unix:/tmp/socket", 1_000)
    counted = told.by_address([("ipv4:10.0.0.1:1", 500), ("ipv4:10.0.0.1:2", 7)])
    assert 2_500 <= counted[HONEST] < 5_000
    assert counted[IDLE] == 7
    assert len(counted) == 2


def test_silent_connections_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_guard, "_PEERS_MAX", 2)
    told = RequestBytes()
    for port in (1, 2, 1, 3):
        told.add(f"ipv4:10.0.0.1:{port}", 1)
    assert set(told.by_address([])) == {("10.0.0.1", 1), ("10.0.0.1", 3)}


def test_the_system_counts_what_a_connection_sent() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        client.sendall(bytes(100_000))
        received = 0
        while received < 100_000:
            received += len(server.recv(65_536))
        server.sendall(bytes(7))
        assert client.recv(10) == bytes(7)
        found = {told.address: told for told in disconnect.traffic()}
        assert found[client.getsockname()].received_bytes == 100_000
        assert found[client.getsockname()].sent_bytes >= 7


def test_without_proc_nothing_is_found_and_nothing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disconnect, "_FILES", (str(tmp_path / "none"),))
    monkeypatch.setattr(memory_guard, "_STATM", str(tmp_path / "none"))
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        assert disconnect.traffic() == []
        assert not disconnect.disconnect(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
    assert resident_bytes() is None


def test_the_list_of_files_that_other_systems_have_does_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disconnect, "_FILES", (str(tmp_path / "none"), "/dev/fd"))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0],
    ):
        assert disconnect.disconnect(f"ipv4:127.0.0.1:{client.getsockname()[1]}")
        assert client.recv(1) == b""


def test_a_container_s_limit_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    limit, none = tmp_path / "memory.max", tmp_path / "other"
    limit.write_text("1000000\n")
    none.write_text("max\n")
    monkeypatch.setattr(memory_guard, "_CGROUP_LIMITS", (str(none), str(limit), str(tmp_path / "absent")))
    assert machine_bytes() == 1_000_000
    monkeypatch.setattr(memory_guard, "_CGROUP_LIMITS", ())
    assert machine_bytes() > 100_000_000


def test_freed_memory_is_not_in_use() -> None:
    keep_freed_memory()
    resident = resident_bytes()
    assert resident is not None
    assert 0 <= freed_bytes() < resident + 200_000_000
    give_back_memory()


@pytest.mark.parametrize("peer", ["unix:/x", "", "ipv4:", "ipv6:[::1]:"])
def test_what_is_no_tcp_connection_has_no_address(peer: str) -> None:
    assert address_of(peer) is None
