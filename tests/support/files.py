"""An in-memory data directory that loses what was not synced; the counterpart of brokerd.storage.files.RealFiles.

It can leave every state that a disk may have after a crash. `kill` keeps the page cache. `power_cut` keeps what was synced and any
subset of the other 512-byte sectors; a lost sector beyond a file's old end holds zeros, stale blocks or garbage. Of each
directory's name changes since its last sync, `power_cut` keeps a prefix, or with `any_subset` any subset. A failed fdatasync leaves
pages that look clean but are not on the disk."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence

from brokerd.errors import DataDirectoryError
from brokerd.storage.files import Buffer, File, WouldBlock

SECTOR = 512
Hook = Callable[[str, str], None]


def failing(*operations: str, path: str = "", code: int = errno.EIO) -> Hook:
    """A hook that fails these operations (none: all) on paths that contain `path`."""

    def hook(operation: str, on: str) -> None:
        if path in on and (operation in operations or not operations):
            raise OSError(code, os.strerror(code), on)

    return hook


class Killed(BaseException):
    """The process is killed at this operation."""


class _Inode:
    """`data` is what reads see, `disk` what certainly survives a power cut; `dirty` are the sectors that differ and are still to be
    written."""

    __slots__ = ("data", "dirty", "disk", "stale")

    def __init__(self) -> None:
        self.data = bytearray()
        self.disk = bytearray()
        self.dirty: set[int] = set()
        self.stale = b""

    def write(self, data: bytes, position: int) -> None:
        end = position + len(data)
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:end] = data
        self.dirty.update(range(position // SECTOR, (end + SECTOR - 1) // SECTOR))

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.dirty = {sector for sector in self.dirty if sector * SECTOR < size}
        if size % SECTOR:
            self.dirty.add(size // SECTOR)

    def sync(self) -> None:
        size = len(self.data)
        if len(self.disk) > size:
            self.stale = bytes(self.disk) + self.stale[len(self.disk) :]
            del self.disk[size:]
        self.disk.extend(bytes(size - len(self.disk)))
        synced = list(self.dirty)  # a concurrent write makes its sectors dirty again
        self.dirty.difference_update(synced)
        for sector in synced:
            at = sector * SECTOR
            self.disk[at : at + SECTOR] = self.data[at : at + SECTOR]

    def cut_power(self, rng: random.Random, keep: float, stale: float, pool: list[bytes]) -> None:
        """Chooses a content that the disk may have after a power cut."""
        old_size, new_size = len(self.disk), len(self.data)
        if not self.dirty and old_size == new_size:
            self.data = bytearray(self.disk)
            return
        size = rng.choice((old_size, new_size, rng.randint(min(old_size, new_size), max(old_size, new_size))))
        disk = bytearray(self.disk[:size])
        for at in range(len(disk), size, SECTOR):
            disk += self._lost_sector(rng, at, stale, pool)[: size - at]
        disk = disk[:size]
        for sector in self.dirty:
            at = sector * SECTOR
            if at < size and rng.random() < keep:
                piece = self.data[at : min(at + SECTOR, size)]
                disk[at : at + len(piece)] = piece
        self.disk, self.data = disk, bytearray(disk)
        self.dirty.clear()

    def _lost_sector(self, rng: random.Random, at: int, stale: float, pool: list[bytes]) -> bytes:
        """The content of an unwritten sector of a grown file: mostly zeros, or the file's former content there."""
        if rng.random() < stale:
            return self.stale[at : at + SECTOR].ljust(SECTOR, b"\0")
        if rng.random() < 0.8:
            return bytes(SECTOR)
        return rng.choice(pool).ljust(SECTOR, b"\0") if pool and rng.random() < 0.5 else rng.randbytes(SECTOR)


