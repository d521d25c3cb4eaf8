"""Limits of control groups, out of files as real systems have them: a unit, a container, both versions, and none at all."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from brokerd.server.limits.machine_memory import least_bytes, limit_files, machine_bytes

GIB = 2**30
UNIFIED = (
    "29 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
)
LEGACY = (
    "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)
OTHERS = "22 27 0:20 / /proc rw,nosuid shared:11 - proc proc rw\n25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
UNIT = "/sys/fs/cgroup/system.slice/brokerd.service"


def least(groups: str, mounts: str, files: Mapping[str, str]) -> int:
    """Of a machine with 64 GiB."""
    known = {"/proc/self/cgroup": groups, "/proc/self/mountinfo": mounts, **files}
    return least_bytes(64 * GIB, known.get)


def test_the_unit_s_own_limit_counts() -> None:
    files = {f"{UNIT}/memory.max": f"{2 * GIB}\n", "/sys/fs/cgroup/system.slice/memory.max": "max\n"}
    assert least("0::/system.slice/brokerd.service\n", OTHERS + UNIFIED, files) == 2 * GIB


@pytest.mark.parametrize("name", ["memory.max", "memory.high"])
@pytest.mark.parametrize("directory", ["", "/system.slice", "/system.slice/brokerd.service"])
def test_the_least_of_all_above_counts(directory: str, name: str) -> None:
    files = {f"{UNIT}/memory.max": f"{8 * GIB}\n", "/sys/fs/cgroup/system.slice/memory.max": f"{9 * GIB}\n"}
    files[f"/sys/fs/cgroup{directory}/{name}"] = f"{GIB}\n"
    assert least("0::/system.slice/brokerd.service\n", UNIFIED, files) == GIB


def test_a_legacy_hierarchy_has_its_own_path_and_file() -> None:
    groups = "12:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/docker/abc\n0::/unused\n"
    mounts = OTHERS + LEGACY + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
    files = {
        "/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{3 * GIB}\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/elsewhere/memory.limit_in_bytes": "1\n",
    }
    assert least(groups, mounts, files) == 3 * GIB


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        ("0::/\n", UNIFIED),  # a container with a namespace of its own
        ("0::/docker/abc\n", UNIFIED.replace(" / /sys", " /docker/abc /sys")),  # only its own group is mounted
        ("0::/../other\n", UNIFIED),  # moved to where the namespace does not reach
        ("0::/docker/abcdef\n", UNIFIED.replace(" / /sys", " /docker/abc /sys")),
    ],
)
def test_a_container_s_limit_stands_at_the_mount_point(groups: str, mounts: str) -> None:
    assert least(groups, mounts, {"/sys/fs/cgroup/memory.max": f"{GIB}\n"}) == GIB


def test_a_mount_point_with_a_blank_is_found() -> None:
    mounts = UNIFIED.replace("/sys/fs/cgroup", "/mnt/my\\040groups")
    assert next(limit_files("0::/a\n", mounts)) == "/mnt/my groups/a/memory.max"


@pytest.mark.parametrize("text", ["max\n", "", "0\n", "-1\n", "soon\n"])
def test_what_is_no_limit_limits_nothing(text: str) -> None:
    assert least("0::/\n", UNIFIED, {"/sys/fs/cgroup/memory.max": text}) == 64 * GIB


@pytest.mark.parametrize(("groups", "mounts"), [("", ""), ("no colons\n\n0::\n", "x\n\n1 2 3 - cgroup2\n - \n"), ("0::/a\n", "")])
def test_files_of_another_form_limit_nothing(groups: str, mounts: str) -> None:
    assert least(groups, mounts, {}) == 64 * GIB


def test_this_machine_has_some() -> None:
    assert machine_bytes() > 100_000_000
