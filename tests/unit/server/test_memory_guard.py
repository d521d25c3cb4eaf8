"""Blame for memory that no request accounts for: those who sent most without ending a request, and nobody else."""

from __future__ import annotations

import ctypes
import socket
from pathlib import Path

import pytest

from brokerd.allocator import give_back_memory, keep_freed_memory
from brokerd.config.broker import BrokerConfig
from brokerd.config.settings import from_mapping
from brokerd.server.limits import disconnect, memory_guard
from brokerd.server.limits.disconnect import Address, Traffic, address_of
from brokerd.server.limits.memory_guard import (
    MESSAGE_BYTES,
    LookTimes,
    RequestBytes,
    Suspect,
    UnreadBytes,
    memory_limit_bytes,
    resident_bytes,
    to_end,
)

MIB = 1_048_576
LOOK_MS = 10_000
HONEST, IDLE, GREEDY, GREEDIER = (("10.0.0.1", port) for port in range(1, 5))


def peer(address: Address) -> str:
    """As gRPC names it."""
    return f"ipv4:{address[0]}:{address[1]}"


class Connection:
    """One client, seen by the kernel and by the broker."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.received_bytes = 20_000
        self.sent_bytes = 0
        self.half_open = 0
        self.requests = RequestBytes()

    def message(self, size_bytes: int, *, count: int = 1, overhead_bytes: int = 40) -> None:
        """Messages of one stream come, whole."""
        self.received_bytes += count * (size_bytes + overhead_bytes)
        self.requests.add_messages(peer(self.address), count * (size_bytes + MESSAGE_BYTES))


class Guard:
    """Looks at connections as the broker does."""

    def __init__(self, *connections: Connection) -> None:
        self._connections = connections
        self._unread_bytes = UnreadBytes(now_ms=0)
        self._now_ms = 0

    def suspects(self, *, after_ms: int = LOOK_MS) -> dict[Address, int]:
        """The connections that would be closed now, and for how many bytes."""
        self._now_ms += after_ms
        requests = {name: size for connection in self._connections for name, size in connection.requests.take().items()}
        traffic = [Traffic(one.address, one.received_bytes, one.sent_bytes) for one in self._connections]
        half_open = {peer(one.address): one.half_open for one in self._connections}
        looked = self._unread_bytes.look(traffic, requests, half_open=half_open, now_ms=self._now_ms)
        return {suspect.address: suspect.unread_bytes for suspect in to_end(looked, excess_bytes=10**12)}


def test_those_who_sent_most_go_first_and_no_more_than_needed() -> None:
    suspects = [Suspect(IDLE, 0), Suspect(GREEDY, 20 * MIB), Suspect(HONEST, 1 * MIB - 1), Suspect(GREEDIER, 30 * MIB)]
    assert [suspect.address for suspect in to_end(suspects, excess_bytes=1)] == [GREEDIER]
    assert [suspect.address for suspect in to_end(suspects, excess_bytes=35 * MIB)] == [GREEDIER, GREEDY]
    assert [suspect.address for suspect in to_end(suspects, excess_bytes=999 * MIB)] == [GREEDIER, GREEDY]
    assert to_end(suspects, excess_bytes=0) == []


def test_many_small_messages_of_one_stream_are_no_unfinished_request() -> None:
    plain, encrypted = Connection(HONEST), Connection(IDLE)
    guard = Guard(plain, encrypted)
    for _ in range(1_000):
        plain.message(20, count=10_000)
        encrypted.message(300, count=10_000, overhead_bytes=90)
        assert guard.suspects() == {}


def test_flow_control_and_small_calls_are_no_unfinished_request() -> None:
    caller, reader = Connection(HONEST), Connection(IDLE)
    guard = Guard(caller, reader)
    for _ in range(100_000):
        caller.received_bytes += 120  # a header of a hundred bytes for each call
        caller.requests.add(peer(HONEST), 20)
    reader.received_bytes += 13 * 2**18  # a window update for every 4 KiB that were read
    reader.sent_bytes += 2**30
    assert guard.suspects() == {}


def test_a_health_check_every_second_is_no_unfinished_request() -> None:
    prober = Connection(HONEST)
    guard = Guard(prober)
    for _ in range(7 * 24 * 360):
        prober.received_bytes += 10 * 200
        assert guard.suspects() == {}
    prober.received_bytes += 17 * MIB
    assert guard.suspects()[HONEST] > 16 * MIB, "forgiven, but not in advance"


def test_one_large_request_is_suspect_until_it_is_whole() -> None:
    sender = Connection(GREEDY)
    guard = Guard(sender)
    for second in range(1, 18):
        sender.received_bytes += MIB
        assert sum(guard.suspects(after_ms=1_000).values()) >= (second - 1) * MIB
    assert guard.suspects(after_ms=3_600_000)[GREEDY] > 14 * MIB, "that nothing comes any more is no excuse"
    sender.requests.add_messages(peer(GREEDY), 17 * MIB)
    assert guard.suspects() == {}


def test_a_request_that_does_not_end_is_found_beside_streams_that_work() -> None:
    sender, other = Connection(GREEDY), Connection(HONEST)
    guard = Guard(sender, other)
    for second in range(60):
        for one in (sender, other):
            one.message(MIB)
            one.message(20, count=1_000)
        sender.received_bytes += MIB if second < 17 else 0
        assert set(guard.suspects(after_ms=1_000)) <= {GREEDY}
    assert guard.suspects()[GREEDY] > 10 * MIB


def test_what_was_explained_too_well_before_hides_nothing() -> None:
    sender = Connection(GREEDY)
    guard = Guard(sender)
    for _ in range(100):
        sender.message(0, count=10_000)
        sender.message(100 * MIB)
        assert guard.suspects() == {}
    sender.received_bytes += 17 * MIB
    assert guard.suspects()[GREEDY] > 16 * MIB


def test_a_connection_from_where_another_was_starts_anew() -> None:
    first = Connection(GREEDY)
    guard = Guard(first)
    first.message(100 * MIB)
    assert guard.suspects() == {}
    first.received_bytes = 17 * MIB
    assert guard.suspects()[GREEDY] > 16 * MIB
    first.received_bytes = 20_000
    assert guard.suspects() == {}


@pytest.mark.parametrize("order", [1, -1])
def test_another_connection_from_the_same_port_hides_nothing(order: int) -> None:
    of_metrics, of_records = Connection(GREEDY), Connection(GREEDY)
    guard = Guard(*[of_metrics, of_records][::order])
    assert guard.suspects() == {}
    for _ in range(17):
        of_records.received_bytes += MIB
        guard.suspects()
    assert guard.suspects()[GREEDY] > 16 * MIB


def test_requests_are_counted_by_connection_in_either_spelling() -> None:
    spellings = ("ipv4:10.0.0.1:1", "ipv6:%5B::ffff:10.0.0.1%5D:1", "unix:/tmp/socket")
    looked = UnreadBytes(now_ms=0).look([Traffic(HONEST, 30 * MIB, 0)], dict.fromkeys(spellings, 10 * MIB), half_open={}, now_ms=0)
    assert 9 * MIB < looked[0].unread_bytes < 10 * MIB


def test_what_is_taken_is_counted_once() -> None:
    told = RequestBytes()
    told.add(peer(HONEST), 1_000)
    told.add_messages(peer(HONEST), 500)
    taken = told.take()
    assert 1_500 <= taken[peer(HONEST)] < 3_000
    assert told.take() == {}


def test_silent_connections_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_guard, "_PEERS_MAX", 2)
    told = RequestBytes()
    for port in (1, 2, 1, 3):
        told.add(f"ipv4:10.0.0.1:{port}", 1)
    assert set(told.take()) == {"ipv4:10.0.0.1:1", "ipv4:10.0.0.1:3"}


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


def test_short_memory_is_looked_into_at_once_but_not_again_and_again_in_vain() -> None:
    looks = LookTimes(now_ms=1_000)
    assert looks.is_due(is_short=False, now_ms=1_000)
    looks.looked(now_ms=1_000)
    assert not looks.is_due(is_short=False, now_ms=30_999)
    assert looks.is_due(is_short=False, now_ms=31_000)
    assert looks.is_due(is_short=True, now_ms=1_001), "a look in peace is no reason to wait, nor is one that ended somebody"
    looks.in_vain(now_ms=1_001)
    assert not looks.is_due(is_short=True, now_ms=1_250)
    assert looks.is_due(is_short=True, now_ms=1_251)


def test_the_default_limit_has_room_for_what_the_others_allow() -> None:
    config = BrokerConfig()
    budgets_bytes = config.max_in_flight_bytes + 2 * config.max_fetch_bytes_in_flight
    assert memory_limit_bytes(config, 64 * 1024 * MIB) == 32 * 1024 * MIB
    assert budgets_bytes + 100 * MIB < memory_limit_bytes(config, 768 * MIB) < 768 * MIB
    assert memory_limit_bytes(config, 256 * MIB) == 224 * MIB, "the system would end the process"
    given = from_mapping(BrokerConfig, {"max.memory.bytes": 5 * MIB})
    assert memory_limit_bytes(given, 64 * 1024 * MIB) == 5 * MIB


def test_freed_memory_stays_resident_until_it_is_given_back() -> None:
    assert keep_freed_memory(), "glibc"
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    size, blocks = 4 * MIB, []
    for _ in range(20):
        block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
        ctypes.memset(block, 1, size)
        blocks.append(block)
    for block in blocks:
        libc.free(block)
    kept = resident_bytes()
    give_back_memory()
    left = resident_bytes()
    assert kept is not None
    assert left is not None
    assert kept - left > 40 * MIB


@pytest.mark.parametrize("name", ["unix:/x", "", "ipv4:", "ipv6:[::1]:"])
def test_what_is_no_tcp_connection_has_no_address(name: str) -> None:
    assert address_of(name) is None


def test_whoever_finishes_requests_goes_after_those_who_do_not() -> None:
    in_use = Suspect(HONEST, 40 * MIB, is_in_use=True)
    suspects = [in_use, Suspect(GREEDY, 2 * MIB), Suspect(IDLE, 0), Suspect(GREEDIER, 30 * MIB)]
    assert [suspect.address for suspect in to_end(suspects, excess_bytes=32 * MIB)] == [GREEDIER, GREEDY]
    assert [suspect.address for suspect in to_end(suspects, excess_bytes=33 * MIB)] == [GREEDIER, GREEDY, HONEST]


def test_calls_of_which_nothing_comes_are_their_sender_s_and_not_those_of_a_producer_in_the_middle_of_a_request() -> None:
    producer, attacker = Connection(HONEST), Connection(GREEDY)
    guard = Guard(producer, attacker)
    producer.message(8 * MIB)
    producer.received_bytes += 16 * MIB  # the next one, all but its end
    attacker.half_open = 100
    assert list(guard.suspects(after_ms=50)) == [GREEDY, HONEST]
    producer.received_bytes += 1
    assert list(guard.suspects(after_ms=4_000)) == [GREEDY, HONEST], "a slow line"
    attacker.half_open = 1
    assert list(guard.suspects(after_ms=4_000)) == [HONEST], "by now it is silent itself, and holds most"
