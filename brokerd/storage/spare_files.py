"""Spare files, so that what makes room can still be written on a full disk: the log starts, the topics, the epoch of a start.

To free room brokerd must first write: a segment is removed only after a checkpoint that begins the log after it. So a few files of
a fixed size are kept ready, with their blocks written and synced. On a full disk one of them is overwritten in place, which needs
no new blocks, then cut, synced and renamed. Unlinking one and writing a new file would not do: a producer's retry could take the
room first. Copy-on-write file systems may refuse even this. This module does not know the content of what it writes.
"""

from __future__ import annotations

import contextlib
import errno
import threading

from brokerd.storage.files import File, Files, write_all, write_whole
from brokerd.storage.names import CHECKPOINT, TOPICS, spare_file

SPARE_COUNT = 4
_KEPT_FROM_DERIVED = 2
_STEP_BYTES = 16_384
_GROWTH = 2  # documents may grow to this many times their size before the next `restore`
_FILLING = b"brokerd: room for a full disk.\n\n"  # no zeros: a file system may leave them out


class SpareFiles:
    """The spare files of one data directory. Safe from any thread."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._wanted_bytes = _STEP_BYTES

    @property
    def is_whole(self) -> bool:
        """True if there is nothing to restore."""
        return len(self._sizes) == SPARE_COUNT and min(self._sizes.values()) >= self._wanted_bytes

    def find(self) -> None:
        """Finds the spare files of an earlier run. Raises OSError."""
        names = set(self._files.listdir())
        for name in map(spare_file, range(SPARE_COUNT)):
            if name in names:
                self._sizes[name] = self._size(name)
        for name in names & {CHECKPOINT, TOPICS}:
            self.note_document(self._size(name))

    def note_document(self, size_bytes: int) -> None:
        """Notes the size of a document that was written: the spare files are to be large enough for the next one."""
        self._wanted_bytes = max(self._wanted_bytes, -(-size_bytes * _GROWTH // _STEP_BYTES) * _STEP_BYTES)

    def restore(self) -> None:
        """Makes spare files that are missing or too small, as far as there is room; without room, those that exist must do."""
        with self._lock, contextlib.suppress(OSError):
            if self.is_whole:
                return
            for name in map(spare_file, range(SPARE_COUNT)):
                if self._sizes.get(name, 0) < self._wanted_bytes:
                    write_whole(self._files, name, _FILLING * (self._wanted_bytes // len(_FILLING)))
                    self._sizes[name] = self._wanted_bytes
            self._files.sync_dir()

    def write_over(self, path: str, data: bytes, *, is_derived: bool = False) -> None:
        """Turns a spare file into the file at `path`, its content durable on return; the directory is for the caller to sync.

        Raises OSError: then the old file at `path` is still there; ENOSPC if there is no spare file, or if the last ones are kept
        for files that are not derived from the log.
        """
        with self._lock:
            name, file = self._take(path, _KEPT_FROM_DERIVED if is_derived else 0)
            try:
                try:
                    write_all(file, [data], 0, len(data))
                    file.truncate(len(data))
                    file.fdatasync()
                finally:
                    file.close()
                self._files.rename(name, path)
            except OSError:
                with contextlib.suppress(OSError):
                    self._files.unlink(name)
                raise

    def _take(self, path: str, keep: int) -> tuple[str, File]:
        """The largest one, open. Raises OSError."""
        while len(self._sizes) > keep:
            name = max(self._sizes, key=self._sizes.__getitem__)
            del self._sizes[name]
            with contextlib.suppress(FileNotFoundError):  # perhaps an operator has made room by hand
                return name, self._files.open(name, writable=True)
        raise OSError(errno.ENOSPC, "No space left on device, and no spare file", path)

    def _size(self, name: str) -> int:
        file = self._files.open(name)
        try:
            return file.size()
        finally:
            file.close()
