"""A full disk: what makes room works all the same, and then all goes on as before."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from brokerd.errors import StorageError
from brokerd.log.log_manager import LogManager
from brokerd.log.partition_log import PartitionLog
from brokerd.log.spare_files import SPARE_COUNT, SpareFiles
from tests.support.build import append, first_log, open_manager, payloads
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles

SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096}


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def manager(files: MemoryFiles) -> LogManager:
    return open_manager(files, **SETTINGS)[0]


def _fill_disk(files: MemoryFiles, log: PartitionLog) -> int:
    """Appends until nothing fits any more; what is left of the disk is taken too. Returns the log end."""
    for _ in range(400):
        append(log, b"x" * 200)
    log.flush()
    files.space_left = 0
    _assert_full(log)
    return log.log_end_offset


def _assert_full(log: PartitionLog) -> None:
    with pytest.raises(StorageError, match="the disk is full"):
        append(log, b"x" * 200)


def _assert_goes_on(log: PartitionLog) -> None:
    for _ in range(20):
        append(log, b"x" * 200)
    log.flush()
    assert log.high_watermark == log.log_end_offset


def _spares(files: MemoryFiles) -> list[str]:
    return [path for path in files.paths() if path.startswith("spare-")]


def test_retention_makes_room_and_appends_go_on(files: MemoryFiles, manager: LogManager) -> None:
    manager.create_topic("t", 1, {"retention.bytes": "4096"})
    log = first_log(manager)
    end = _fill_disk(files, log)
    assert manager.retention_pass(START_WALL_MS) > 2
    start = log.log_start_offset
    assert start > 0
    _assert_goes_on(log)
    assert len(_spares(files)) == SPARE_COUNT, "room for the next time"
    files.power_cut(random.Random(1))
    log = first_log(open_manager(files, **SETTINGS)[0])
    assert (log.log_start_offset, log.log_end_offset) == (start, end + 20)


def test_records_can_be_deleted_as_often_as_there_are_spare_files(files: MemoryFiles, manager: LogManager) -> None:
    log = first_log(manager)
    end = _fill_disk(files, log)

    def others_are_faster(operation: str, path: str) -> None:
        if operation == "create" and "spare" in path:
            raise OSError(errno.ENOSPC, "No space left on device")

    files.hook = others_are_faster
    for before_offset in range(10, 10 + SPARE_COUNT):
        files.space_left = 0
        assert log.delete_records(before_offset) == before_offset
    assert not _spares(files)
    files.space_left = 0
    with pytest.raises(StorageError, match="the log start could not be written"):
        log.delete_records(end)
    files.hook = None
    _assert_full(log)
    assert manager.retention_pass(START_WALL_MS) == 1
    assert log.delete_records(end) == end
    assert manager.retention_pass(START_WALL_MS) > 2
    _assert_goes_on(log)
    assert len(_spares(files)) == SPARE_COUNT


def test_deleting_all_records_makes_room(files: MemoryFiles, manager: LogManager) -> None:
    log = first_log(manager)
    end = _fill_disk(files, log)
    assert log.delete_records(-1) == end
    assert manager.retention_pass(START_WALL_MS) > 2
    _assert_goes_on(log)


def test_what_is_durable_already_goes_though_the_checkpoint_can_not_be_written(files: MemoryFiles, manager: LogManager) -> None:
    manager.create_topic("a", 1, {})
    manager.create_topic("b", 1, {"retention.bytes": "4096"})
    log, other = first_log(manager, "a"), first_log(manager, "b")
    _fill_disk(files, log)
    files.space_left = None
    end = _fill_disk(files, other)
    log.delete_records(-1)
    for name in _spares(files):
        files.remove_file(name)
    files.space_left = 0
    with pytest.raises(OSError, match="no spare file"):
        manager.retention_pass(START_WALL_MS)
    assert (log.segment_count, other.log_start_offset) == (1, 0)
    assert manager.retention_pass(START_WALL_MS) > 2
    assert 0 < other.log_start_offset < end
    _assert_goes_on(other)


def test_the_last_segments_of_several_logs_expire(files: MemoryFiles) -> None:
    manager, _ = open_manager(files, log_retention_ms=1_000)
    logs = [first_log(manager, name) for name in "abcdef"]
    for log in logs:
        for _ in range(100):
            append(log, b"x" * 200)
        log.flush()
    files.space_left = 50  # an empty file has room, its content has not
    _assert_full(logs[0])
    late = START_WALL_MS + 10_000
    assert manager.retention_pass(late) == len(logs)
    assert [log.size_bytes for log in logs] == [0] * len(logs)
    _assert_goes_on(logs[0])
    files.kill()
    manager, report = open_manager(files, log_retention_ms=1_000)
    assert not report.damaged
    assert [first_log(manager, name).log_start_offset for name in "abcdef"] == [100] * len(logs)


def test_a_topic_can_be_altered_and_deleted(files: MemoryFiles, manager: LogManager) -> None:
    log, other = first_log(manager, "t"), first_log(manager, "u")
    _fill_disk(files, log)
    _assert_full(other)
    manager.alter_topic("u", {"retention.bytes": "4096"}, [])
    manager.delete_topic("t")
    _assert_goes_on(other)


def test_a_start_on_a_full_disk_comes_up_and_makes_room(files: MemoryFiles, manager: LogManager) -> None:
    log = first_log(manager)
    end = _fill_disk(files, log)
    files.kill()
    manager, report = open_manager(files, log_retention_bytes=4_096, **SETTINGS)
    assert not report.read_only_reason
    log = first_log(manager)
    assert log.log_end_offset == end
    assert len(payloads(log)) == end
    assert manager.retention_pass(START_WALL_MS) > 2
    _assert_goes_on(log)


def test_spare_files_grow_with_what_they_are_for(files: MemoryFiles, manager: LogManager) -> None:
    size = len(files.read_file("spare-0"))
    manager.create_topic("many", 600, {})
    manager.write_checkpoint()
    assert len(files.read_file("spare-0")) > max(size, len(files.read_file("checkpoint")))
    files.space_left = 0
    first_log(manager, "many", 599)
    manager.delete_topic("many")
    assert "many" not in files.read_file("topics").decode()


def test_a_write_that_fails_keeps_the_old_file_and_the_other_spares(files: MemoryFiles, manager: LogManager) -> None:
    spares = SpareFiles(files)
    spares.find()
    before = files.read_file("checkpoint")

    def fail(operation: str, path: str) -> None:
        if operation == "fdatasync" and path.startswith("spare-"):
            raise OSError(errno.EIO, "EIO")

    files.hook = fail
    with pytest.raises(OSError, match="EIO"):
        spares.write_over("checkpoint", b"new")
    files.hook = None
    assert files.read_file("checkpoint") == before
    assert len(_spares(files)) == SPARE_COUNT - 1
    spares.write_over("checkpoint", b"new")
    assert files.read_file("checkpoint") == b"new"
    spares.restore()
    assert len(_spares(files)) == SPARE_COUNT
    assert spares.is_whole


def test_a_spare_file_that_a_crash_left_cut_is_made_anew(files: MemoryFiles, manager: LogManager) -> None:
    files.write_file("spare-2", b"short")
    files.write_file("spare-1.tmp", b"left over")
    files.kill()
    open_manager(files, **SETTINGS)
    assert len({len(files.read_file(f"spare-{number}")) for number in range(SPARE_COUNT)}) == 1
