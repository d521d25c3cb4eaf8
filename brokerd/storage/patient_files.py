"""Repeats calls that fail because too many files are open, after closing some that are only kept open. So the files that reads and
appends keep open take nothing from rolls, retention, topics and checkpoints.

A call that fails so has done nothing yet, since it begins by opening a file or directory: repeating it is safe.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from brokerd.storage.files import File, Files, is_too_many_open

T = TypeVar("T")


class PatientFiles:
    """The files of a data directory. `make_room` closes some open files; it returns False if there were none to close."""

    def __init__(self, files: Files, make_room: Callable[[], bool]) -> None:
        self._files = files
        self._make_room = make_room

    def open(self, path: str, *, writable: bool = False) -> File:
        """See Files."""
        return self._tried(lambda: self._files.open(path, writable=writable))

    def create(self, path: str) -> File:
        """See Files."""
        return self._tried(lambda: self._files.create(path))

    def listdir(self, path: str = "") -> list[str]:
        """See Files."""
        return self._tried(lambda: self._files.listdir(path))

    def mkdir(self, path: str) -> None:
        """See Files."""
        self._tried(lambda: self._files.mkdir(path))

    def rmdir(self, path: str) -> None:
        """See Files."""
        self._tried(lambda: self._files.rmdir(path))

    def unlink(self, path: str) -> None:
        """See Files."""
        self._tried(lambda: self._files.unlink(path))

    def rename(self, old: str, new: str) -> None:
        """See Files."""
        self._tried(lambda: self._files.rename(old, new))

    def sync_dir(self, path: str = "") -> None:
        """See Files."""
        self._tried(lambda: self._files.sync_dir(path))

    def lock(self) -> None:
        """See Files."""
        self._files.lock()

    def close(self) -> None:
        """See Files."""
        self._files.close()

    def _tried(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except OSError as error:
                if not is_too_many_open(error) or not self._make_room():
                    raise
