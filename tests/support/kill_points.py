"""Scripted runs on files in memory, killed before or during each operation that changes the files."""

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
# How a killed run leaves its files: by a kill, by a power cut, or by the two in turn, which costs half as much as both.
ENDINGS = ("in turn",) if TEST_SCALE == 1 else ("kill", "power cut")
SPREAD = 10  # a run may have a few operations less: one sync may cover several pieces of a state
_CHANGES_NOTHING = ("open", "pread")


def kill_at(number: int) -> Hook:
    """A hook of MemoryFiles that kills at the `number`-th change; no later one is made either."""
    count = 0

    def hook(operation: str, _path: str) -> None:
        nonlocal count
        if operation not in _CHANGES_NOTHING:
            count += 1
            if count >= number:
                raise Killed

    return hook


def leave(files: MemoryFiles, ending: str, number: int, rng: random.Random) -> None:
    """Leaves the files of run `number` as the ending says."""
    if ending == "kill" or (ending == "in turn" and number % 2):
        files.kill()
    else:
        files.power_cut(rng)


def operations_of(run: Callable[[MemoryFiles], None], files: MemoryFiles | None = None) -> list[str]:
    """The operations of an undisturbed run, with their paths."""
    files, seen = files or MemoryFiles(), []
    files.hook = lambda operation, path: seen.append(f"{operation} {path}") if operation not in _CHANGES_NOTHING else None
    run(files)
    files.hook = None
    return seen


class Lives(Generic[H]):
    """A scripted run of several lives (starts of the process): `live(files, history, life)`. A run that is killed in a life starts
    from what the earlier lives left."""

    def __init__(self, live: Callable[[MemoryFiles, H, int], Coroutine[Any, Any, None]], history: H, lives: int) -> None:
        self._live = live
        self._starts: list[tuple[MemoryFiles, H]] = []
        self._operations: list[list[str]] = []  # per life
        self.history = history  # of the undisturbed run
        files = MemoryFiles()
        for life in range(lives):
            self._starts.append(copy.deepcopy((files, history)))
            self._operations.append(operations_of(functools.partial(self._run, history, life), files))

    def _run(self, history: H, life: int, files: MemoryFiles) -> None:
        asyncio.run(self._live(files, history, life))

    @property
    def operations(self) -> list[str]:
        """The operations of all lives."""
        return [operation for operations in self._operations for operation in operations]

    def killed_everywhere(self, ending: str, rng: random.Random) -> Iterator[tuple[MemoryFiles, H, str]]:
        """Kills a run at each operation. Yields the files as the ending leaves them, the history recorded by then, and the
        place."""
        for life, (start, operations) in enumerate(zip(self._starts, self._operations, strict=True)):
            for number, operation in enumerate(operations, 1):
                files, history = copy.deepcopy(start)
                files.hook = kill_at(number)
                with contextlib.suppress(Killed, WireError):  # raised by the operation, or by a call that waited for it
                    self._run(history, life, files)
                    assert number > len(operations) - SPREAD, f"{number}: nobody was killed"
                files.hook = None
                leave(files, ending, number, rng)
                yield files, history, f"life {life}, {number}: {operation}"
