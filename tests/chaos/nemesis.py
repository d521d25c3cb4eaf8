"""Faults injected while the broker works: one function per fault, with counts that prove that each kind happened.

A fault kills only processes that this run started, by process id, and undoes its effects before it returns.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.support.daemon import DaemonProcess
from tests.support.proxy import Proxy

# System calls and strace rules by fault. Python's os.pwritev and os.preadv call pwritev2 and preadv2 on kernels that have them.
_STRACE_RULES = {
    "fsync-error": ("fdatasync,fsync", "error=EIO:when=1"),
    "fsync-slow": ("fdatasync,fsync", "delay_exit=300000"),
    "write-error": ("pwritev,pwritev2", "error=ENOSPC:when=1+3"),
    "read-error": ("pread64,preadv2", "error=EIO:when=1+2"),
}
# Long enough for a busy machine: a slow broker or tracer is not a failure.
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 120.0
_STRACE_TIMEOUT_S = 60.0
SYSCALL_FAULTS = tuple(_STRACE_RULES)
# Work must continue during these faults, not only after them.
HARMLESS = ("fsync-slow", "write-error", "read-error")


class Nemesis:
    """Faults against one daemon. Setting `stopped` ends a waiting fault. `counts` has the faults of each kind, except those of
    strace that met no system call. `injected` has the system calls that failed or were delayed.
    """

    def __init__(self, daemon: DaemonProcess, proxy: Proxy | None, dice: random.Random, stopped: threading.Event) -> None:
        self.counts: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self._daemon = daemon
        self._proxy = proxy
        self._dice = dice
        self._stopped = stopped

    def faults(self) -> dict[str, Callable[[], None]]:
        """The faults available on this machine, by name."""
        faults: dict[str, Callable[[], None]] = {"kill": self.kill, "restart": self.restart, "pause": self.pause}
        if self._proxy is not None:
            faults |= {"cut": self.cut, "drop-answers": self.drop_answers}
        if has_strace():
            for name in _STRACE_RULES:
                faults[name] = lambda name=name: self.inject(name)  # type: ignore[misc]
        return faults

    def run(self, name: str) -> None:
        """Runs one fault to its end."""
        before = self.injected[name]
        self.faults()[name]()
        if name not in _STRACE_RULES or self.injected[name] > before:
            self.counts[name] += 1

    def kill(self) -> None:
        """Kills the daemon with SIGKILL and restarts it on the same directory and port."""
        self._daemon.kill()
        self._wait(self._dice.random() * 0.2)
        self._daemon.start(_START_TIMEOUT_S)

    def restart(self) -> None:
        """Stops the daemon cleanly with SIGTERM and restarts it."""
        self._daemon.terminate(_STOP_TIMEOUT_S)
        self._daemon.start(_START_TIMEOUT_S)

    def pause(self) -> None:
        """Suspends the daemon with SIGSTOP for up to two seconds."""
        os.kill(self._daemon.pid, signal.SIGSTOP)
        try:
            self._wait(self._dice.random() * 2)
        finally:
            os.kill(self._daemon.pid, signal.SIGCONT)

    def cut(self) -> None:
        """Resets all connections."""
        assert self._proxy is not None
        self._proxy.cut_all()

    def drop_answers(self) -> None:
        """Withholds all the broker's responses for up to a second, then resets the connections."""
        assert self._proxy is not None
        self._proxy.hold_answers()
        try:
            self._wait(self._dice.random())
        finally:
            self._proxy.cut_all()
            self._proxy.release_answers()

    def inject(self, name: str) -> None:
        """Makes system calls of the daemon fail or stall for a while. After an fsync error the daemon is killed and restarted."""
        calls, rule = _STRACE_RULES[name]
        with tempfile.NamedTemporaryFile("r") as seen:
            command = ["strace", "-f", "-qq", "-o", seen.name, "-e", f"trace={calls}"]
            command += ["-e", f"inject={calls}:{rule}", "-p", str(self._daemon.pid)]
            tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            try:
                self._wait(0.5 + self._dice.random())
            finally:
                tracer.send_signal(signal.SIGTERM)
                tracer.wait(_STRACE_TIMEOUT_S)
            self.injected[name] += sum("(INJECTED)" in line or "(DELAYED)" in line for line in seen)
        if name == "fsync-error":
            self.kill()

    def _wait(self, seconds: float) -> None:
        self._stopped.wait(seconds)


def has_strace() -> bool:
    """True if strace is installed, so that system calls can be made to fail."""
    return any((Path(directory) / "strace").exists() for directory in os.get_exec_path())
