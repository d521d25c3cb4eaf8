"""Goal: each bug planted for the chaos and power-cut runs breaks what it claims to break, and is refused once the method that it
replaces is gone. Method: a few lines that the bug breaks, on a log in memory or in a directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sized
from contextlib import suppress
from pathlib import Path

import pytest

from brokerd.errors import BrokerdError, InvalidTxnStateError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition.partition import Partition
from brokerd.record.header import Attributes
from brokerd.storage.files import Files, RealFiles
from tests.chaos import planted_replication
from tests.chaos.planted_daemon import BUGS
from tests.support.build import append, first_log, open_manager, payloads
from tests.support.files import MemoryFiles
from tests.support.mutants import finds
from tests.support.planting import PlantError, plant
from tests.support.replication_simulation import run_seed
from tests.support.transactions import append_marker, append_member, read_committed

PRODUCER = ProducerIdAndEpoch(2**40, 0)
MEMBER = 5
SCHEDULES = 100


def sends(*sequences: int) -> Callable[[Path], list[bytes]]:
    """A function that sends one-record batches with these sequences to a new log, and returns the log's payloads."""

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
    """The payloads that a log of two acknowledged batches has after a kill."""
    path.mkdir()
    files = RealFiles(str(path))
    fill(files)
    files.close()  # releases the lock, as the end of a process does; closes no log
    return payloads(first_log(open_manager(RealFiles(str(path)))[0]))


def after_a_power_cut(_path: Path) -> list[bytes]:
    """As `after_a_kill`, after a power cut. The shortest of five results, since a cut may spare unsynced data."""
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


def read_from_the_middle(_path: Path) -> list[int]:
    """The offsets that a read_committed reader sees if it begins inside an aborted transaction."""
    log = log_of_a_member()
    append_marker(log, aborted=[MEMBER])
    log.flush()
    return read_committed(log, 1, 2)


def stable(_path: Path) -> list[int]:
    """The offsets below the last stable offset while a transaction is open."""
    log = log_of_a_member()
    log.flush()
    return list(range(log.ends.last_stable_offset))


def stranger(_path: Path) -> list[int]:
    """The offsets of a log after a transactional batch from a producer that is not an open member."""
    log = first_log(open_manager(MemoryFiles())[0])
    with suppress(InvalidTxnStateError):
        append(log, b"batch 00", producer=PRODUCER, sequence=0, attributes=int(Attributes.TRANSACTIONAL))
    return list(range(log.ends.log_end_offset))


def released(_path: Path) -> list[Partition]:
    """The partitions whose last stable offset has passed the transaction as soon as its markers are released."""

    async def release() -> list[Partition]:
        manager = open_manager(MemoryFiles())[0]
        manager.create_topic("t", 2, {})
        logs = manager.partitions.of_clients()
        for log in logs:
            log.core.ends.hold_back("x", append_member(log, MEMBER, 0))
            append_marker(log, committed=[MEMBER])
            log.flush()
        manager.partitions.release([("x", log) for log in logs])
        return [log for log in logs if log.ends.last_stable_offset == log.ends.high_watermark]

    return asyncio.run(release())


def log_of_a_member() -> Partition:
    log = first_log(open_manager(MemoryFiles())[0])
    for sequence in range(2):
        append_member(log, MEMBER, sequence)
    return log


CASES: dict[str, tuple[Callable[[Path], Sized], int]] = {  # by bug: what it breaks, and its length without the bug
    "retries-are-new": (sends(0, 0), 1),
    "unknown-producers-are-welcome": (sends(7), 0),
    "gaps-are-fine": (sends(0, 5), 1),
    "recovery-cuts-too-much": (after_a_kill, 2),
    "acknowledged-unsynced": (after_a_power_cut, 2),
    "aborted-are-not-named": (read_from_the_middle, 0),
    "markers-count-one-by-one": (released, 2),
    "durable-is-stable": (stable, 0),
    "any-member-may-write": (stranger, 0),
}


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_breaks_what_it_says(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, right = CASES[bug]
    assert len(stored(tmp_path / "right")) == right
    BUGS[bug](monkeypatch.setattr)
    assert len(stored(tmp_path / "wrong")) != right


@pytest.mark.parametrize("bug", planted_replication.BUGS)
def test_each_bug_of_replication_breaks_a_promise(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    planted_replication.BUGS[bug](monkeypatch.setattr)
    assert any(finds(run_seed, seed) for seed in range(SCHEDULES))


def test_a_bug_for_code_that_is_gone_is_not_planted() -> None:
    class Log:
        def append(self, batch: bytes) -> None: ...

    for name, bug in (("write", lambda self, batch: None), ("append", lambda self: None)):
        with pytest.raises(PlantError):
            plant(setattr, Log, name, bug)
