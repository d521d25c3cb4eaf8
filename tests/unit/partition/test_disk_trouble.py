"""A full disk, a failing disk or too many open files stop one log or fail one request, and nothing else."""

from __future__ import annotations

import errno
import random

import pytest

from brokerd.errors import Fate, ResourceExhaustedError, StorageError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from tests.support.build import append, delete_records, first_log, open_log, open_manager, payloads
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles, failing


@pytest.fixture
def log(files: MemoryFiles) -> Partition:
    log = first_log(open_manager(files, log_segment_bytes=4_096)[0])
    append(log, b"durable")
    log.flush()
    return log


@pytest.mark.parametrize("space", [0, 1, 95, 96, 130, 1_000])
def test_a_full_disk_refuses_definitely_and_takes_appends_again(files: MemoryFiles, log: Partition, space: int) -> None:
    before = files.read_file(log.segments[0].path)
    files.space_left = space
    producer = ProducerIdAndEpoch(3, 0)
    with pytest.raises(StorageError, match="the disk is full") as refused:
        append(log, b"x" * 1_000, producer=producer, sequence=0)
    assert refused.value.fate is Fate.NOT_APPENDED
    assert refused.value.retriable
    assert files.read_file(log.segments[0].path) == before
    assert payloads(log) == [b"durable\0"]
    files.space_left = None
    assert append(log, b"again", producer=producer, sequence=0) == 1
    log.flush()
    assert payloads(log) == [b"durable\0", b"again\0\0\0"]


def test_a_write_that_cannot_be_cut_off_again_has_an_unknown_fate(files: MemoryFiles, log: Partition) -> None:
    files.space_left = 50
    files.hook = failing("truncate", path=".log")
    with pytest.raises(StorageError) as refused:
        append(log, b"x" * 100)
    assert refused.value.fate is Fate.UNKNOWN
    files.space_left = None
    with pytest.raises(StorageError):
        append(log, b"still not")
    files.hook = None
    append(log, b"now")
    log.flush()
    assert payloads(log) == [b"durable\0", b"now\0\0\0\0\0"]
    assert len(files.read_file(log.segments[0].path)) == log.core.size_bytes


def test_a_failed_flush_stops_that_log_for_good_and_the_tail_is_written_again(files: MemoryFiles) -> None:
    manager, _ = open_manager(files)
    log, other = first_log(manager, "t"), first_log(manager, "u")
    append(log, b"kept")
    log.flush()
    append(log, b"doubt")
    files.hook = failing("fdatasync", path=log.segments[0].path)
    with pytest.raises(OSError, match="Input/output"):
        log.flush()
    files.hook = None
    assert (log.ends.high_watermark, log.core.flushes.dirty_bytes) == (1, 0)
    with pytest.raises(StorageError, match="a disk operation failed") as refused:
        append(log, b"no")
    assert refused.value.fate is Fate.NOT_APPENDED
    assert log.prepare_flush() is None
    assert payloads(log) == [b"kept\0\0\0\0"]
    append(other, b"goes on")
    other.flush()
    manager.close()
    # The kernel sees clean pages that the disk never got. A start must rewrite them before it serves them.
    reopened, _ = open_manager(files)
    served = payloads(first_log(reopened, "t"))
    assert served == [b"kept\0\0\0\0", b"doubt\0\0\0"]
    files.power_cut(random.Random(1))
    assert payloads(first_log(open_manager(files)[0], "t")) == served


def test_a_read_error_is_that_ranges_alone(files: MemoryFiles, log: Partition) -> None:
    for n in range(40):
        append(log, b"%04d" % n * 50)
    log.flush()
    assert len(log.segments) > 2
    files.hook = failing("pread", path=log.segments[1].path)
    with pytest.raises(StorageError, match=r"t-0: reading at offset \d+ failed"):
        log.read(log.segments[1].base_offset, below=LogEnd.LOG_END, max_bytes=100, cached_only=False)
    assert log.read(0, below=LogEnd.LOG_END, max_bytes=100_000, cached_only=False).next_offset == log.segments[1].base_offset
    assert log.read(log.segments[2].base_offset, below=LogEnd.LOG_END, max_bytes=100, cached_only=False).chunks
    assert append(log, b"goes on") == 41


