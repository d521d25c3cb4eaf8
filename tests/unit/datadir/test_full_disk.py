"""A full disk: operations that free space still work, and afterwards appends resume."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from brokerd.datadir.node_state import create_node_epoch, read_node_epoch, write_node_epoch
from brokerd.errors import DataDirectoryError, LogDamagedError, StorageError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition.partition import Partition
from brokerd.storage.files import Buffer
from brokerd.storage.names import CLEAN_SHUTDOWN
from brokerd.storage.spare_files import SPARE_COUNT, SpareFiles
from tests.support.build import append, delete_records, first_log, open_manager, payloads
from tests.support.clock import ManualClock
from tests.support.files import MemoryFile, MemoryFiles, failing
from tests.support.log_manager import LogManager
from tests.support.steps import run_here

SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096}


@pytest.fixture
def manager(files: MemoryFiles) -> LogManager:
    return open_manager(files, **SETTINGS)[0]


def _fill_disk(files: MemoryFiles, log: Partition) -> int:
    """Appends batches and then takes all space left on the disk. Returns the log end offset."""
    for _ in range(400):
        append(log, b"x" * 200)
    log.flush()
    files.space_left = 0
    _assert_full(log)
    return log.ends.log_end_offset


def _assert_full(log: Partition) -> None:
    with pytest.raises(StorageError, match="the disk is full"):
        append(log, b"x" * 200)


def _assert_goes_on(log: Partition) -> None:
    for _ in range(20):
        append(log, b"x" * 200)
    log.flush()
    assert log.ends.high_watermark == log.ends.log_end_offset


def _spares(files: MemoryFiles) -> list[str]:
    return [path for path in files.paths() if path.startswith("spare-")]


def test_retention_makes_room_and_appends_go_on(files: MemoryFiles, manager: LogManager) -> None:
    manager.create_topic("t", 1, {"retention.bytes": "4096"})
    log = first_log(manager)
    end = _fill_disk(files, log)
    assert manager.retention_pass() > 2
    start = log.ends.log_start_offset
    assert start > 0
    _assert_goes_on(log)
    assert len(_spares(files)) == SPARE_COUNT, "room for the next time"
    files.power_cut(random.Random(1))
    log = first_log(open_manager(files, **SETTINGS)[0])
    assert (log.ends.log_start_offset, log.ends.log_end_offset) == (start, end + 20)


def test_records_can_be_deleted_as_often_as_there_are_spare_files(files: MemoryFiles, manager: LogManager) -> None:
    log = first_log(manager)
    end = _fill_disk(files, log)
    files.hook = failing("create", path="spare", code=errno.ENOSPC)  # other writers take the freed space first
    for before_offset in range(10, 10 + SPARE_COUNT):
        files.space_left = 0
        assert delete_records(manager, log, before_offset) == before_offset
    assert not _spares(files)
    files.space_left = 0
    with pytest.raises(StorageError, match="the log start could not be written"):
        delete_records(manager, log, end)
    files.hook = None
    _assert_full(log)
    assert manager.retention_pass() == 1
    assert delete_records(manager, log, end) == end
    assert manager.retention_pass() > 2
    _assert_goes_on(log)
    assert len(_spares(files)) == SPARE_COUNT


def test_what_is_durable_already_goes_though_the_checkpoint_cannot_be_written(files: MemoryFiles, manager: LogManager) -> None:
    manager.create_topic("a", 1, {})
    manager.create_topic("b", 1, {"retention.bytes": "4096"})
    log, other = first_log(manager, "a"), first_log(manager, "b")
    _fill_disk(files, log)
    files.space_left = None
    end = _fill_disk(files, other)
    delete_records(manager, log, -1)
    for name in _spares(files):
        files.remove_file(name)
    files.space_left = 0
    with pytest.raises(OSError, match="no spare file"):
        manager.retention_pass()
    assert (len(log.segments), other.ends.log_start_offset) == (1, 0)
    assert manager.retention_pass() > 2
    assert 0 < other.ends.log_start_offset < end
    _assert_goes_on(other)


def test_the_last_segments_of_several_logs_expire(files: MemoryFiles) -> None:
    clock = ManualClock()
    manager, _ = open_manager(files, clock, log_retention_ms=1_000)
    logs = [first_log(manager, name) for name in "abcdef"]
    for log in logs:
        for _ in range(100):
            append(log, b"x" * 200)
        log.flush()
    files.space_left = 50  # enough for an empty file, not for its content
    _assert_full(logs[0])
    clock.advance(10_000)
    assert manager.retention_pass() == len(logs)
    assert [log.core.size_bytes for log in logs] == [0] * len(logs)
    _assert_goes_on(logs[0])
    files.kill()
    manager, report = open_manager(files, log_retention_ms=1_000)
    assert not report.damaged
    assert [first_log(manager, name).ends.log_start_offset for name in "abcdef"] == [100] * len(logs)


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
    assert log.ends.log_end_offset == end
    assert len(payloads(log)) == end
    assert manager.retention_pass() > 2
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
    files.hook = failing("fdatasync", path="spare-")
    with pytest.raises(OSError, match="Input/output"):
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


@pytest.mark.parametrize("used_up", [0, SPARE_COUNT])
def test_a_disk_that_stays_full_is_started_on_as_often_as_one_likes(files: MemoryFiles, manager: LogManager, used_up: int) -> None:
    log = first_log(manager)
    end = _fill_disk(files, log)
    files.hook = failing("create", code=errno.ENOSPC)  # other writers take the freed space first
    for before_offset in range(used_up):
        files.space_left = 0
        delete_records(manager, log, before_offset + 1)
    epochs = []
    for _ in range(7):
        files.kill()
        files.space_left = 0
        manager, report = open_manager(files, log_retention_bytes=4_096, **SETTINGS)
        assert not report.read_only_reason
        log = first_log(manager)
        assert (log.ends.log_start_offset, log.ends.log_end_offset) == (used_up, end)
        assert len(payloads(log)) == end - used_up
        epochs.append(log.core.leader_epoch)
    assert epochs == list(range(epochs[0], epochs[0] + 7))
    if used_up < SPARE_COUNT:
        assert manager.retention_pass() > 2
        files.hook = None
        _assert_goes_on(log)
    files.hook = files.space_left = None
    files.power_cut(random.Random(1))
    assert first_log(open_manager(files, **SETTINGS)[0]).leader_epoch == epochs[-1] + 1


def test_a_start_that_cannot_be_noted_at_all_serves_what_is_there(files: MemoryFiles, manager: LogManager) -> None:
    log = first_log(manager)
    for _ in range(30):
        append(log, b"x" * 200)
    log.flush()
    files.kill()
    changes = ("create", "unlink", "rename", "pwritev", "truncate", "fdatasync", "sync_dir", "mkdir")
    files.hook = failing(*changes, code=errno.EROFS)
    for _ in range(3):
        manager, report = open_manager(files, **SETTINGS)
        assert "Read-only file system" in report.read_only_reason
        log = first_log(manager)
        assert len(payloads(log)) == 30
        with pytest.raises(LogDamagedError, match="is read-only"):
            append(log, b"no")
        manager.close()
    files.hook = None
    manager, report = open_manager(files, **SETTINGS)
    assert not report.read_only_reason
    assert append(first_log(manager), b"again") == 30


def test_a_slot_that_is_torn_or_rotten_gives_no_node_epoch_twice(files: MemoryFiles) -> None:
    create_node_epoch(files, 5)
    assert read_node_epoch(files) == 5
    for epoch in (6, 7):
        write_node_epoch(files, epoch)
    assert read_node_epoch(files) == 7
    for slot, seen in ((0, 7), (1, 8)):
        rotten = files.copy()
        rotten.flip_bit("node-epoch", (slot * 4_096 + 60) * 8)
        assert read_node_epoch(rotten) == seen
        write_node_epoch(rotten, seen + 1)
        assert read_node_epoch(rotten) == seen + 1
        for other in (0, 1):
            rotten.flip_bit("node-epoch", (other * 4_096 + 60) * 8)
        with pytest.raises(DataDirectoryError, match="node-epoch of the data directory is damaged"):
            read_node_epoch(rotten)


@pytest.mark.parametrize(("slot", "seen"), [(0, 7), (1, 8)])
def test_a_slot_that_the_disk_cannot_read_counts_as_rotten(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch, slot: int, seen: int
) -> None:
    """The other is in another block."""
    create_node_epoch(files, 5)
    for epoch in (6, 7):
        write_node_epoch(files, epoch)
    pread = MemoryFile.pread

    def with_bad_sector(file: MemoryFile, size: int, position: int) -> Buffer:
        if position <= slot * 4_096 < position + size:
            raise OSError(errno.EIO, "Input/output error")
        return pread(file, size, position)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFile, "pread", with_bad_sector)
        assert read_node_epoch(files) == seen
        write_node_epoch(files, seen + 1)
    assert read_node_epoch(files) == seen + 1, "a write gives the sector another place"


def test_a_stop_on_a_full_disk_is_clean(files: MemoryFiles, manager: LogManager) -> None:
    log = first_log(manager)
    end = _fill_disk(files, log)
    files.space_left = 0
    manager.close()
    assert CLEAN_SHUTDOWN in files.listdir()
    files.space_left = 0
    manager, report = open_manager(files, **SETTINGS)
    assert report.was_clean
    assert len(payloads(first_log(manager))) == end


@pytest.mark.parametrize("trouble", ["no end", "no flush"])
def test_one_log_that_cannot_be_written_spoils_the_clean_stop_of_no_other(
    files: MemoryFiles, manager: LogManager, trouble: str
) -> None:
    logs = [first_log(manager, name) for name in "abc"]
    for log in logs:
        append(log, b"x", producer=ProducerIdAndEpoch(5, 0), sequence=0)
        log.flush()
        append(log, b"y", producer=ProducerIdAndEpoch(5, 0), sequence=1)
    files.hook = failing("fdatasync" if trouble == "no flush" else "create", path=logs[1].tp.directory_name)
    manager.close()
    files.hook = None
    manager, report = open_manager(files, **SETTINGS)
    assert report.unclean == (trouble == "no flush")
    assert report.was_clean == (trouble == "no end")
    for name in "abc":
        log = first_log(manager, name)
        assert payloads(log) == [b"x" + bytes(7), b"y" + bytes(7)]
        assert append(log, b"z", producer=ProducerIdAndEpoch(5, 0), sequence=2) == 2


def test_a_checkpoint_tells_when_appends_are_taken_again(files: MemoryFiles) -> None:
    """A node that handed over its leaderships because of the full disk gets no appends that would notice the free space."""
    clock = ManualClock()
    manager, _ = open_manager(files, clock, **SETTINGS)
    log, refusals = first_log(manager), manager.refusals
    _fill_disk(files, log)
    assert refusals.since_ms == 0
    for _ in range(3):
        clock.advance(10_000)
        with pytest.raises(OSError, match="No space left"):
            manager.write_checkpoint_if_due(clock.monotonic_ms())
    assert refusals.since_ms == 0
    _assert_full(log)
    files.space_left = None
    for wait_ms, since_ms in ((1_000, 0), (5_000, None)):
        clock.advance(wait_ms)
        assert manager.write_checkpoint_if_due(clock.monotonic_ms()), "without a change, too"
        assert refusals.since_ms == since_ms
    clock.advance(10_000)
    assert not manager.write_checkpoint_if_due(clock.monotonic_ms()), "nothing has changed"


def test_a_log_is_refused_whose_last_append_was(files: MemoryFiles) -> None:
    clock = ManualClock()
    manager, _ = open_manager(files, clock, **SETTINGS)
    log, other = first_log(manager), first_log(manager, "idle")
    _fill_disk(files, log)
    refused = []
    for ms in (4_999, 1):
        clock.advance(ms)
        _assert_full(log)
        refused.append((log.is_refused, other.is_refused))
    assert refused == [(False, False), (True, False)], "the other has all that it was given"
    files.space_left = None
    append(log, b"x")
    assert not log.is_refused
    assert manager.refusals.is_lasting, "it may be a few bytes that fit"


def test_elections_leave_spare_files_for_what_frees_space(files: MemoryFiles, manager: LogManager) -> None:
    log = first_log(manager)
    _fill_disk(files, log)
    files.hook = failing("create", path="spare", code=errno.ENOSPC)  # other writers take the freed space first
    for count in (3, 2):
        run_here(manager.replicas.lead({log.tp: log.leader_epoch + 1}))
        files.space_left = 0
        assert len(_spares(files)) == count
    with pytest.raises(OSError, match="no spare file"):
        run_here(manager.replicas.lead({log.tp: log.leader_epoch + 1}))
    files.space_left = 0
    assert delete_records(manager, log, 10) == 10


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (errno.ENOSPC, "no room, and no spare file (topics): free some space on its disk"),
        (errno.EROFS, "no room, and no spare file (topics): its file system takes no writes, mount it for writing"),
        (errno.EIO, "no room, and no spare file (topics): check its disk, and who may write there"),
    ],
)
def test_a_start_that_cannot_write_says_what_to_do(files: MemoryFiles, number: int, text: str) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "create":
            raise OSError(number, "no room, and no spare file", "topics")

    files.hook = fail
    with pytest.raises(DataDirectoryError) as refused:
        open_manager(files, data_dir="/full/d2")
    assert refused.value.message == f"/full/d2 cannot be opened: {text}, and start again"
