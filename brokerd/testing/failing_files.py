"""A disk that fails: the machine's files, with errors in front of them while it is told to fail. And one that need not last:
files that are deleted after the test are not synced, since a kill takes nothing from the page cache, and a power cut ends the test.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from brokerd.errors import ConfigError
from brokerd.storage.files import Buffer, File, Files

# How a disk fails, and the error that comes of it.
FULL = "full"
WRITE = "write"
SYNC = "sync"
READ = "read"
ERRORS = {FULL: errno.ENOSPC, WRITE: errno.EIO, SYNC: errno.EIO, READ: errno.EIO}


class FailingDisk:
    """The state of the disk; shared by all its files, and by the threads that use them."""

    def __init__(self, how: str = "", *, is_lasting: bool = True) -> None:
        """Unless `is_lasting`, a sync returns at once."""
        self.is_lasting = is_lasting
        self.how = ""  # one of ERRORS; "" = it works
        self.fail(how)

    def fail(self, how: str) -> None:
        """Fails so from now on; "" = works again. Raises ConfigError."""
        if how and how not in ERRORS:
            raise ConfigError(f"a disk fails as one of {', '.join(ERRORS)}, not '{how}'")
        self.how = how

    def check(self, *kinds: str) -> None:
        """Raises the OSError of the present failure, if it is one of these."""
        how = self.how
        if how in kinds:
            raise OSError(ERRORS[how], os.strerror(ERRORS[how]))


class FailingFile:
    """See brokerd.storage.files.File."""

    def __init__(self, file: File, disk: FailingDisk) -> None:
        self._file = file
        self._disk = disk

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """See File. A full disk takes what lies within the file."""
        self._disk.check(WRITE)
        if self._disk.how == FULL and position + sum(memoryview(one).nbytes for one in buffers) > self._file.size():
            self._disk.check(FULL)
        return self._file.pwritev(buffers, position)

    def pread(self, size: int, position: int, *, nowait: bool = False) -> Buffer:
        """See File."""
        self._disk.check(READ)
        return self._file.pread(size, position, nowait=nowait)

    def size(self) -> int:
        """See File."""
        return self._file.size()

    def truncate(self, size: int) -> None:
        """See File."""
        self._disk.check(WRITE)
        self._file.truncate(size)

    def fdatasync(self) -> None:
        """See File."""
        self._disk.check(SYNC)
        if self._disk.is_lasting:
            self._file.fdatasync()

    def close(self) -> None:
        """See File."""
        self._file.close()


class FailingFiles:
    """See brokerd.storage.files.Files."""

    def __init__(self, files: Files, disk: FailingDisk) -> None:
        self._files = files
        self._disk = disk

    def open(self, path: str, *, writable: bool = False) -> File:
        """See Files."""
        return FailingFile(self._files.open(path, writable=writable), self._disk)

    def create(self, path: str) -> File:
        """See Files."""
        self._disk.check(WRITE, FULL)
        return FailingFile(self._files.create(path), self._disk)

    def listdir(self, path: str = "") -> list[str]:
        """See Files."""
        self._disk.check(READ)
        return self._files.listdir(path)

    def mkdir(self, path: str) -> None:
        """See Files."""
        self._disk.check(WRITE, FULL)
        self._files.mkdir(path)

    def rmdir(self, path: str) -> None:
        """See Files."""
        self._disk.check(WRITE)
        self._files.rmdir(path)

    def unlink(self, path: str) -> None:
        """See Files."""
        self._disk.check(WRITE)
        self._files.unlink(path)

    def rename(self, old: str, new: str) -> None:
        """See Files."""
        self._disk.check(WRITE)
        self._files.rename(old, new)

    def sync_dir(self, path: str = "") -> None:
        """See Files."""
        self._disk.check(SYNC)
        if self._disk.is_lasting:
            self._files.sync_dir(path)

    def lock(self) -> None:
        """See Files."""
        self._files.lock()

    def close(self) -> None:
        """See Files."""
        self._files.close()
