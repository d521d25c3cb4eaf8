"""Spare files: space reserved so that documents can still be replaced on a full disk (checkpoint, topics, snapshots, ...).

To free space, brokerd must first write: a segment is removed only after a checkpoint with a log start above it. So a few files are
kept ready, large enough for the next documents, with their blocks written and synced. On a full disk, one of them is overwritten in
place, which needs no new blocks, then truncated, synced and renamed. Unlinking one and writing a new file would not work: a
producer's retry could take the freed space first. Copy-on-write file systems may refuse even the overwrite.
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
_FILLING = b"brokerd: room for a full disk.\n\n"  # not zeros: a file system may store those as holes


class SpareFiles:
    """The spare files of one data directory. Thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._wanted_bytes = _STEP_BYTES

    @property
    def is_whole(self) -> bool:
        """True if all spare files exist and are large enough."""
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
        """Makes spare files large enough, from the next `restore` on, to replace this document."""
        self._wanted_bytes = max(self._wanted_bytes, -(-size_bytes * _GROWTH // _STEP_BYTES) * _STEP_BYTES)

    def restore(self) -> None:
        """Replaces spare files that are missing or too small, as far as there is space on the disk."""
        with self._lock, contextlib.suppress(OSError):
            if self.is_whole:
                return
            for name in map(spare_file, range(SPARE_COUNT)):
                if self._sizes.get(name, 0) < self._wanted_bytes:
                    write_whole(self._files, name, _FILLING * (self._wanted_bytes // len(_FILLING)))
                    self._sizes[name] = self._wanted_bytes
            self._files.sync_dir()

    def write_over(self, path: str, data: bytes, *, is_derived: bool = False) -> None:
        """Turns a spare file into the file at `path`, its content durable on return; the caller syncs the directory.

        On OSError the old file at `path` is still there. ENOSPC: there is no spare file, or `is_derived` and the remaining ones are
        reserved for files not derived from the log.
        """
        with self._lock:
            name, file = self._take(path, _KEPT_FROM_DERIVED if is_derived else 0)
            try:
                with contextlib.closing(file):
                    write_all(file, [data], 0, len(data))
                    file.truncate(len(data))
                    file.fdatasync()
                self._files.rename(name, path)
            except OSError:
                with contextlib.suppress(OSError):
                    self._files.unlink(name)
                raise

    def _take(self, path: str, keep: int) -> tuple[str, File]:
        """Takes the largest spare file and opens it, unless only `keep` are left. Raises OSError."""
        while len(self._sizes) > keep:
            name = max(self._sizes, key=self._sizes.__getitem__)
            del self._sizes[name]
            with contextlib.suppress(FileNotFoundError):  # an operator may have removed it to free space
                return name, self._files.open(name, writable=True)
        raise OSError(errno.ENOSPC, "No space left on device, and no spare file", path)

    def _size(self, name: str) -> int:
        with contextlib.closing(self._files.open(name)) as file:
            return file.size()
