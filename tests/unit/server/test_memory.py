"""When connections are closed because memory is short, and which memory limit applies."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Mapping

import pytest

from brokerd.allocator import give_back_memory, keep_freed_memory
from brokerd.config.broker import BrokerConfig
from brokerd.config.settings import from_mapping
from brokerd.server.limits import disconnect
from brokerd.server.limits.disconnect import (
    INTERVAL_MS,
    REST_MS,
    TIMES_MAX,
    MemoryGuard,
    available_bytes,
    least_bytes,
    memory_limit_bytes,
    resident_bytes,
)

MIB = 1_048_576
GIB = 2**30
LIMIT_BYTES = 400_000_000
UNIT = "/sys/fs/cgroup/system.slice/brokerd.service"


class Process:
    """A broker process with the memory that the test sets; counts what the guard does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.resident_bytes = 0
        self.kept_bytes = self.given_back = self.closed = self._now_ms = 0
        monkeypatch.setattr(disconnect, "resident_bytes", lambda: self.resident_bytes)
        monkeypatch.setattr(disconnect, "give_back_memory", self._give_back)
        monkeypatch.setattr(disconnect, "disconnect_all", self._disconnect_all)
        self._guard = MemoryGuard(LIMIT_BYTES, 9092)

    def _give_back(self) -> None:
        self.given_back += 1
        self.resident_bytes -= self.kept_bytes

    def _disconnect_all(self, port: int) -> int:
        assert port == 9092
        self.closed += 1
        return 3

    def look(self, *, used_bytes: int, kept_bytes: int = 0) -> None:
        """Runs the guard's check, and lets INTERVAL_MS pass. `kept_bytes` are resident, but not in use."""
        self.resident_bytes, self.kept_bytes = used_bytes + kept_bytes, kept_bytes
        self.look_again()

    def look_again(self) -> None:
        """The same check, with the memory as it is."""
        asyncio.run(self._guard.look(now_ms=self._now_ms))
        self._now_ms += INTERVAL_MS


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def test_memory_below_the_limit_is_kept_for_the_next_request(process: Process) -> None:
    process.look(used_bytes=LIMIT_BYTES - 200_000_000, kept_bytes=150_000_000)
    assert (process.given_back, process.closed) == (0, 0)


def test_connections_are_closed_only_if_giving_memory_back_was_not_enough(process: Process) -> None:
    process.look(used_bytes=LIMIT_BYTES - 100_000_000, kept_bytes=150_000_000)
    assert (process.given_back, process.closed) == (1, 0)
    process.look(used_bytes=LIMIT_BYTES + 50_000_000, kept_bytes=10_000_000)
    assert process.closed == 1


def test_memory_that_no_connection_holds_ends_them_some_times_and_not_again_and_again(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(REST_MS // INTERVAL_MS):
        process.look(used_bytes=LIMIT_BYTES + 50_000_000)
    assert process.closed == TIMES_MAX
    assert process.given_back == TIMES_MAX + 1
    assert caplog.text.count("did not help") == 1
    assert caplog.text.count("memory is short") == 1
    for _ in range(TIMES_MAX + 1):
        process.look(used_bytes=LIMIT_BYTES + 50_000_000)
    assert process.closed > TIMES_MAX, "after a rest it may be somebody else's"


def test_closing_that_helped_is_no_reason_to_rest(process: Process) -> None:
    for _ in range(2 * TIMES_MAX):
        process.look(used_bytes=LIMIT_BYTES + 50_000_000)
        process.look(used_bytes=LIMIT_BYTES - 50_000_000)
    assert process.closed == 2 * TIMES_MAX


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
    assert kept - left > 40 * MIB


def least(groups: str, files: Mapping[str, str]) -> int:
    """The limit on a machine with 64 GiB."""
    return least_bytes(64 * GIB, {"/proc/self/cgroup": groups, **files}.get)


@pytest.mark.parametrize("name", ["memory.max", "memory.high"])
@pytest.mark.parametrize("directory", ["", "/system.slice", "/system.slice/brokerd.service"])
def test_the_least_limit_of_the_unit_and_all_above_counts(directory: str, name: str) -> None:
    files = {f"{UNIT}/memory.max": f"{8 * GIB}\n", "/sys/fs/cgroup/system.slice/memory.max": "max\n"}
    assert least("0::/system.slice/brokerd.service\n", files) == 8 * GIB
    files[f"/sys/fs/cgroup{directory}/{name}"] = f"{GIB}\n"
    assert least("0::/system.slice/brokerd.service\n", files) == GIB


def test_a_legacy_hierarchy_has_its_own_path_and_file() -> None:
    groups = "12:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/docker/abc\n0::/unused\n"
    files = {
        "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{3 * GIB}\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/elsewhere/memory.limit_in_bytes": "1\n",
    }
    assert least(groups, files) == 3 * GIB


@pytest.mark.parametrize("groups", ["0::/\n", "0::/docker/abc\n", "0::/../other\n"])
def test_a_container_s_limit_is_at_the_mount_point(groups: str) -> None:
    assert least(groups, {"/sys/fs/cgroup/memory.max": f"{GIB}\n"}) == GIB


@pytest.mark.parametrize("text", ["max\n", "", "0\n", "-1\n", "soon\n"])
def test_what_is_no_limit_limits_nothing(text: str) -> None:
    assert least("0::/\n", {"/sys/fs/cgroup/memory.max": text}) == 64 * GIB


@pytest.mark.parametrize("groups", ["", "no colons\n\n0::\n", "0::/a\n"])
def test_files_of_another_form_limit_nothing(groups: str) -> None:
    assert least(groups, {}) == 64 * GIB


def test_this_machine_has_some() -> None:
    assert available_bytes() > 100_000_000
