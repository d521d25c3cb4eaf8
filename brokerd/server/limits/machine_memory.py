"""How much memory this process may use: the machine's, or the lowest limit of its control groups.

A limit applies to all groups below it, so every group from the process's own (a unit with MemoryMax=, a container) up to the root
is checked, in both versions of control groups. Pure, except for the last function.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

Read = Callable[[str], str | None]  # the text of a file; None = it cannot be read

_CGROUP = "/proc/self/cgroup"
_MOUNTS = "/proc/self/mountinfo"
# Above memory.high a group is slowed to a standstill: for a broker it is as much a limit as memory.max.
_UNIFIED_FILES = ("memory.max", "memory.high")
_LEGACY_FILES = ("memory.limit_in_bytes",)
_ESCAPED = re.compile(r"\\([0-7]{3})")


def limit_files(groups: str, mounts: str) -> Iterator[str]:
    """The files that may hold a limit of a process, its own group's first; from its /proc/PID/cgroup and mountinfo."""
    paths = dict(_memory_groups(groups))
    for is_unified, root, mount_point in _memory_mounts(mounts):
        if is_unified in paths:
            for directory in _upwards(paths[is_unified], root, mount_point):
                for name in _UNIFIED_FILES if is_unified else _LEGACY_FILES:
                    yield f"{directory}/{name}"


def least_bytes(physical_bytes: int, read: Read) -> int:
    """The lowest of the machine's memory and the applicable limits."""
    texts = (read(path) for path in limit_files(read(_CGROUP) or "", read(_MOUNTS) or ""))
    limits = [int(text) for text in texts if text is not None and text.strip().isdecimal()]  # "max": none
    return min([physical_bytes, *(limit for limit in limits if limit > 0)])


def machine_bytes() -> int:
    """As the module docstring says, for this process."""
    return least_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _read)


def _memory_groups(groups: str) -> Iterator[tuple[bool, str]]:
    """(is it version 2, path) of the groups that may limit memory."""
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield True, path
        elif "memory" in controllers.split(","):
            yield False, path


def _memory_mounts(mounts: str) -> Iterator[tuple[bool, str, str]]:
    """(is it version 2, mounted group, mount point) of the file systems that show those groups."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, *rest) = before.split(" "), after.split(" ")
        if len(fields) < 5:
            continue
        if kind == "cgroup2" or (kind == "cgroup" and rest and "memory" in rest[-1].split(",")):
            yield kind == "cgroup2", _unescaped(fields[3]), _unescaped(fields[4])


def _upwards(path: str, root: str, mount_point: str) -> Iterator[str]:
    """The directory of the group at `path` and those above it, as far as they are mounted."""
    root = root.rstrip("/")
    inside = path.removeprefix(root) if path == root or path.startswith(f"{root}/") else ""
    parts = [part for part in inside.split("/") if part]
    if ".." in parts:  # a group outside the visible hierarchy
        parts = []
    for count in range(len(parts), -1, -1):
        yield "/".join([mount_point.rstrip("/"), *parts[:count]])


def _unescaped(field: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), field)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
