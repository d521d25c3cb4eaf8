"""A separate ext4 file system in a file, whose power can be cut: what was not synced is lost, as in a real power cut.
FS_IOC_SHUTDOWN stops the file system at once: it then returns EIO, and nothing more reaches the image. Needs root, loop devices,
mount, losetup and mkfs.ext4; `why_not` names what is missing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.wait import wait_until

_FS_IOC_SHUTDOWN = 0x8004587D
LOG_FLUSH = 1  # flushes the journal first: unsynced names survive, unsynced content is lost
NO_LOG_FLUSH = 2  # both are lost


def why_not() -> str:
    """Why there can be no such disk here; "" if there can."""
    missing = [tool for tool in ("mkfs.ext4", "losetup", "mount", "umount") if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return "power cuts need root, to mount a file system"
    if missing:
        return f"power cuts need {', '.join(missing)}"
    if not Path("/dev/loop-control").exists():
        return "power cuts need loop devices, and there is no /dev/loop-control"
    return ""


class LoopDisk:
    """Mounted at `path` while entered. On exit the image, the loop device and the mount are removed."""

    def __init__(self, scratch: Path, *, size_mib: int = 1_024) -> None:
        self.path = scratch / "disk"
        self._image = scratch / "disk.img"
        self._size_mib = size_mib
        self._device = ""

    def __enter__(self) -> Self:
        self.path.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(self._size_mib * 1_048_576)
        _run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        self._device = _run("losetup", "--find", "--show", str(self._image)).strip()
        try:
            _run("mount", self._device, str(self.path))
        except BaseException:
            _run("losetup", "--detach", self._device)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if os.path.ismount(self.path):
            self._unmount()
        _run("losetup", "--detach", self._device)
        self._image.unlink()

    def cut_power(self, flag: int) -> None:
        """Stops all writes; any use of a file now fails with EIO."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("=I", flag))
        finally:
            os.close(fd)

    def restore_power(self) -> None:
        """Mounts the image again. No file of it may be in use."""
        self._unmount()
        _run("mount", self._device, str(self.path))

    def _unmount(self) -> None:
        def is_unmounted() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError):  # busy until the last user's end is noticed
                _run("umount", str(self.path))
            return not os.path.ismount(self.path)

        wait_until(is_unmounted, what=f"umount {self.path}")


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
