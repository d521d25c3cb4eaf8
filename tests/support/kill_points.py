"""A scripted run on files in memory, killed before or in the middle of each of the operations that change them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar

from brokerd.errors import WireError
from tests.support.files import Hook, Killed, MemoryFiles
from tests.support.scale import TEST_SCALE

H = TypeVar("H")
# How the files of a killed run are left: by a kill, by a power cut, or by the two in turn, which costs half as much as both.
ENDINGS = ("in turn",) if TEST_SCALE == 1 else ("kill", "power cut")
SPREAD = 10  # one sync may do for several pieces of a state, so a run may have some operations less
_CHANGES_NOTHING = ("open", "pread")


def kill_at(number: int) -> Hook:
    """A hook of MemoryFiles: the operation of this number is not done, nor any later one."""
    count = 0

    def hook(operation: str, _path: str) -> None:
        nonlocal count
        if operation not in _CHANGES_NOTHING:
            count += 1
            if count >= number:
                raise Killed

    return hook


def leave(files: MemoryFiles, ending: str, number: int, rng: random.Random) -> None:
    """Leaves the files of the run of this number as one of ENDINGS does."""
    if ending == "kill" or (ending == "in turn" and number % 2):
        files.kill()
    else:
        files.power_cut(rng)


def operations_of(run: Callable[[MemoryFiles], None], files: MemoryFiles | None = None) -> list[str]:
    """The operations of an undisturbed run, each with its path."""
    files, seen = files or MemoryFiles(), []
    files.hook = lambda operation, path: seen.append(f"{operation} {path}") if operation not in _CHANGES_NOTHING else None
    run(files)
    files.hook = None
    return seen


class Lives(Generic[H]):
    """A scripted run of several lives: `live(files, history, life)`. A run that is killed in a life begins with what the earlier
    lives have left."""

    def __init__(self, live: Callable[[MemoryFiles, H, int], Coroutine[Any, Any, None]], history: H, lives: int) -> None:
        self._live = live
        self._starts: list[tuple[MemoryFiles, H]] = []
        self._operations: list[list[str]] = []  # of each life
        self.history = history  # of the undisturbed run
        files = MemoryFiles()
        for life in range(lives):
            self._starts.append(copy.deepcopy((files, history)))
            self._operations.append(operations_of(functools.partial(self._run, history, life), files))

    def _run(self, history: H, life: int, files: MemoryFiles) -> None:
        asyncio.run(self._live(files, history, life))

    @property
    def operations(self) -> list[str]:
        """Those of all lives."""
        return [operation for operations in self._operations for operation in operations]

    def killed_everywhere(self, ending: str, rng: random.Random) -> Iterator[tuple[MemoryFiles, H, str]]:
        """Kills a run at each operation; the files as one of ENDINGS leaves them, what the run had written down by then, and where
        it was."""
        for life, (start, operations) in enumerate(zip(self._starts, self._operations, strict=True)):
            for number, operation in enumerate(operations, 1):
                files, history = copy.deepcopy(start)
                files.hook = kill_at(number)
                with contextlib.suppress(Killed, WireError):  # by whoever was at it, or waited for it
                    self._run(history, life, files)
                    assert number > len(operations) - SPREAD, f"{number}: nobody was killed"
                files.hook = None
                leave(files, ending, number, rng)
                yield files, history, f"life {life}, {number}: {operation}"