class MemoryFile:
    """See brokerd.storage.files.File."""

    def __init__(self, files: MemoryFiles, inode: _Inode, path: str) -> None:
        self._files = files
        self._inode = inode
        self._path = path
        self.is_open = True

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """See File. A kill during the call leaves the first half of the bytes."""
        data = b"".join(buffers)
        try:
            self._files.call("pwritev", self._path)
        except Killed:
            self._inode.write(data[: len(data) // 2], position)
            raise
        data = self._files.take_space(data, max(len(self._inode.data) - position, 0))
        self._inode.write(data, position)
        return len(data)

    def pread(self, size: int, position: int, *, nowait: bool = False) -> Buffer:
        """See File."""
        cold = self._files.cold_positions
        if nowait and (self._files.is_cold or (position < cold.stop and position + size > cold.start)):
            self._files.cold_read_bytes = max(self._files.cold_read_bytes, size)
            raise WouldBlock
        if self._files.hook is not None:
            self._files.call("pread", self._path)
        return bytes(memoryview(self._inode.data)[position : position + size])

    def size(self) -> int:
        """See File."""
        return len(self._inode.data)

    def truncate(self, size: int) -> None:
        """See File."""
        self._files.call("truncate", self._path)
        self._files.give_space(len(self._inode.data) - size)
        self._inode.truncate(size)

    def fdatasync(self) -> None:
        """See File. A failure marks the pages clean."""
        try:
            self._files.call("fdatasync", self._path)
        except OSError:
            self._inode.dirty.clear()
            raise
        self._inode.sync()
        self._files.sync_count += 1

    def close(self) -> None:
        """See File."""
        if self.is_open:
            self.is_open = False
            self._files.open_count -= 1


class MemoryFiles:
    """See the module. `hook(operation, path)` is called before each operation and may raise OSError or Killed."""

    def __init__(self) -> None:
        self._names: dict[str, _Inode | None] = {}  # None is a directory
        self._durable: dict[str, _Inode | None] = {}
        self._pending: dict[str, list[tuple[str, str, _Inode | None]]] = {}
        self._pool: list[bytes] = []
        self._is_locked = False
        self.hook: Hook | None = None
        self.space_left: int | None = None
        self.is_cold = False
        self.cold_positions = range(0)  # byte range of every file that is not cached
        self.cold_read_bytes = 0  # size of the largest `nowait` read of uncached bytes
        self.open_count = 0
        self.sync_count = 0

    # Files

    def open(self, path: str, *, writable: bool = False) -> File:
        """See Files."""
        self.call("open", path)
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return self._opened(inode, path)

    def create(self, path: str) -> File:
        """See Files."""
        self.call("create", path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        if self.space_left == 0:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        self._check_parent(path)
        inode = _Inode()
        self._change("put", path, inode)
        return self._opened(inode, path)

    def listdir(self, path: str = "") -> list[str]:
        """See Files."""
        if path and path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such directory", path)
        prefix = f"{path}/" if path else ""
        names = [name[len(prefix) :] for name in self._names if name.startswith(prefix)]
        return sorted(name for name in names if "/" not in name)

    def mkdir(self, path: str) -> None:
        """See Files."""
        self.call("mkdir", path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self._change("put", path, None)

    def rmdir(self, path: str) -> None:
        """See Files."""
        self.call("rmdir", path)
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self._change("drop", path, None)

    def unlink(self, path: str) -> None:
        """See Files."""
        self.call("unlink", path)
        inode = self._names.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        self._pool = [*self._pool[-8:], bytes(inode.disk[:SECTOR]), bytes(inode.disk[SECTOR : 2 * SECTOR])]
        self.give_space(len(inode.data))
        self._change("drop", path, None)

    def rename(self, old: str, new: str) -> None:
        """See Files. A single change: after a power cut, both names are as before or both as after."""
        self.call("rename", new)
        inode = self._names.get(old)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", old)
        del self._names[old]
        replaced = self._names.get(new)
        if replaced is not None:
            self.give_space(len(replaced.data))
        self._names[new] = inode
        self._pending.setdefault(_parent(new), []).append((f"move {old}", new, inode))

    def sync_dir(self, path: str = "") -> None:
        """See Files."""
        self.call("sync_dir", path)
        if path and path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such directory", path)
        for change in self._pending.pop(path, []):
            self._apply(self._durable, change)

    def lock(self) -> None:
        """See Files."""
        if self._is_locked:
            raise DataDirectoryError("the data directory is locked")
        self._is_locked = True

    def close(self) -> None:
        """See Files."""
        self._is_locked = False

    # Crashes

    def kill(self) -> None:
        """Kills the process; the machine keeps running."""
        self._is_locked = False
        self.hook = None
        self.open_count = 0

    def power_cut(self, rng: random.Random, *, any_subset: bool = False) -> None:
        """Cuts the machine's power. Of the name changes since the last sync a prefix survives, or with `any_subset` any subset."""
        self.kill()
        for path in sorted(self._pending):
            changes = self._pending[path]
            kept = [c for c in changes if rng.random() < 0.5] if any_subset else changes[: rng.randint(0, len(changes))]
            for change in kept:
                self._apply(self._durable, change)
        self._pending.clear()
        gone = [path for path in self._durable if "/" in path and _parent(path) not in self._durable]
        for path in gone:
            del self._durable[path]
        self._names = dict(self._durable)
        keep, stale = rng.choice((0.0, 0.2, 0.5, 0.8, 0.95, 1.0)), rng.choice((0.0, 0.5, 1.0))
        for inode in self._names.values():
            if inode is not None:
                inode.cut_power(rng, keep, stale, self._pool)

    # Inspection and damage by tests

    def read_file(self, path: str) -> bytes:
        """The content that reads see."""
        inode = self._names[path]
        assert inode is not None
        return bytes(inode.data)

    def write_file(self, path: str, data: bytes) -> None:
        """Replaces a file's content, durably."""
        inode = self._names.get(path)
        if inode is None:
            inode = self._names[path] = self._durable[path] = _Inode()
        inode.data, inode.disk = bytearray(data), bytearray(data)
        inode.dirty.clear()

    def remove_file(self, path: str) -> None:
        """Removes a name, durably."""
        del self._names[path]
        self._durable.pop(path, None)

    def is_name_synced(self, path: str) -> bool:
        """True if the file's name survives a power cut."""
        return path in self._durable and self._durable[path] is self._names.get(path)

    def flip_bit(self, path: str, bit: int) -> None:
        """Flips a bit, as bit rot does."""
        data = bytearray(self.read_file(path))
        data[bit // 8] ^= 1 << bit % 8
        self.write_file(path, bytes(data))

    def copy(self) -> MemoryFiles:
        """A new directory with the same content, all durable."""
        other = MemoryFiles()
        for path, inode in self._names.items():
            if inode is None:
                other._names[path] = other._durable[path] = None
            else:
                other.write_file(path, bytes(inode.data))
        return other

    def paths(self) -> list[str]:
        """All files."""
        return sorted(path for path, inode in self._names.items() if inode is not None)

    def call(self, operation: str, path: str) -> None:
        """Calls the hook."""
        if self.hook is not None:
            self.hook(operation, path)

    def take_space(self, data: bytes, in_place: int) -> bytes:
        """The part of `data` that fits on the disk; `in_place` of its bytes overwrite existing ones. Raises OSError if nothing
        fits."""
        if self.space_left is None or len(data) <= in_place:
            return data
        if self.space_left == 0 and not in_place:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = data[: in_place + self.space_left]
        self.space_left -= len(taken) - in_place
        return taken

    def give_space(self, size: int) -> None:
        """Frees `size` bytes."""
        if self.space_left is not None:
            self.space_left += size

    def _opened(self, inode: _Inode, path: str) -> MemoryFile:
        self.open_count += 1
        return MemoryFile(self, inode, path)

    def _check_parent(self, path: str) -> None:
        if "/" in path and _parent(path) not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such directory", path)

    def _change(self, operation: str, path: str, inode: _Inode | None) -> None:
        change = (operation, path, inode)
        self._apply(self._names, change)
        self._pending.setdefault(_parent(path), []).append(change)

    def _apply(self, names: dict[str, _Inode | None], change: tuple[str, str, _Inode | None]) -> None:
        operation, path, inode = change
        if operation == "drop":
            names.pop(path, None)
        else:
            names[path] = inode
            if operation.startswith("move "):
                names.pop(operation[5:], None)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
