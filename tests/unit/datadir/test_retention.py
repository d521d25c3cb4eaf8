"""Limits of retention and DeleteRecords, and what must be durable before they remove segments."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from brokerd.errors import Fate, LogDamagedError, StorageError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from tests.support.build import append, delete_records, first_log, open_log, open_manager, read_batches
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.files import MemoryFiles, failing
from tests.support.steps import run_here

SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096}
EARLY, LATE = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 0)


def _fill(log: Partition, count: int = 60) -> None:
    """Appends several segments and flushes them."""
    for _ in range(count):
        append(log, b"x" * 200)
    log.flush()


def test_nothing_at_or_above_damage_is_retired(files: MemoryFiles) -> None:
    manager, log = open_log(files, log_retention_bytes=4_096, **SETTINGS)
    _fill(log)
    assert log.retained_from(START_WALL_MS) > log.segments[2].base_offset
    damaged = log.segments[1]
    files.flip_bit(damaged.path, 20 * 8)
    with pytest.raises(LogDamagedError):
        log.read(damaged.base_offset, below=LogEnd.HIGH_WATERMARK, max_bytes=1_000, cached_only=False)
    assert log.retained_from(START_WALL_MS) == 0
    assert manager.retention_pass() == 0
    assert log.ends.last_stable_offset == log.ends.high_watermark == 60


@pytest.mark.parametrize("by", ["delete_records", "retention"])
@pytest.mark.parametrize("ending", ["killed", "power cut", "killed before the removal"])
def test_producer_state_outlives_the_records(files: MemoryFiles, by: str, ending: str) -> None:
    settings = SETTINGS | ({"log_retention_bytes": 4_096} if by == "retention" else {})
    manager, log = open_log(files, **settings)
    append(log, b"first", producer=EARLY, sequence=0)
    _fill(log)
    manager.write_checkpoint()
    if ending == "killed before the removal":
        files.hook = failing("unlink", path="-0/")
    if by == "delete_records":
        delete_records(manager, log, -1)
    with contextlib.suppress(OSError):
        manager.retention_pass()
    assert log.ends.log_start_offset > 0
    files.power_cut(random.Random(1)) if ending == "power cut" else files.kill()
    log = first_log(open_manager(files, **settings)[0])
    assert log.segments[0].base_offset > 0
    end = log.ends.log_end_offset
    assert append(log, b"first", producer=EARLY, sequence=0) == 0, "a repeated batch is answered as its first append"
    assert log.ends.log_end_offset == end
    assert append(log, b"next", producer=EARLY, sequence=1) == end


def test_a_segment_waits_for_the_snapshot_at_its_end(files: MemoryFiles) -> None:
    manager, log = open_log(files, **SETTINGS)
    append(log, b"first", producer=EARLY, sequence=0)
    files.hook = failing("create", path=".snapshot.tmp")
    _fill(log)
    delete_records(manager, log, -1)
    assert manager.retention_pass() == 0
    files.hook = None
    append(log, b"another flush", producer=LATE, sequence=0)
    log.flush()
    assert manager.retention_pass() > 2
    files.kill()
    log = first_log(open_manager(files, **SETTINGS)[0])
    assert append(log, b"first", producer=EARLY, sequence=0) == 0


def test_nothing_is_removed_below_a_log_start_that_is_not_durable(files: MemoryFiles) -> None:
    manager, _ = open_manager(files, **SETTINGS)
    manager.create_topic("a", 1, {"retention.bytes": "4096"})
    manager.create_topic("b", 1, {})
    log, other = first_log(manager, "a"), first_log(manager, "b")
    _fill(log)
    _fill(other)
    manager.write_checkpoint()
    files.hook = failing("create", path="checkpoint")
    with pytest.raises(OSError, match="Input/output"):
        manager.retention_pass()
    assert (log.ends.log_start_offset, log.segments[0].base_offset) == (0, 0)
    manager.alter_topic("a", {"retention.bytes": "-1"}, [])
    for moved in (log, other):
        moved.set_log_start(40)  # retention has nothing left to decide, but these log starts are not durable
    assert manager.retention_pass() == 0
    assert [moved.segments[0].base_offset for moved in (log, other)] == [0, 0]
    files.kill()
    _, report = open_manager(files, **SETTINGS)
    assert not report.damaged


def test_a_log_that_cannot_roll_does_not_hold_up_the_others(files: MemoryFiles) -> None:
    clock = ManualClock()
    manager, _ = open_manager(files, clock, **SETTINGS)
    manager.create_topic("a", 1, {"retention.ms": "1000"})
    manager.create_topic("b", 1, {"retention.bytes": "4096"})
    stuck, other = first_log(manager, "a"), first_log(manager, "b")
    append(stuck, b"x")
    stuck.flush()
    _fill(other)
    files.hook = failing("create", path=stuck.tp.directory_name)
    clock.advance(10_000)
    assert manager.retention_pass() > 2
    assert (stuck.ends.log_start_offset, len(stuck.segments)) == (0, 1)
    files.hook = None
    assert manager.retention_pass() == 1


def test_one_logs_files_that_cannot_be_removed_do_not_hold_up_the_others(files: MemoryFiles) -> None:
    manager, _ = open_manager(files, log_retention_bytes=4_096, **SETTINGS)
    first, second = first_log(manager, "a"), first_log(manager, "b")
    _fill(first)
    _fill(second)
    files.hook = failing("unlink", path=first.tp.directory_name)
    with pytest.raises(OSError, match="Input/output"):
        manager.retention_pass()
    assert sum(path.startswith(second.tp.directory_name) and path.endswith(".log") for path in files.paths()) < 3
    files.kill()
    manager, report = open_manager(files, **SETTINGS)
    assert not report.damaged
    assert sum(path.startswith(first.tp.directory_name) and path.endswith(".log") for path in files.paths()) < 3


def test_a_log_start_whose_directory_was_not_synced_has_an_unknown_fate() -> None:
    outcomes = set()
    for seed in range(30):
        files = MemoryFiles()
        manager, log = open_log(files, **SETTINGS)
        _fill(log)
        files.hook = failing("sync_dir")
        (error,) = run_here(manager.retention.delete_records([(log, 40)]))
        files.hook = None
        assert isinstance(error, StorageError)
        assert error.fate is Fate.UNKNOWN
        assert "may have moved after a restart" in error.message
        assert log.ends.log_start_offset == 0, "it is as it was: what is read on is there"
        assert len(list(read_batches(log, 0))) == 60
        if seed % 3 == 0:
            manager.write_checkpoint()  # settles the fate: the log start stays 0
            assert manager.retention_pass() == 0
        if seed % 2:
            files.power_cut(random.Random(seed))
        else:
            files.kill()
        log = first_log(open_manager(files, **SETTINGS)[0])
        outcomes.add((seed % 3 == 0, log.ends.log_start_offset))
        assert log.ends.high_watermark == 60
        assert len(list(read_batches(log, log.ends.log_start_offset))) == 60 - log.ends.log_start_offset
    assert outcomes == {(True, 0), (False, 0), (False, 40)}


def test_a_log_start_that_could_not_be_written_has_not_moved(files: MemoryFiles) -> None:
    manager, log = open_log(files, **SETTINGS)
    _fill(log)
    files.hook = failing("create", path="checkpoint")
    (error,) = run_here(manager.retention.delete_records([(log, 40)]))
    files.hook = None
    assert isinstance(error, StorageError)
    assert error.fate is not Fate.UNKNOWN
    files.kill()
    assert first_log(open_manager(files, **SETTINGS)[0]).ends.log_start_offset == 0
