"""Counts and findings of a phase of a fuzz run, and the current input, in case it ends the process."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path


class FuzzError(AssertionError):
    """A forbidden result, with the input that caused it."""


class Report:
    """Counts by kind and outcome. The progress file always names the current input."""

    def __init__(self, progress: Path) -> None:
        self.outcomes: dict[str, Counter[str]] = {}
        self.figures: dict[str, float] = {}
        self._progress = os.open(progress, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def begin(self, kind: str, number: int) -> None:
        """Notes that an input is about to be used."""
        os.pwrite(self._progress, f"{kind}:{number}".encode().ljust(60), 0)

    def count(self, kind: str, outcome: str) -> None:
        """Counts the outcome of an input."""
        self.outcomes.setdefault(kind, Counter())[outcome] += 1

    def close(self) -> None:
        """Closes the progress file."""
        os.close(self._progress)


def file_count(pid: int | str = "self") -> int:
    """The number of open files of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def thread_count(pid: int | str = "self") -> int:
    """The number of threads of a process."""
    return threading.active_count() if pid == "self" else len(os.listdir(f"/proc/{pid}/task"))
