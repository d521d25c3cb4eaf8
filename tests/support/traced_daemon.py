"""A daemon that is killed at its N-th change of the data directory (tracer.py), and the changes that it made until then."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support import tracer
from tests.support.daemon import DaemonProcess


class Step(NamedTuple):
    """A change: the system call, and the file relative to the data directory."""

    call: str
    path: str

    def __str__(self) -> str:
        return f"{self.call} {self.path}"


class TracedDaemon(DaemonProcess):
    """`kill_at` counts from 1; 0 is never. With `torn_bytes`, a pwritev at that point writes only this many bytes. The child
    process is the tracer, which forwards SIGTERM to the daemon and, when killed, takes the daemon with it."""

    def __init__(self, data_dir: Path, *, kill_at: int = 0, torn_bytes: int = -1, settings: Mapping[str, object]) -> None:
        super().__init__(data_dir, settings=settings, env={"PYTHONDONTWRITEBYTECODE": "1"})
        self._kill_at = kill_at
        self._torn_bytes = torn_bytes
        self._report = data_dir.parent / f"{data_dir.name}.steps"

    def command(self) -> list[str]:
        """See DaemonProcess."""
        options = ["--directory", str(self.data_dir), "--report", str(self._report)]
        options += ["--kill-at", str(self._kill_at), "--torn-bytes", str(self._torn_bytes)]
        return [sys.executable, tracer.__file__, *options, "--", *super().command()]

    def steps(self) -> list[Step]:
        """The changes in order; once `kill_at` is reached, the last one is where the daemon was killed. Call it after the end."""
        _, *lines = self._report.read_text().splitlines()
        return [Step(*line.split(" ", 1)) for line in lines]

    @property
    def was_reached(self) -> bool:
        """True if the tracer killed the daemon."""
        return bool(self._kill_at) and len(self.steps()) >= self._kill_at
