"""The interface to the file system: all file I/O of a data directory goes through it.

Paths are relative to the data directory, at most `directory/file`; symbolic links are never followed. Contract: written bytes are
durable only once `fdatasync` has returned, a name only once `sync_dir` of its directory has returned, and a failed `fdatasync` must
not be retried. Not in the contract: atomic writes of any size, order between unsynced writes, preallocation. The fake for tests,
which loses unsynced data, is tests/support/files.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

from brokerd.errors import DataDirectoryError
from brokerd.storage.names import LOCK, TEMPORARY_SUFFIX

Buffer: TypeAlias = bytes | bytearray | memoryview

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})
# File systems without RWF_NOWAIT refuse it: every read then counts as not cached.
_NOWAIT_REFUSED = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
# Large reads are split so that an fdatasync never waits behind more than one piece.
_PIECE_BYTES = 1_048_576


class WouldBlock(Exception):  # noqa: N818 - not a failure: repeat the read where waiting is allowed
    """A read limited to the page cache would have waited for the disk."""


class File(Protocol):
    """One open file. Several threads may read it at a time, one may write."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Writes at `position`; returns the number of bytes written, which may be fewer than given. Raises OSError."""

    def pread(self, size: int, position: int, *, nowait: bool = False) -> Buffer:
        """Up to `size` bytes: fewer at the end of the file and, with `nowait`, where the page cache ends.

        Raises OSError; with `nowait` WouldBlock if nothing is cached.
        """

    def size(self) -> int:
        """Bytes in the file."""

    def truncate(self, size: int) -> None:
        """Cuts the file to `size` bytes; durable after fdatasync."""

    def fdatasync(self) -> None:
        """Returns once content and size are durable. Never call it again after it raised OSError."""

    def close(self) -> None:
        """Closes the file; a second call does nothing."""


class Files(Protocol):
    """The data directory. All methods raise OSError: FileNotFoundError for a missing name, another OSError for a symbolic link."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Opens an existing regular file."""

    def create(self, path: str) -> File:
        """Creates a file for writing; FileExistsError if the name is taken."""

    def listdir(self, path: str = "") -> list[str]:
        """Names in a directory, sorted; "" is the data directory."""

    def mkdir(self, path: str) -> None:
        """Creates a directory; durable after sync_dir of its parent."""

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""

    def unlink(self, path: str) -> None:
        """Removes a name."""

    def rename(self, old: str, new: str) -> None:
        """Renames a file atomically, replacing any file named `new`."""

    def sync_dir(self, path: str = "") -> None:
        """Returns once the names of a directory are durable."""

    def lock(self) -> None:
        """Locks the data directory for this process until `close`. Raises DataDirectoryError if another holds the lock."""

    def close(self) -> None:
        """Releases the lock."""


def write_all(file: File, buffers: Sequence[Buffer], position: int, size: int) -> None:
    """Writes `buffers` (`size` bytes in all) at `position`, repeating short writes. Raises OSError; a part may be written."""
    written = file.pwritev(buffers, position)
    if written == size:
        return
    rest = memoryview(b"".join(buffers))
    while written < size:
        count = file.pwritev([rest[written:]], position + written)
        if count == 0:
            raise OSError(errno.EIO, "the file accepts no more bytes")
        written += count


def write_whole(files: Files, path: str, data: bytes) -> None:
    """Replaces the file at `path` by writing a temporary file, fdatasync and rename; the caller syncs the directory. On OSError,
    tries to remove the temporary file."""
    temporary = path + TEMPORARY_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        files.unlink(temporary)
    try:
        with contextlib.closing(files.create(temporary)) as file:
            write_all(file, [data], 0, len(data))
            file.fdatasync()
        files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise


def read_whole(files: Files, path: str) -> bytes:
    """All bytes of a small file. Raises OSError."""
    with contextlib.closing(files.open(path)) as file:
        return bytes(file.pread(file.size(), 0))


def is_too_many_open(error: OSError) -> bool:
    """True if the process or the machine has no file descriptors left."""
    return error.errno in _TOO_MANY_OPEN


def is_no_space(error: OSError) -> bool:
    """True if the disk or a quota is full."""
    return error.errno in _NO_SPACE


