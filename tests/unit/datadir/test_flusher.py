"""Group commit with real threads: one flush per partition at a time; batches appended meanwhile share the next one."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from brokerd.datadir.flusher import Flusher
from brokerd.errors import StorageError
from brokerd.partition.partition import Partition
from brokerd.sharing import Caller
from tests.support.build import append, first_log, open_log, open_manager
from tests.support.files import MemoryFiles, failing
from tests.support.loop import all_wait
from tests.support.wait import DEADLINE_S

WRITER = Caller("writer", "w1")


class SlowDisk:
    """Counts the fdatasyncs of segments and blocks each until the test releases it."""

    def __init__(self, files: MemoryFiles) -> None:
        self.count = 0
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.error: Exception | None = None
        files.hook = self._hook

    def _hook(self, operation: str, path: str) -> None:
        if operation == "fdatasync" and path.endswith(".log"):
            self.count += 1
            self.began.release()
            assert self.may_end.acquire(timeout=DEADLINE_S)
            if self.error is not None:
                raise self.error


class TwoLogs:
    """The logs of two topics on one slow disk, and a flusher with one thread."""

    def __init__(self) -> None:
        files = MemoryFiles()
        self.manager, _ = open_manager(files)
        self.log, self.other = first_log(self.manager, "t"), first_log(self.manager, "u")
        self.disk = SlowDisk(files)

    def flusher(self) -> Flusher:
        """Call this inside the event loop."""
        return Flusher(threads=1, on_flush=lambda _log, _duration_ns: None)


async def drained(flusher: Flusher) -> None:
    """Waits until every log is flushed."""
    await asyncio.wait_for(flusher.drain(), DEADLINE_S)


async def test_what_comes_during_a_flush_shares_the_next_one() -> None:
    logs = TwoLogs()
    log, other, disk = logs.log, logs.other, logs.disk
    advanced: list[tuple[str, int]] = []
    flusher = Flusher(threads=3, on_flush=lambda log, _duration_ns: advanced.append((log.name, log.ends.high_watermark)))
    for _ in range(3):
        append(log, b"first")
        flusher.mark_dirty(log, WRITER)
    await asyncio.to_thread(disk.began.acquire, timeout=DEADLINE_S)
    for _ in range(50):
        append(log, b"meanwhile")
        flusher.mark_dirty(log, WRITER)
    append(other, b"not held up")
    flusher.mark_dirty(other, WRITER)
    await asyncio.to_thread(disk.began.acquire, timeout=DEADLINE_S)
    assert log.ends.high_watermark == 0
    for _ in range(3):
        disk.may_end.release()
    await drained(flusher)
    await flusher.close()
    assert disk.count == 3
    assert sorted(advanced) == [("t-0", 3), ("t-0", 53), ("u-0", 1)]
    assert log.core.flushes.dirty_bytes == logs.manager.dirty_bytes == 0


async def test_a_failed_flush_is_told_once_and_others_go_on() -> None:
    logs = TwoLogs()
    log, other, disk, flusher = logs.log, logs.other, logs.disk, logs.flusher()
    disk.error = OSError(5, "Input/output error")
    disk.may_end.release()
    append(log, b"doubt")
    flusher.mark_dirty(log, WRITER)
    await drained(flusher)
    with pytest.raises(StorageError):
        append(log, b"no")
    disk.error = None
    disk.may_end.release()
    append(other, b"fine")
    flusher.mark_dirty(other, WRITER)
    await drained(flusher)
    await flusher.close()
    assert (log.ends.high_watermark, other.ends.high_watermark) == (0, 1)


async def test_more_partitions_than_threads_are_all_flushed() -> None:
    manager, _ = open_manager(MemoryFiles())
    manager.create_topic("many", 40, {})
    flusher = Flusher(threads=3, on_flush=lambda _log, _duration_ns: None)
    for _ in range(5):
        for log in manager.partitions.of_clients():
            append(log, b"x")
            flusher.mark_dirty(log, WRITER)
        await all_wait()  # the first flushes have begun
    await drained(flusher)
    await flusher.close()
    assert {log.ends.high_watermark for log in manager.partitions.of_clients()} == {5}


async def test_whatever_a_flush_ends_with_its_log_stops_and_others_go_on() -> None:
    logs = TwoLogs()
    log, other, disk, flusher = logs.log, logs.other, logs.disk, logs.flusher()
    append(log, b"doubt")
    append(other, b"waits for the thread")
    flusher.mark_dirty(log, WRITER)
    flusher.mark_dirty(other, WRITER)
    await asyncio.to_thread(disk.began.acquire, timeout=DEADLINE_S)
    disk.error = MemoryError()
    disk.may_end.release()
    await asyncio.to_thread(disk.began.acquire, timeout=DEADLINE_S)
    disk.error = None
    disk.may_end.release()
    await drained(flusher)
    await flusher.close()
    with pytest.raises(StorageError, match="MemoryError"):
        append(log, b"no")
    assert (log.ends.high_watermark, log.core.flushes.dirty_bytes, other.ends.high_watermark) == (0, 0, 1)


async def test_listeners_that_fail_hold_up_nothing() -> None:
    manager, _ = open_manager(MemoryFiles())
    log, other = first_log(manager, "t"), first_log(manager, "u")

    def fail(log: Partition, _duration_ns: int) -> None:
        raise KeyError(log.name)

    flusher = Flusher(threads=1, on_flush=fail)
    for _ in range(3):
        for each in (log, other):
            append(each, b"x")
            flusher.mark_dirty(each, WRITER)
        await drained(flusher)
    await flusher.close()
    assert (log.ends.high_watermark, other.ends.high_watermark) == (3, 3)


async def test_a_directory_that_cannot_be_opened_to_be_synced_is_no_failed_flush(files: MemoryFiles) -> None:
    _, log = open_log(files, log_segment_bytes=4_096)
    refusals = iter([errno.EMFILE, errno.ENFILE])

    def hook(operation: str, path: str) -> None:
        if operation == "sync_dir" and path == log.tp.directory_name:
            code = next(refusals, None)
            if code is not None:
                raise OSError(code, errno.errorcode[code])

    files.hook = hook
    flusher = Flusher(threads=1, on_flush=lambda _log, _duration_ns: None)
    for n in range(20):
        append(log, b"%04d" % n * 100)
    assert len(log.segments) > 1
    flusher.mark_dirty(log, WRITER)
    await drained(flusher)
    await flusher.close()
    assert (log.core.health.failure, log.ends.high_watermark, log.core.flushes.dirty_bytes) == (None, 20, 0)
    assert not log.core.snapshots.waiting
    assert append(log, b"goes on") == 20


def test_a_flush_here_that_could_not_be_tried_says_so_and_stops_nothing(files: MemoryFiles) -> None:
    log = first_log(open_manager(files, log_segment_bytes=4_096)[0])
    for n in range(20):
        append(log, b"%04d" % n * 100)
    files.hook = failing("sync_dir", code=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        log.flush()
    assert (log.core.health.failure, log.ends.high_watermark) == (None, 0)
    files.hook = None
    log.flush()
    assert log.ends.high_watermark == 20
