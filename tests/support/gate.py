"""Holds back operations on MemoryFiles, or makes them fail."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

from tests.support.files import MemoryFiles
from tests.support.wait import DEADLINE_S


class Gate:
    """While entered, `operation` on paths that begin with `path` waits, or raises OSError(error) if given. Only for operations in
    worker threads (fdatasync, cold reads): one in the event loop would block the whole broker."""

    def __init__(self, files: MemoryFiles, operation: str, *, path: str = "", error: int = 0) -> None:
        self._files = files
        self._operation = operation
        self._path = path
        self._error = error
        self._reached = threading.Event()
        self._open = threading.Event()

    def __enter__(self) -> Self:
        self._files.hook = self._hook
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._files.hook = None
        self._open.set()

    def wait_until_reached(self) -> None:
        """Returns once an operation waits at the gate or has failed there."""
        assert self._reached.wait(DEADLINE_S), f"no {self._operation} came"

    def _hook(self, operation: str, path: str) -> None:
        # Only files of partitions: files at the top level, such as topics and the checkpoint, pass.
        if operation != self._operation or "/" not in path or not path.startswith(self._path):
            return
        self._reached.set()
        if self._error:
            raise OSError(self._error, os.strerror(self._error), path)
        self._open.wait(DEADLINE_S)