@pytest.mark.parametrize("is_start", [False, True])
def test_an_index_that_the_disk_cannot_read_is_rebuilt(files: MemoryFiles, is_start: bool) -> None:
    manager, log = open_log(files, log_segment_bytes=4_096)
    for n in range(40):
        append(log, b"%04d" % n * 50)
    log.flush()
    found = payloads(log)
    manager.close()
    reopened, _ = open_manager(files, log_segment_bytes=4_096)
    if is_start:
        reopened.close()
    files.hook = failing("pread", path=".index")
    if is_start:
        reopened, _ = open_manager(files, log_segment_bytes=4_096)
    log = first_log(reopened)
    assert (payloads(log), log.damage) == (found, None)
    assert append(log, b"goes on") == 40


def test_a_disk_that_fails_to_read_is_left_by_whoever_can(files: MemoryFiles) -> None:
    clock = ManualClock()
    manager, log = open_log(files, clock=clock, log_segment_bytes=4_096)
    append(log, b"durable")
    log.flush()
    for code, is_lasting in ((errno.EMFILE, False), (errno.EIO, True)):
        files.hook = failing("pread", path=log.segments[0].path, code=code)
        for _ in range(7):
            with pytest.raises(StorageError, match="reading at offset 0 failed"):
                log.read(0, below=LogEnd.LOG_END, max_bytes=100, cached_only=False)
            append(log, b"taken")
            clock.advance(1_000)
        assert manager.refusals.is_lasting is is_lasting, "although appends are taken"


