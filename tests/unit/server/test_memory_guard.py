"""Which connections go when memory is short, when, and how much memory is short at all."""

from __future__ import annotations

import asyncio
import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.allocator import give_back_memory, keep_freed_memory
from brokerd.config.broker import BrokerConfig
from brokerd.config.settings import from_mapping
from brokerd.server import background
from brokerd.server.limits import memory_guard
from brokerd.server.limits.disconnect import Address
from brokerd.server.limits.memory_guard import REST_MS, ROUNDS_MAX, LastRequests, memory_limit_bytes, resident_bytes
from tests.support.clock import ManualClock

MIB = 1_048_576
LIMIT_BYTES = 400_000_000
LOOK_MS = 50
SILENT, OLD, NEW, NEWER = (("10.0.0.1", port) for port in range(1, 5))


def peer(address: Address) -> str:
    """As gRPC names it."""
    return f"ipv4:{address[0]}:{address[1]}"


def test_half_of_the_connections_go_first_those_that_ended_no_request_for_longest() -> None:
    last = LastRequests()
    for address in (NEW, OLD, NEWER, NEW, NEWER):
        last.completed(peer(address))
    assert last.longest_silent([NEWER, NEW, SILENT, OLD]) == {SILENT, OLD}
    assert last.longest_silent([NEWER, NEW, OLD]) == {OLD, NEW}
    assert last.longest_silent([NEW, OLD]) == {OLD}
    assert last.longest_silent([NEWER]) == {NEWER}
    assert last.longest_silent([]) == set()


def test_a_client_is_one_in_either_spelling() -> None:
    last = LastRequests()
    for name in ("ipv6:%5B::ffff:10.0.0.1%5D:4", "unix:/tmp/socket"):
        last.completed(name)
    assert last.longest_silent([NEWER, SILENT]) == {SILENT}


def test_those_silent_for_longest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_guard, "_PEERS_MAX", 2)
    last = LastRequests()
    for address in (OLD, NEW, OLD, NEWER):
        last.completed(peer(address))
    assert last.longest_silent([NEW, OLD, NEWER]) == {NEW, OLD}


class Process:
    """A broker whose memory is as the test says; it notes what is done about it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.resident_bytes = self.kept_bytes = 0
        self.given_back = 0
        self.connected = [SILENT, OLD, NEW, NEWER]
        self.closed: list[set[Address]] = []
        config = BrokerConfig(max_memory_bytes=LIMIT_BYTES)
        broker: Any = SimpleNamespace(config=config, clock=self.clock, last_requests=LastRequests())
        for address in (OLD, NEW, NEWER):
            broker.last_requests.completed(peer(address))
        monkeypatch.setattr(background, "resident_bytes", lambda: self.resident_bytes)
        monkeypatch.setattr(background, "give_back_memory", self._give_back)
        monkeypatch.setattr(background, "connected", lambda: self.connected)
        monkeypatch.setattr(background, "disconnect", self._disconnect)
        self.jobs = background.Background(broker)

    def _give_back(self) -> None:
        self.given_back += 1
        self.resident_bytes -= self.kept_bytes

    def _disconnect(self, addresses: set[Address]) -> int:
        self.closed.append(addresses)
        return len(addresses)

    def look(self, *, used_bytes: int, kept_bytes: int = 0) -> None:
        """Does what the broker does every 50 ms; `kept_bytes` are resident, but not in use."""
        self.resident_bytes, self.kept_bytes = used_bytes + kept_bytes, kept_bytes
        asyncio.run(self.jobs._memory())
        self.clock.advance(LOOK_MS)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_memory_below_the_limit_is_kept_for_the_next_request(process: Process) -> None:
    process.look(used_bytes=LIMIT_BYTES - 200_000_000, kept_bytes=150_000_000)
    assert (process.given_back, process.closed) == (0, [])


def test_connections_are_closed_just_after_giving_memory_back_was_enough(process: Process) -> None:
    process.look(used_bytes=LIMIT_BYTES - 100_000_000, kept_bytes=150_000_000)
    assert (process.given_back, process.closed) == (1, [])
    process.look(used_bytes=LIMIT_BYTES + 50_000_000, kept_bytes=10_000_000)
    assert process.closed == [{SILENT, OLD}]


def test_memory_that_no_connection_holds_ends_them_once_and_not_again_and_again(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    looks = REST_MS // LOOK_MS
    for _ in range(looks):
        process.look(used_bytes=LIMIT_BYTES + 50_000_000)
    assert len(process.closed) == ROUNDS_MAX
    assert process.given_back == ROUNDS_MAX + 1
    assert caplog.text.count("did not help") == 1
    assert caplog.text.count("memory is short") == 1
    for _ in range(ROUNDS_MAX + 1):
        process.look(used_bytes=LIMIT_BYTES + 50_000_000)
    assert len(process.closed) > ROUNDS_MAX, "after a rest it may be somebody else's"


def test_rounds_that_helped_are_no_reason_to_rest(process: Process) -> None:
    for _ in range(2 * ROUNDS_MAX):
        process.look(used_bytes=LIMIT_BYTES + 50_000_000)
        process.look(used_bytes=LIMIT_BYTES - 50_000_000)
    assert len(process.closed) == 2 * ROUNDS_MAX


def test_a_system_that_does_not_tell_the_memory_in_use_ends_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory_guard, "_STATM", str(tmp_path / "none"))
    assert resident_bytes() is None
    process = Process(monkeypatch)
    monkeypatch.setattr(background, "resident_bytes", resident_bytes)
    process.look(used_bytes=LIMIT_BYTES * 2)
    assert (process.given_back, process.closed) == (0, [])


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
