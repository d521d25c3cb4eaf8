"""Ends the demo at once on Ctrl-C, `kill` or a closed terminal: prints one sentence and cleans everything up.

On Ctrl-C, PySpark raises an exception from the middle of a call to the JVM, prints tracebacks from both, and waits for jobs. There
is nothing to wait for: the children's data is in a directory that is deleted too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class QuickEnd:
    """Ends this process on a signal, with all its children and `directory`; the exit code is a shell's, 128 plus the signal."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stderr = os.dup(2)  # the terminal, even while standard error goes to a file
        self._nowhere = os.open(os.devnull, os.O_WRONLY)
        # The process may have been started with one of them ignored, as by nohup.
        self.signals = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]

    def take_over(self) -> None:
        """Installs the handlers."""
        for number in self.signals:
            signal.signal(number, self._end)

    def _end(self, number: int, _: FrameType | None) -> NoReturn:
        for other in _SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        for stream in (1, 2):  # silences other threads about the children's end
            os.dup2(self._nowhere, stream)
        children = _children()
        for pid in children:
            _kill(pid)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        shutil.rmtree(self._directory, ignore_errors=True)
        shutil.rmtree(self._directory, ignore_errors=True)  # a grandchild may still have written files
        with contextlib.suppress(OSError):
            os.write(self._stderr, b"\ninterrupted; everything is cleaned up\n")
        os._exit(128 + number)


@contextlib.contextmanager
def quick_end(directory: Path) -> Iterator[None]:
    """Installs the handlers of a QuickEnd; the previous handlers are restored at the end of the block."""
    end = QuickEnd(directory)
    kept = [(number, signal.getsignal(number)) for number in end.signals]
    end.take_over()
    try:
        yield
    finally:
        for number, handler in kept:
            signal.signal(number, handler)


def drop_output() -> None:
    """Drops pending output if standard output has no reader: otherwise Python reports an error at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _children() -> list[int]:
    """Ids of the child processes."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = path.read_text(errors="replace").rpartition(")")[2].split()[1]  # the name, in brackets, may contain anything
            pids.extend([int(path.parent.name)] if int(parent) == os.getpid() else [])
    return pids


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
