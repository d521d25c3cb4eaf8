"""Forks processes, and ends them with the process they serve, even if that is killed. Linux only, like the broker."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def fork(work: Callable[[], object]) -> int:
    """Runs `work` in a child, which exits right after it, even on an error; returns the child's process id."""
    pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process when its parent ends. Call it right after the fork. The parent must be single-threaded,
    because the signal is sent when the forking thread ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent ended before prctl
        os._exit(1)


class Watched:
    """Watches for the end of a process that is not a child, through a pidfd (Linux 5.3) where available."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        self.is_gone = False
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.is_gone = True
        except (OSError, AttributeError):  # an old kernel, or a Python built for one
            pass  # the EOF of its sockets remains as the sign, which a fork of the process may delay

    def wait(self, sockets: list[socket.socket], timeout_s: float | None = None) -> list[socket.socket]:
        """The readable sockets; waits at most `timeout_s`, and no longer once the process is gone (`is_gone`)."""
        given: list[socket.socket | int] = [*sockets]
        if self._fd >= 0:
            given.append(self._fd)
        ready, _, _ = select.select(given, [], [], 0 if self.is_gone else timeout_s)
        if self._fd in ready:
            self.is_gone = True
        return [one for one in sockets if one in ready]

    def fileno(self) -> int:
        """The pidfd, readable once the process is gone; -1 = there is none."""
        return self._fd

    def close(self) -> None:
        """Closes the pidfd."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