def test_a_disk_that_fails_to_sync_is_left_by_whoever_can(files: MemoryFiles) -> None:
    """Appends still succeed, since they only reach the page cache. Each checkpoint shows whether the disk still fails to sync."""
    clock = ManualClock()
    manager, _ = open_manager(files, clock)
    log, other = first_log(manager, "t"), first_log(manager, "u")
    append(log, b"doubt")
    files.hook = failing("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        log.flush()
    for _ in range(20):
        clock.advance(1_000)
        append(other, b"taken")
        with pytest.raises(OSError, match="Input/output"):
            manager.write_checkpoint_if_due(clock.monotonic_ms())
    assert manager.refusals.is_lasting
    files.hook = None
    clock.advance(5_000)
    assert manager.write_checkpoint_if_due(clock.monotonic_ms())
    assert manager.refusals.since_ms is None


def test_a_checkpoint_that_cannot_be_written_says_that_the_disk_refuses(files: MemoryFiles) -> None:
    clock = ManualClock()
    manager, log = open_log(files, clock=clock)
    delete_records(manager, log, 0)
    for code, refuses in ((errno.EMFILE, False), (errno.EIO, True)):
        append(log, b"moves")
        log.flush()
        files.hook = failing("fdatasync", path="checkpoint", code=code)
        clock.advance(1_000)
        with pytest.raises(OSError):
            manager.write_checkpoint_if_due(clock.monotonic_ms())
        files.hook = None
        assert (manager.refusals.since_ms is not None) is refuses


def test_a_flush_that_ends_with_its_topic_is_no_trouble_of_the_disk(files: MemoryFiles) -> None:
    manager, _ = open_manager(files)
    log = first_log(manager, "t")
    append(log, b"gone")
    task = log.prepare_flush()
    assert task is not None
    log.mark_deleted()
    log.fail_flush(task, OSError(errno.EBADF, "Bad file descriptor"))
    assert manager.refusals.since_ms is None


def test_too_many_open_files_is_a_refused_request(files: MemoryFiles, log: Partition) -> None:
    files.hook = failing("open", path=".log", code=errno.EMFILE)
    log.resources.open_files.close()
    with pytest.raises(ResourceExhaustedError, match="too many open files") as refused:
        append(log, b"x")
    assert refused.value.fate is Fate.NOT_APPENDED
    with pytest.raises(StorageError, match="too many open files"):
        log.read(0, below=LogEnd.LOG_END, max_bytes=100, cached_only=False)
    files.hook = None
    assert append(log, b"x") == 1


def test_open_files_stay_bounded_over_many_segments(files: MemoryFiles) -> None:
    _, log = open_log(files, log_segment_bytes=4_096, log_max_open_files=16)
    for n in range(200):
        append(log, b"%04d" % n * 300)
        log.flush()
    assert len(log.segments) > 50
    assert len(payloads(log)) == 200
    assert files.open_count <= 17


def test_refused_appends_keep_no_files_open(files: MemoryFiles) -> None:
    """With more partitions than file descriptors, nothing could be opened any more: neither to free space nor to take appends."""
    manager, _ = open_manager(files, log_max_open_files=4)
    manager.create_topic("t", 20, {})
    logs = [first_log(manager, "t", number) for number in range(20)]
    for space in (0, 50):
        for log in logs:
            files.space_left = space
            with pytest.raises(StorageError, match="the disk is full"):
                append(log, b"x" * 100)
    assert files.open_count <= 5
    files.space_left = None
    for log in logs:
        assert append(log, b"x" * 100) == 0
        log.flush()
    assert files.open_count <= 5


@pytest.mark.parametrize("suffix", [".snapshot.tmp", ".index.tmp", "leader-epochs.tmp"])
def test_derived_files_that_cannot_be_written_stop_nothing(files: MemoryFiles, suffix: str) -> None:
    _, log = open_log(files, log_segment_bytes=4_096)
    files.hook = failing("create", path=suffix, code=errno.ENOSPC)
    for n in range(30):
        append(log, b"%04d" % n * 80)
        if n % 7 == 0:
            log.flush()
    log.flush()
    assert log.ends.high_watermark == 30
    found = payloads(log)
    files.kill()
    reopened, report = open_manager(files, log_segment_bytes=4_096)
    assert not report.cut_bytes
    assert payloads(first_log(reopened)) == found


def test_a_roll_that_fails_leaves_the_log_as_it_was(files: MemoryFiles, log: Partition) -> None:
    append(log, b"x" * 3_800)
    files.hook = failing("create", path=".log", code=errno.EROFS)
    with pytest.raises(StorageError) as refused:
        append(log, b"needs a new segment" * 20)
    assert refused.value.fate is Fate.NOT_APPENDED
    assert len(log.segments) == 1
    files.hook = None
    assert append(log, b"needs a new segment" * 20) == 2
    assert len(log.segments) == 2


@pytest.mark.parametrize("operation", ["create", "fdatasync", "rename"])
def test_a_checkpoint_that_cannot_be_written_undoes_what_depends_on_it(files: MemoryFiles, operation: str) -> None:
    manager, log = open_log(files, log_segment_bytes=4_096, log_retention_bytes=4_096)
    for n in range(40):
        append(log, b"%04d" % n * 80)
    log.flush()
    files.hook = failing(operation, path="checkpoint")
    with pytest.raises(StorageError, match="log start"):
        delete_records(manager, log, 20)
    with pytest.raises(OSError, match="Input/output"):
        manager.retention_pass()
    assert log.ends.log_start_offset == 0
    assert len(payloads(log)) == 40
    with pytest.raises(OSError, match="Input/output"):
        manager.write_checkpoint_if_due(10_000_000)
    files.hook = None
    assert manager.retention_pass() > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_roll_is_durable_though_no_derived_file_can_be_written(files: MemoryFiles, seed: int) -> None:
    """Only the flush itself then syncs the directory entry of the new segment."""
    _, log = open_log(files, log_segment_bytes=4_096)
    files.hook = failing("create", path=".tmp")
    for n in range(40):
        append(log, b"%04d" % n * 80)
        log.flush()
    assert len(log.segments) > 2
    found = payloads(log)
    files.power_cut(random.Random(seed))
    reopened, report = open_manager(files, log_segment_bytes=4_096)
    assert not report.damaged
    assert payloads(first_log(reopened)) == found


def test_what_a_failed_write_left_does_not_stay_in_a_closed_segment(files: MemoryFiles, log: Partition) -> None:
    append(log, b"x" * 3_500)
    files.space_left = 50
    files.hook = failing("truncate", path=".log")
    with pytest.raises(StorageError) as refused:
        append(log, b"y" * 200)
    assert refused.value.fate is Fate.UNKNOWN
    files.space_left = files.hook = None
    assert append(log, b"needs a new segment" * 40) == 2
    closed = log.segments[0]
    assert (len(log.segments), len(files.read_file(closed.path))) == (2, closed.size_bytes)
    log.flush()
    found = payloads(log)
    files.power_cut(random.Random(2))
    reopened, report = open_manager(files, log_segment_bytes=4_096)
    assert not report.damaged
    assert payloads(first_log(reopened)) == found
