"""A bounded cache of open segment files: evicts the least recently used, but never files in use.

A written file stays in use until it is flushed: a descriptor opened later could miss the error of a failed write-back.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from brokerd.storage.files import File, Files, is_too_many_open

P = ParamSpec("P")
T = TypeVar("T")
Key = tuple[str, bool]


class Handle:
    """An open file. End each use with `OpenFiles.release`."""

    __slots__ = ("file", "is_dropped", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_dropped = False


class OpenFiles:
    """The cache: at most `limit` open files, more only while all are in use. Thread-safe."""

    def __init__(self, files: Files, *, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._lock = threading.Lock()
        self._handles: OrderedDict[Key, Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._handles)

    @contextmanager
    def use(self, path: str, *, writable: bool = False) -> Iterator[File]:
        """The file, open until the block ends. Raises OSError."""
        handle = self.acquire(path, writable=writable)
        try:
            yield handle.file
        finally:
            self.release(handle)

    def acquire(self, path: str, *, writable: bool = False) -> Handle:
        """The open file, kept open until `release`. Raises OSError."""
        key = (path, writable)
        with self._lock:
            handle = self._handles.get(key)
            if handle is None:
                handle = Handle(self._open(path, writable))
                self._evict(len(self._handles) + 1 - self._limit)
                self._handles[key] = handle
            else:
                self._handles.move_to_end(key)
            handle.users += 1
            return handle

    def release(self, handle: Handle) -> None:
        """Ends one use."""
        with self._lock:
            handle.users -= 1
            if handle.is_dropped and not handle.users:
                handle.file.close()

    def drop(self, path: str) -> None:
        """Removes a deleted or replaced file from the cache, and closes it once its last user is done."""
        with self._lock:
            for key in ((path, False), (path, True)):
                handle = self._handles.pop(key, None)
                if handle is not None:
                    handle.is_dropped = True
                    if not handle.users:
                        handle.file.close()

    def make_room(self) -> bool:
        """Closes unused files, up to half of all; False if all are in use."""
        with self._lock:
            return self._evict(len(self._handles) // 2 + 1) > 0

    def close(self) -> None:
        """Drops all files."""
        for path, _ in list(self._handles):
            self.drop(path)

    def _open(self, path: str, writable: bool) -> File:
        try:
            return self._files.open(path, writable=writable)
        except OSError as error:
            if not is_too_many_open(error) or not self._evict(len(self._handles) // 2 + 1):
                raise
            return self._files.open(path, writable=writable)

    def _evict(self, count: int) -> int:
        """Closes up to `count` unused files, the least recently used first; returns the number closed."""
        idle: list[Key] = []
        if count > 0:
            for key, handle in self._handles.items():
                if not handle.users:
                    idle.append(key)
                    if len(idle) == count:
                        break
        for key in idle:
            self._handles.pop(key).file.close()
        return len(idle)


class PatientFiles:
    """A Files that closes cached files and retries when file descriptors run out, so that the descriptors cached for reads and
    appends never starve rolls, retention, topic changes and checkpoints.

    A retry is safe: such a call fails at opening a file or directory, before it changes anything.

    `unlink` drops the file from the cache after removing it. If it did so before, a concurrent read could cache the removed file
    again, and a new file of the same name would be mistaken for it.
    """

    def __init__(self, files: Files, cache: OpenFiles) -> None:
        self._cache = cache
        self.open = self._repeated(files.open)
        self.create = self._repeated(files.create)
        self.listdir = self._repeated(files.listdir)
        self.mkdir = self._repeated(files.mkdir)
        self.rmdir = self._repeated(files.rmdir)
        self._unlink = self._repeated(files.unlink)
        self.rename = self._repeated(files.rename)
        self.sync_dir = self._repeated(files.sync_dir)
        self.lock, self.close = files.lock, files.close

    def unlink(self, path: str) -> None:
        """See Files."""
        try:
            self._unlink(path)
        finally:
            self._cache.drop(path)

    def _repeated(self, call: Callable[P, T]) -> Callable[P, T]:
        def repeat(*args: P.args, **keywords: P.kwargs) -> T:
            while True:
                try:
                    return call(*args, **keywords)
                except OSError as error:
                    if not is_too_many_open(error) or not self._cache.make_room():
                        raise

        return repeat
