"""Look-ups by time over damage or on a failing disk raise an error. They never return a later record or None."""

from __future__ import annotations

import errno

import pytest

from brokerd.errors import LogDamagedError, StorageError
from brokerd.partition.look_up import LookUpAbandoned
from brokerd.partition.partition import Partition
from tests.support.build import arrow_batch, first_log, open_manager
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles

BATCHES = 10
DAMAGED = 3  # the batch's number; each batch has two records


def _at(batch: int) -> int:
    return START_WALL_MS + batch * 10


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def log(files: MemoryFiles) -> Partition:
    log = first_log(open_manager(files, log_index_interval_bytes=1 << 20)[0])
    for n in range(BATCHES):
        log.append(arrow_batch([b"v%d" % n] * 2, [_at(n), _at(n) + 1]), now_wall_ms=START_WALL_MS)
    log.flush()
    return log


def _rot(files: MemoryFiles, log: Partition, byte: int) -> None:
    segment = log.segments[0]
    files.flip_bit(segment.path, (segment.size_bytes // BATCHES * DAMAGED + byte) * 8)


@pytest.mark.parametrize("byte", [20, 96], ids=["header", "payload"])
def test_what_may_lie_in_damage_is_refused(files: MemoryFiles, log: Partition, byte: int) -> None:
    _rot(files, log, byte)
    for _ in range(2):
        assert log.look_ups.offset_for_timestamp(_at(1)) == (2, _at(1)), "what lies before it does not matter"
        with pytest.raises(LogDamagedError, match=f"offsets {2 * DAMAGED} to {2 * DAMAGED + 1} "):
            log.look_ups.offset_for_timestamp(_at(DAMAGED))


def test_nothing_behind_a_damaged_header_is_an_answer(files: MemoryFiles, log: Partition) -> None:
    _rot(files, log, 20)
    for wanted in (_at(DAMAGED + 1), _at(BATCHES - 1) + 1):
        with pytest.raises(LogDamagedError):
            log.look_ups.offset_for_timestamp(wanted)
    log.set_log_start(2 * DAMAGED + 2)
    assert log.look_ups.offset_for_timestamp(0) == (2 * DAMAGED + 2, _at(DAMAGED + 1))


def test_a_look_up_that_nobody_wants_any_more_ends(log: Partition) -> None:
    wanted = iter([True] * 3 + [False])
    with pytest.raises(LookUpAbandoned):
        log.look_ups.offset_for_timestamp(_at(BATCHES - 1), is_wanted=lambda: next(wanted))


def test_a_disk_that_cannot_be_read_is_said(files: MemoryFiles, log: Partition) -> None:
    def hook(operation: str, path: str) -> None:
        if operation == "pread" and path.endswith(".log"):
            raise OSError(errno.EIO, "Input/output error")

    files.hook = hook
    with pytest.raises(StorageError, match="reading failed"):
        log.look_ups.offset_for_timestamp(_at(1))
    files.hook = None
    assert log.look_ups.offset_for_timestamp(_at(1)) == (2, _at(1))
