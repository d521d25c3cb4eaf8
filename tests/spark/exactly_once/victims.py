"""A driver that may be killed, with its JVM and its Python workers, which are found by their session.

A driver leads a session and thus a process group, to which its JVM belongs. Spark's Python worker daemons have their own groups in
that session. No process outside of the session is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.spark.exactly_once.pipeline import ROOT, TOO_BUSY, driver_environment
from tests.support.wait import wait_until

_TAIL = 3_000
_DYING_S = 30
_LOOK_S = 0.05
_AT_STARTS_ONLY = ("lookup_data_sources", "create_data_source")


class Process(NamedTuple):
    """A process, as /proc has it."""

    pid: int
    parent: int
    name: str
    command: tuple[str, ...]


class Worker(NamedTuple):
    """A Python worker, and the module that it runs."""

    pid: int
    module: str

    def kill(self) -> bool:
        """SIGKILL; False if it has already ended."""
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def processes_of(session: int) -> dict[int, Process]:
    """The living processes of a session, by id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            before, _, after = (path / "stat").read_text().rpartition(")")
            state, parent, _, of = after.split()[:4]
            if int(of) == session and state not in "ZX":
                command = (path / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
                found[int(path.name)] = Process(int(path.name), int(parent), before.partition("(")[2], tuple(command))
    return found


def workers_among(processes: Mapping[int, Process]) -> list[Worker]:
    """Python workers of a JVM: the Python processes that it started, or the forks of one that forks workers. Workers that only look
    up data sources when a query starts are left out."""
    found = []
    for process in processes.values():
        parent = processes.get(process.parent)
        if parent is None:
            continue
        is_fork = "pyspark.daemon" in parent.command
        is_single = parent.name == "java" and "-m" in process.command and "pyspark.daemon" not in process.command
        module = process.command[-1].rpartition(".")[2]
        if (is_fork or is_single) and module not in _AT_STARTS_ONLY:
            found.append(Worker(process.pid, module))
    return sorted(found)


class Driver:
    """A program with a JVM, run repeatedly."""

    def __init__(self, module: str, directory: Path) -> None:
        self._module = module
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self, **settings: Any) -> None:
        """Starts the program without waiting for it."""
        self.starts += 1
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, json.dumps(settings)],
                cwd=ROOT,
                env=driver_environment(self._directory / "spark"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self._directory / f"driver-{self.starts}.log"

    @property
    def exit_code(self) -> int | None:
        """None until it has ended by itself. The process is not reaped before kill(), so that its id is not reused."""
        if self._process is None:
            return None
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return None if ended is None else ended.si_status

    def run(self, *, timeout_s: float, **settings: Any) -> None:
        """Runs it to its end, again if Spark's time-out for its workers was too short. Raises AssertionError if it fails."""
        while True:
            self.start(**settings)
            wait_until(lambda: self.exit_code is not None, deadline_s=timeout_s, pause_s=_LOOK_S, what="the driver's end")
            if self.exit_code == 0:
                break
            assert TOO_BUSY in self.said(), self.said()
            self.kill()
        self.kill()

    def said(self) -> str:
        """The end of its output."""
        return self._log.read_text(errors="replace")[-_TAIL:]

    def failures(self) -> list[str]:
        """The lines of its output that report failed queries."""
        return [line for line in self._log.read_text(errors="replace").splitlines() if line.startswith("FAILED ")]

    def workers(self) -> list[Worker]:
        """Its current Python workers."""
        return [] if self._process is None else workers_among(processes_of(self._process.pid))

    def kill(self) -> None:
        """Kills its process group, which includes the JVM, with SIGKILL. Returns once its session is empty: its Python workers end
        by themselves."""
        process, self._process = self._process, None
        if process is None:
            return
        session = process.pid
        os.killpg(session, signal.SIGKILL)
        try:
            wait_until(lambda: not processes_of(session), deadline_s=_DYING_S, pause_s=_LOOK_S, what="Python workers have ended")
        finally:
            for pid in processes_of(session):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
