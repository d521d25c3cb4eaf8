"""How processes of this package are forked, and end with the one that needs them, even if that one is killed. Linux only, as the
broker is."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

_PR_SET_PDEATHSIG = 1


def fork(work: Callable[[], object]) -> int:
    """Does `work` in a child, which then ends at once, even after an error; returns the child's process id."""
    pid = os.fork()
    if pid == 0:
        _do_and_end(work)
    return pid


def _do_and_end(work: Callable[[], object]) -> NoReturn:
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
    """Has the kernel kill this process when its parent ends. To be called first thing after the fork; the parent must have one
    thread only, since it is the end of the thread that forked which counts."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before
        os._exit(1)


class Watched:
    """A process that this one lives for, and is no child of. Needs no polling where the kernel has pidfd_open (5.3)."""

    def __init__(self, pid: int) -> None:
        self._fd = -1
        self.is_gone = False
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self.is_gone = True
        except (OSError, AttributeError):  # an old kernel, or a Python that was built for one
            pass  # then the end of its sockets says the same, unless a process that it forked holds them open

    def wait(self, sockets: list[socket.socket], timeout_s: float | None = None) -> list[socket.socket]:
        """The sockets that have something to read; none after `timeout_s`, or when the process is gone (`is_gone`)."""
        given: list[socket.socket | int] = [*sockets]
        if self._fd >= 0:
            given.append(self._fd)
        ready, _, _ = select.select(given, [], [], 0 if self.is_gone else timeout_s)
        if self._fd in ready:
            self.is_gone = True
        return [one for one in sockets if one in ready]

    def close(self) -> None:
        """Gives up the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
