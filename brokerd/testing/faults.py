"""Request faults and disk faults. The test holds a Fault; the broker's process counts requests with a FaultPlan and opens its files
through FailingFiles.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from brokerd.errors import ConfigError
from brokerd.storage.files import Buffer, File, Files

P = ParamSpec("P")
T = TypeVar("T")

KILL = "kill"
LOSE = "lose"
BEFORE = "before"
AFTER = "after"
# The kinds of disk fault, and the errors they raise.
FULL = "full"
WRITE = "write"
SYNC = "sync"
READ = "read"
ERRORS = {FULL: errno.ENOSPC, WRITE: errno.EIO, SYNC: errno.EIO, READ: errno.EIO}


class Fault:
    """A request fault armed by the test."""

    def __init__(self, number: int, text: str, left_by_number: Callable[[], dict[int, int]]) -> None:
        self.number = number
        self._text = text
        self._left_by_number = left_by_number

    @property
    def has_happened(self) -> bool:
        """True once the fault has met its request."""
        return not self._left_by_number().get(self.number, 0)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Fault: {self._text}>"


@dataclass(slots=True)
class Armed:
    """A fault in the broker's process: `kind` happens at the `left`-th request of this name from now on; 0 = it has happened."""

    number: int
    kind: str
    request: str
    moment: str
    left: int

    def text(self) -> str:
        """A description for messages."""
        what = "the broker is killed" if self.kind == KILL else "the response is lost"
        which = f"the next {self.request}" if self.left == 1 else f"{self.request} number {self.left} from now"
        return f"{what} {self.moment} {which}"


class FaultPlan:
    """The pending request faults."""

    def __init__(self, armed: Iterable[Armed] = ()) -> None:
        self._armed = [one for one in armed if one.left]

    def arm(self, fault: Armed) -> None:
        """Adds a fault."""
        self._armed.append(fault)

    def watches(self, request: str, moment: str) -> bool:
        """True if a fault counts these requests."""
        return any(one.request == request and one.moment == moment for one in self._armed)

    def meet(self, request: str, moment: str) -> list[Armed]:
        """Counts a request and returns the faults that watch it. Those with `left` 0 happen now and are removed."""
        met = [one for one in self._armed if one.request == request and one.moment == moment]
        for one in met:
            one.left -= 1
        self._armed = [one for one in self._armed if one.left]
        return met


class FailingDisk:
    """The state of the disk, shared by all its files and the threads that use them."""

    def __init__(self, how: str = "", *, is_lasting: bool = True) -> None:
        """Unless `is_lasting`, a sync does nothing."""
        self.is_lasting = is_lasting
        self.how = ""  # one of ERRORS; "" = it works
        self.fail(how)

    def fail(self, how: str) -> None:
        """Sets the kind of fault; "" = none. Raises ConfigError for an unknown kind."""
        if how and how not in ERRORS:
            raise ConfigError(f"a disk fails as one of {', '.join(ERRORS)}, not '{how}'")
        self.how = how

    def check(self, *kinds: str) -> None:
        """Raises the OSError of the current fault if it is one of these kinds."""
        how = self.how
        if how in kinds:
            raise OSError(ERRORS[how], os.strerror(ERRORS[how]))


class FailingFile:
    """An open file on the disk; see brokerd.storage.files.File."""

    def __init__(self, file: File, disk: FailingDisk) -> None:
        self._file = file
        self._disk = disk
        self.size, self.close = file.size, file.close

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """See File. A full disk still accepts writes within the file's size."""
        self._disk.check(WRITE)
        if self._disk.how == FULL and position + sum(memoryview(one).nbytes for one in buffers) > self._file.size():
            self._disk.check(FULL)
        return self._file.pwritev(buffers, position)

    def pread(self, size: int, position: int, *, nowait: bool = False) -> Buffer:
        """See File."""
        self._disk.check(READ)
        return self._file.pread(size, position, nowait=nowait)

    def truncate(self, size: int) -> None:
        """See File."""
        self._disk.check(WRITE)
        self._file.truncate(size)

    def fdatasync(self) -> None:
        """See File."""
        self._disk.check(SYNC)
        if self._disk.is_lasting:
            self._file.fdatasync()


class FailingFiles:
    """The files of a data directory on the disk; see brokerd.storage.files.Files."""

    def __init__(self, files: Files, disk: FailingDisk) -> None:
        self._files = files
        self._disk = disk
        self.lock, self.close = files.lock, files.close
        self.listdir = self._failing(files.listdir, READ)
        self.mkdir = self._failing(files.mkdir, WRITE, FULL)
        self.rmdir = self._failing(files.rmdir, WRITE)
        self.unlink = self._failing(files.unlink, WRITE)
        self.rename = self._failing(files.rename, WRITE)

    def _failing(self, call: Callable[P, T], *kinds: str) -> Callable[P, T]:
        """Wraps `call` so that it fails under these kinds of fault."""

        def checked(*args: P.args, **keywords: P.kwargs) -> T:
            self._disk.check(*kinds)
            return call(*args, **keywords)

        return checked

    def open(self, path: str, *, writable: bool = False) -> File:
        """See Files."""
        return FailingFile(self._files.open(path, writable=writable), self._disk)

    def create(self, path: str) -> File:
        """See Files."""
        self._disk.check(WRITE, FULL)
        return FailingFile(self._files.create(path), self._disk)

    def sync_dir(self, path: str = "") -> None:
        """See Files."""
        self._disk.check(SYNC)
        if self._disk.is_lasting:
            self._files.sync_dir(path)
