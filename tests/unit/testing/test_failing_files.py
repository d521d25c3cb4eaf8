"""Goal: the disk fails as it is told, and otherwise is the disk behind it."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from brokerd.storage.files import Files
from brokerd.testing.faults import FailingDisk, FailingFiles
from tests.support.files import MemoryFiles

Deed = Callable[[Files], object]


def write_within(files: Files) -> object:
    return files.open("f", writable=True).pwritev([b"new"], 0)


DEEDS: dict[str, Deed] = {
    "create": lambda files: files.create("g"),
    "mkdir": lambda files: files.mkdir("d"),
    "append": lambda files: files.open("f", writable=True).pwritev([b"more"], 3),
    "write within": write_within,
    "truncate": lambda files: files.open("f", writable=True).truncate(1),
    "rename": lambda files: files.rename("f", "h"),
    "unlink": lambda files: files.unlink("f"),
    "read": lambda files: files.open("f").pread(3, 0),
    "list": lambda files: files.listdir(),
    "sync": lambda files: files.open("f", writable=True).fdatasync(),
    "sync_dir": lambda files: files.sync_dir(),
}
FAILS = {
    "": set[str](),
    "full": {"create", "mkdir", "append"},
    "write": {"create", "mkdir", "append", "write within", "truncate", "rename", "unlink"},
    "sync": {"sync", "sync_dir"},
    "read": {"read", "list"},
}


@pytest.mark.parametrize("how", FAILS)
@pytest.mark.parametrize("name", DEEDS)
def test_what_fails_and_what_does_not(how: str, name: str) -> None:
    memory = MemoryFiles()
    memory.create("f").pwritev([b"old"], 0)
    disk = FailingDisk(how)
    files = FailingFiles(memory, disk)
    if name not in FAILS[how]:
        DEEDS[name](files)
        return
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        DEEDS[name](files)
    assert caught.value.errno == (errno.ENOSPC if how == "full" else errno.EIO)
    disk.fail("")
    DEEDS[name](files)


@pytest.mark.parametrize("is_lasting", [True, False])
def test_what_need_not_last_is_not_synced(is_lasting: bool) -> None:
    memory = MemoryFiles()
    files = FailingFiles(memory, FailingDisk(is_lasting=is_lasting))
    file = files.create("f")
    file.pwritev([b"data"], 0)
    file.fdatasync()
    files.sync_dir()
    assert memory.sync_count == int(is_lasting)
    assert memory.is_name_synced("f") == is_lasting
