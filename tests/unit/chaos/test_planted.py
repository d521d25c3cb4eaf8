"""Goal: each bug that chaos and power cuts are to find is one, and is noticed when the code that it was written for is gone.
Method: what it breaks, in a few lines, on a log in memory or in a directory."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.errors import BrokerdError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.storage.files import Files, RealFiles
from tests.chaos.planted_daemon import BUGS
from tests.support.build import append, first_log, open_manager, payloads
from tests.support.files import MemoryFiles
from tests.support.planting import PlantError, plant

PRODUCER = ProducerIdAndEpoch(2**40, 0)


def sends(*sequences: int) -> Callable[[Path], list[bytes]]:
    """The log after batches of one producer, one record each."""

    def stored(_path: Path) -> list[bytes]:
        log = first_log(open_manager(MemoryFiles())[0])
        for number, sequence in enumerate(sequences):
            try:
                append(log, b"batch %02d" % number, producer=PRODUCER, sequence=sequence)
            except BrokerdError:
                continue
        log.flush()
        return payloads(log)

    return stored


def after_a_kill(path: Path) -> list[bytes]:
    """The log after a kill, of two batches that were acknowledged."""
    path.mkdir()
    files = RealFiles(str(path))
    fill(files)
    files.close()  # the lock, as the end of a process gives it back; no log is closed
    return payloads(first_log(open_manager(RealFiles(str(path)))[0]))


def after_a_power_cut(_path: Path) -> list[bytes]:
    """The same after a power cut, of which some spare what was not synced."""
    left = []
    for seed in range(5):
        files = MemoryFiles()
        fill(files)
        files.power_cut(random.Random(seed))
        left.append(payloads(first_log(open_manager(files)[0])))
    return min(left, key=len)


def fill(files: Files) -> None:
    log = first_log(open_manager(files)[0])
    for number in range(2):
        append(log, b"batch %02d" % number)
        log.flush()


CASES: dict[str, tuple[Callable[[Path], list[bytes]], int]] = {  # how, and how many batches there are without the bug
    "retries-are-new": (sends(0, 0), 1),
    "unknown-producers-are-welcome": (sends(7), 0),
    "gaps-are-fine": (sends(0, 5), 1),
    "recovery-cuts-too-much": (after_a_kill, 2),
    "acknowledged-unsynced": (after_a_power_cut, 2),
}


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_breaks_what_it_says(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, right = CASES[bug]
    assert len(stored(tmp_path / "right")) == right
    BUGS[bug](monkeypatch.setattr)
    assert len(stored(tmp_path / "wrong")) != right


def test_a_bug_for_code_that_is_gone_is_not_planted() -> None:
    class Log:
        def append(self, batch: bytes) -> None: ...

    for name, bug in (("write", lambda self, batch: None), ("append", lambda self: None)):
        with pytest.raises(PlantError):
            plant(setattr, Log, name, bug)
