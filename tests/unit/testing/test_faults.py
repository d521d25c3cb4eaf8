"""Goal: a fault meets exactly the request it was armed for; a disk fault fails its kind of operation, and all others work."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from brokerd.storage.files import Files
from brokerd.testing.faults import AFTER, BEFORE, KILL, LOSE, Armed, FailingDisk, FailingFiles, Fault, FaultPlan
from tests.support.files import MemoryFiles


def test_a_fault_meets_its_request_once() -> None:
    plan = FaultPlan([Armed(1, KILL, "Produce", AFTER, 2)])
    assert plan.meet("Produce", BEFORE) == plan.meet("Fetch", AFTER) == []
    assert [(one.number, one.left) for one in plan.meet("Produce", AFTER)] == [(1, 1)]
    assert plan.watches("Produce", AFTER)
    assert [(one.number, one.left) for one in plan.meet("Produce", AFTER)] == [(1, 0)]
    assert not plan.watches("Produce", AFTER)
    assert plan.meet("Produce", AFTER) == []


def test_two_faults_count_the_same_request() -> None:
    plan = FaultPlan()
    plan.arm(Armed(1, LOSE, "Fetch", AFTER, 1))
    plan.arm(Armed(2, KILL, "Fetch", AFTER, 2))
    assert [one.number for one in plan.meet("Fetch", AFTER)] == [1, 2]
    assert [(one.number, one.left) for one in plan.meet("Fetch", AFTER)] == [(2, 0)]


def test_a_fault_that_has_happened_does_not_come_again_after_a_start() -> None:
    assert not FaultPlan([Armed(1, KILL, "Produce", AFTER, 0)]).watches("Produce", AFTER)


def test_a_fault_says_what_it_is_and_whether_it_has_been() -> None:
    left = {1: 2}
    fault = Fault(1, Armed(1, KILL, "Produce", AFTER, 2).text(), lambda: left)
    assert str(fault) == "the broker is killed after Produce number 2 from now"
    assert Armed(1, LOSE, "Fetch", AFTER, 1).text() == "the response is lost after the next Fetch"
    assert not fault.has_happened
    left[1] = 0
    assert fault.has_happened


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
