"""Processes listed by the machine: those in a warm process's session, and those that have ended. No assertions here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path


def is_alive(pid: int) -> bool:
    """True if the process exists and is no zombie."""
    return _state(pid) not in ("", "Z")


def in_session_of(pid: int) -> set[int]:
    """All processes of the session that this process leads, itself included, without zombies."""
    pids = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    return {one for one in pids if _session(one) == pid and is_alive(one)}


def children_of(pid: int) -> set[int]:
    """The process's children, zombies included."""
    return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal() and _field(int(path.name), 1) == str(pid)}


def parent_of(pid: int) -> int:
    """The process's parent; -1 if there is no such process."""
    return int(_field(pid, 1) or -1)


def listening_ports(pids: Iterable[int]) -> set[int]:
    """Ports of IPv4 and IPv6 on which one of these processes listens. A port may be assigned to another process once it is free."""
    inodes = {one for pid in pids for one in _sockets_of(pid)}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {int(fields[1].rpartition(":")[2], 16) for fields in lines if fields[3] == "0A" and fields[9] in inodes}


def _sockets_of(pid: int) -> Iterator[str]:
    """The inodes of the process's sockets."""
    with contextlib.suppress(FileNotFoundError):  # it has ended
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has been closed
                kind, _, inode = str(path.readlink()).partition(":")
                if kind == "socket":
                    yield inode.strip("[]")


def _state(pid: int) -> str:
    return _field(pid, 0)


def _session(pid: int) -> int:
    return int(_field(pid, 3) or -1)


def _field(pid: int, number: int) -> str:
    """A field of /proc/PID/stat after the name; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[number]
    except (FileNotFoundError, ProcessLookupError):
        return ""