class RealFile(File):
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        return os.pwritev(self._fd, buffers, position)

    def pread(self, size: int, position: int, *, nowait: bool = False) -> Buffer:
        if not nowait:
            return self._pread_whole(size, position)
        data = bytearray(size)
        try:
            count = os.preadv(self._fd, [data], position, os.RWF_NOWAIT)
        except BlockingIOError:
            raise WouldBlock from None
        except OSError as error:
            if error.errno in _NOWAIT_REFUSED:
                raise WouldBlock from None
            raise
        return data if count == size else memoryview(data)[:count]

    def _pread_whole(self, size: int, position: int) -> Buffer:
        if size <= _PIECE_BYTES:
            whole = os.pread(self._fd, size, position)
            if len(whole) == size or not whole:
                return whole
        data = bytearray(size)
        view = memoryview(data)
        count = 0
        while count < size and (read := os.preadv(self._fd, [view[count : count + _PIECE_BYTES]], position + count)):
            count += read
        return data if count == size else view[:count]

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _without_read_ahead(fd: int) -> int:
    """Turns off the kernel's read-ahead; readers that want more bytes make larger requests. Read-ahead (8 MiB on some machines)
    delays the thread that triggers it, and every fdatasync queued after it.
    """
    with contextlib.suppress(OSError):  # only advice
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    return fd


def _other_owner(fd: int) -> tuple[int, int] | None:
    """User and group of a directory's owner, if this process runs as root and another user owns the directory."""
    status = os.fstat(fd)
    return (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid != 0 else None


class RealFiles(Files):
    """A local directory; created if missing, unless `must_exist`. Files that root creates are given to the directory's owner, so
    that the broker's user can open every file after a repair by root."""

    def __init__(self, root: str, *, must_exist: bool = False) -> None:
        self.root = os.path.abspath(root)
        self._lock_fd = -1
        self._root_fd = -1
        try:
            if not must_exist:
                os.makedirs(self.root, mode=0o750, exist_ok=True)
            self._root_fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._owner = _other_owner(self._root_fd)
        except OSError as error:
            raise DataDirectoryError(f"the data directory {self.root} cannot be used: {error.strerror}") from None

    def open(self, path: str, *, writable: bool = False) -> File:
        return RealFile(_without_read_ahead(self._open(path, os.O_RDWR if writable else os.O_RDONLY)))

    def create(self, path: str) -> File:
        return RealFile(_without_read_ahead(self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)))

    def _open(self, path: str, flags: int) -> int:
        # O_NOFOLLOW applies to the last path component only, so the directory is opened separately. Without O_NONBLOCK, opening a
        # named pipe in place of a file would block; with it, reads of the pipe fail.
        with self._directory(path) as (dir_fd, name):
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o640, dir_fd=dir_fd)
            if flags & os.O_CREAT and self._owner is not None:
                with contextlib.suppress(PermissionError):  # root may lack the right on this file system
                    os.fchown(fd, *self._owner)
            return fd

    def listdir(self, path: str = "") -> list[str]:
        fd = self._open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o750, dir_fd=self._root_fd)
        if self._owner is not None:
            with contextlib.suppress(PermissionError):
                os.chown(path, *self._owner, dir_fd=self._root_fd, follow_symlinks=False)

    def rmdir(self, path: str) -> None:
        os.rmdir(path, dir_fd=self._root_fd)

    def unlink(self, path: str) -> None:
        with self._directory(path) as (dir_fd, name):
            os.unlink(name, dir_fd=dir_fd)

    def rename(self, old: str, new: str) -> None:
        with self._directory(old) as (old_fd, old_name), self._directory(new) as (new_fd, new_name):
            os.replace(old_name, new_name, src_dir_fd=old_fd, dst_dir_fd=new_fd)

    def sync_dir(self, path: str = "") -> None:
        fd = self._open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self) -> None:
        try:
            fd = self._open(LOCK, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            try:
                fd = self._open(LOCK, os.O_RDONLY)
            except FileNotFoundError:
                raise error from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise DataDirectoryError(
                f"the data directory {self.root} is locked: another brokerd uses it; stop that one, or choose another data.dir"
            ) from None
        self._lock_fd = fd

    def close(self) -> None:
        for fd in (self._lock_fd, self._root_fd):
            if fd >= 0:
                os.close(fd)
        self._lock_fd = self._root_fd = -1

    @contextlib.contextmanager
    def _directory(self, path: str) -> Iterator[tuple[int, str]]:
        parent, slash, name = path.rpartition("/")
        if not slash:
            yield self._root_fd, name
            return
        fd = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._root_fd)
        try:
            yield fd, name
        finally:
            os.close(fd)
