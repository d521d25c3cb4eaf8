"""One partition: appends, rolls, reads, look-ups by time, deletion and retention."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest

from brokerd.errors import Fate, InvalidTxnStateError, OffsetOutOfRangeError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.partition.reader import NeedsRoom
from brokerd.record.header import StampFlags, decode_header
from brokerd.storage.files import WouldBlock
from tests.support.build import (
    append,
    arrow_batch,
    delete_records,
    first_log,
    open_log,
    open_manager,
    payloads,
    raw_batch,
    read_batches,
)
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager

SMALL: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 300}


@pytest.fixture
def manager(files: MemoryFiles) -> LogManager:
    return open_manager(files, **SMALL)[0]


@pytest.fixture
def log(manager: LogManager) -> Partition:
    return first_log(manager)


def _filled(log: Partition, count: int, *, size: int = 200, records: int = 3) -> Partition:
    for n in range(count):
        append(log, b"%08d" % n * (size // 8), count=records)
    log.flush()
    return log


def test_an_append_is_stamped_and_durable_after_the_flush(log: Partition) -> None:
    info = log.append(raw_batch(b"payload!", count=5), now_wall_ms=START_WALL_MS + 9)
    assert info == (0, 4, START_WALL_MS + 9, False, False, log.leader_epoch)
    assert (log.ends.log_end_offset, log.ends.high_watermark, log.ends.last_stable_offset, log.core.flushes.dirty_bytes) == (
        5,
        0,
        0,
        104,
    )
    task = log.prepare_flush()
    assert task is not None
    assert log.prepare_flush() is None
    append(log, b"later")
    task.run()
    assert log.complete_flush(task)
    assert (log.ends.log_end_offset, log.ends.high_watermark, log.ends.last_stable_offset, log.core.flushes.dirty_bytes) == (
        6,
        5,
        5,
        104,
    )
    header = next(read_batches(log)).header
    assert (header.base_offset, header.append_timestamp, header.leader_epoch, header.stamp_flags) == (0, START_WALL_MS + 9, 1, 0)
    log.flush()
    assert log.ends.high_watermark == 6
    assert log.prepare_flush() is None


def test_a_repeated_batch_is_answered_as_its_first_append(log: Partition) -> None:
    batch = raw_batch(b"once", count=2, producer=ProducerIdAndEpoch(5, 0), sequence=0)
    first = log.append(batch, now_wall_ms=START_WALL_MS)
    again = log.append(batch, now_wall_ms=START_WALL_MS + 50)
    assert again == first._replace(is_duplicate=True)
    assert log.ends.log_end_offset == 2


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_repeated_batch_is_answered_with_the_time_that_it_carries(
    timestamp_type: str, is_restarted: bool, files: MemoryFiles, manager: LogManager
) -> None:
    """The wall clock, the log time and message.timestamp.type at the retry do not matter."""
    other = {"CreateTime": "LogAppendTime", "LogAppendTime": "CreateTime"}[timestamp_type]
    manager.create_topic("times", 1, {"message.timestamp.type": timestamp_type})
    log = first_log(manager, "times")
    batch = raw_batch(b"once", producer=ProducerIdAndEpoch(5, 0), sequence=0)
    first = log.append(batch, now_wall_ms=START_WALL_MS + 7, clock_ahead_ms=3_600_000)
    log.flush()
    if is_restarted:
        manager.close()
        log = first_log(open_manager(files)[0], "times")
    log.configure(dataclasses.replace(log.config, message_timestamp_type=other))
    again = log.append(batch, now_wall_ms=START_WALL_MS + 50, clock_ahead_ms=3_600_000)
    header = next(read_batches(log)).header
    assert again == first._replace(is_duplicate=True, leader_epoch=log.leader_epoch)
    assert again.append_timestamp == header.append_timestamp == START_WALL_MS + 7
    assert again.is_log_append_time == bool(header.stamp_flags) == (timestamp_type == "LogAppendTime")


def test_a_transactional_batch_needs_an_open_member(log: Partition) -> None:
    batch = raw_batch(b"txn", producer=ProducerIdAndEpoch(5, 0), sequence=0, attributes=1)
    with pytest.raises(InvalidTxnStateError) as refused:
        log.append(batch, now_wall_ms=START_WALL_MS)
    assert refused.value.fate is Fate.NOT_APPENDED
    append(log, b"before")
    log.append(batch, now_wall_ms=START_WALL_MS, is_open_member=True)
    append(log, b"behind")
    log.flush()
    assert (log.ends.last_stable_offset, log.ends.high_watermark) == (1, 3)


def test_segments_roll_by_size_and_age(log: Partition) -> None:
    _filled(log, 30)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) == 30 * 296 // 4_096 + 1
    assert all(segment.size_bytes <= 4_096 for segment in log.segments)
    append(log, b"week later", now_ms=START_WALL_MS + 604_800_000)
    assert len(log.segments) == len(bases) + 1
    log.flush()
    assert len(payloads(log)) == 31


@pytest.mark.parametrize("max_bytes", [1, 296, 300, 600, 1_000, 5_000, 1 << 20])
def test_reads_are_whole_batches_in_order_at_most_as_large_as_asked(log: Partition, max_bytes: int) -> None:
    _filled(log, 40)
    for offset in range(120):
        found = log.read(offset, below=LogEnd.HIGH_WATERMARK, max_bytes=max_bytes, cached_only=False)
        assert found.first_offset == offset // 3 * 3
        assert found.size_bytes == sum(len(chunk) for chunk in found.chunks)
        assert found.size_bytes <= max_bytes or found.next_offset == found.first_offset + 3
        assert found.next_offset == found.first_offset + found.size_bytes // 296 * 3
        assert decode_header(bytes(found.chunks[0][:96])).base_offset == found.first_offset
        if max_bytes >= 600:
            assert found.size_bytes + 296 > max_bytes or found.next_offset == 120
    assert [batch.header.base_offset for batch in read_batches(log, max_bytes=max_bytes)] == list(range(0, 120, 3))


@pytest.mark.parametrize("size", [100, 10_000])
def test_a_first_batch_larger_than_there_is_room_for_is_not_read_but_its_size_told(files: MemoryFiles, size: int) -> None:
    log = _filled(first_log(open_manager(files)[0]), 3, size=size)
    read = partial(log.read, below=LogEnd.HIGH_WATERMARK, max_bytes=1, cached_only=False)
    batch_bytes = read(0).size_bytes
    with pytest.raises(NeedsRoom) as needs:
        read(3, first_batch_max_bytes=batch_bytes - 1)
    assert needs.value.size_bytes == batch_bytes
    assert read(3, first_batch_max_bytes=batch_bytes).size_bytes == batch_bytes
    assert read(0, max_bytes=2 * batch_bytes, first_batch_max_bytes=0).next_offset == 6
    assert read(9, first_batch_max_bytes=0).chunks == []


def test_reads_stop_at_the_log_end_that_they_name(log: Partition) -> None:
    _filled(log, 3)
    append(log, b"not durable", count=3)
    read = partial(log.read, max_bytes=10_000, cached_only=False)
    for below, end in ((LogEnd.LAST_STABLE_OFFSET, 9), (LogEnd.HIGH_WATERMARK, 9), (LogEnd.LOG_END, 12)):
        found = read(0, below=below)
        assert (found.next_offset, found.until_offset) == (end, end)
        for offset in range(end, 13):
            assert read(offset, below=below) == ([], 0, offset, offset, end)
    for offset in (-1, 13):
        with pytest.raises(OffsetOutOfRangeError) as refused:
            read(offset, below=LogEnd.HIGH_WATERMARK)
        assert refused.value.log_start_offset == 0
    assert log._reader.read(0, max_bytes=10_000, until_offset=10, cached_only=False).next_offset == 9, "whole batches"


def test_a_cold_read_says_so_instead_of_waiting(files: MemoryFiles, log: Partition) -> None:
    _filled(log, 5)
    files.is_cold = True
    with pytest.raises(WouldBlock):
        log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=1_000, cached_only=True)
    assert log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=1_000, cached_only=False).next_offset == 9
    files.is_cold = False
    assert log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=1_000, cached_only=True).next_offset == 9


@pytest.mark.parametrize("cold", [range(1), range(600_000, 900_000), range(1_100_000, 2_000_000)], ids=["head", "middle", "end"])
def test_much_that_is_not_all_cached_is_not_even_begun(files: MemoryFiles, cold: range) -> None:
    log = _filled(first_log(open_manager(files)[0]), 12, size=100_000)
    assert log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=2_000_000, cached_only=True).next_offset == 36
    files.cold_positions = cold
    with pytest.raises(WouldBlock):
        log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=2_000_000, cached_only=True)
    assert 0 < files.cold_read_bytes < 4_096, "more makes the kernel work, though nobody waits for it"
    assert log.read(0, below=LogEnd.HIGH_WATERMARK, max_bytes=2_000_000, cached_only=False).next_offset == 36


def test_an_index_that_points_between_batches_is_dropped_not_believed(log: Partition) -> None:
    _filled(log, 12)
    index = log.segments[0].index
    assert index is not None
    for at in range(len(index)):
        index.positions[at] += 8
    assert len(payloads(log, 9)) == 9
    assert log.damage is None


def test_records_are_found_by_time(log: Partition, manager: LogManager) -> None:
    for n in range(30):
        times = [START_WALL_MS + n * 100 + 10 * k for k in range(3)]
        log.append(arrow_batch([b"x" * 50] * 3, times), now_wall_ms=START_WALL_MS + 10_000)
    log.flush()
    assert len(log.segments) > 1
    assert log.look_ups.offset_for_timestamp(0) == (0, START_WALL_MS)
    for n in (0, 1, 7, 29):
        base = START_WALL_MS + n * 100
        assert log.look_ups.offset_for_timestamp(base) == (n * 3, base)
        assert log.look_ups.offset_for_timestamp(base + 1) == (n * 3 + 1, base + 10)
        assert log.look_ups.offset_for_timestamp(base + 20) == (n * 3 + 2, base + 20)
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 2_921) is None
    log.append(arrow_batch([b"y"], [START_WALL_MS + 9_999]), now_wall_ms=START_WALL_MS)
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 9_999) is None
    delete_records(manager, log, 4)
    assert log.look_ups.offset_for_timestamp(0) == (4, START_WALL_MS + 110)


def test_times_out_of_order_are_found_too(log: Partition) -> None:
    for time in (500, 100, 900, 300, 950):
        log.append(arrow_batch([b"x"], [START_WALL_MS + time]), now_wall_ms=START_WALL_MS)
    log.flush()
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 200) == (0, START_WALL_MS + 500)
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 501) == (2, START_WALL_MS + 900)
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 901) == (4, START_WALL_MS + 950)


def test_log_append_time_is_stamped_and_searched(manager: LogManager) -> None:
    manager.create_topic("times", 1, {"message.timestamp.type": "LogAppendTime"})
    log = first_log(manager, "times")
    log.append(arrow_batch([b"x"], [5]), now_wall_ms=START_WALL_MS)
    log.append(arrow_batch([b"x"], [4]), now_wall_ms=START_WALL_MS + 7)
    log.flush()
    assert next(read_batches(log)).header.stamp_flags == StampFlags.LOG_APPEND_TIME
    assert log.look_ups.offset_for_timestamp(START_WALL_MS + 1) == (1, START_WALL_MS + 7)


def test_deleted_records_are_gone_durably(files: MemoryFiles, log: Partition, manager: LogManager) -> None:
    _filled(log, 40)
    append(log, b"not durable yet")
    assert delete_records(manager, log, 50) == 50
    assert delete_records(manager, log, 20) == 50
    with pytest.raises(OffsetOutOfRangeError):
        log.read(49, below=LogEnd.HIGH_WATERMARK, max_bytes=1, cached_only=False)
    with pytest.raises(OffsetOutOfRangeError):
        delete_records(manager, log, 121)
    assert next(read_batches(log)).header.base_offset == 48
    segments = len(log.segments)
    assert manager.retention_pass() == segments - len(log.segments) > 0
    files.kill()
    restarted, reopened = open_log(files, **SMALL)
    assert reopened.ends.log_start_offset == 50
    assert next(read_batches(reopened)).header.base_offset == 48
    reopened.flush()
    assert delete_records(restarted, reopened, -1) == reopened.ends.high_watermark == 121


def test_retention_by_size_keeps_at_least_that_much(manager: LogManager) -> None:
    manager.create_topic("sized", 1, {"retention.bytes": "6000"})
    log = _filled(first_log(manager, "sized"), 60)
    size = log.core.size_bytes
    removed = manager.retention_pass()
    assert removed > 0
    assert 6_000 <= log.core.size_bytes < size
    assert log.core.size_bytes - log.segments[0].size_bytes < 6_000
    assert log.ends.log_start_offset == log.segments[0].base_offset
    assert len(payloads(log)) * 3 == log.ends.high_watermark - log.ends.log_start_offset
    assert manager.retention_pass() == 0


def test_retention_by_time_takes_the_last_segment_too_but_nothing_that_is_not_durable(files: MemoryFiles) -> None:
    clock = ManualClock()
    manager, _ = open_manager(files, clock, **SMALL)
    manager.create_topic("timed", 1, {"retention.ms": "60000"})
    log = _filled(first_log(manager, "timed"), 40)
    clock.advance(60_001)
    append(log, b"new", now_ms=clock.wall_ms())
    manager.retention_pass()
    assert log.ends.log_start_offset == log.segments[0].base_offset <= 120
    log.flush()
    clock.advance(60_002)
    manager.retention_pass()
    assert (log.ends.log_start_offset, log.ends.high_watermark, len(log.segments), log.core.size_bytes) == (121, 121, 1, 0)
    assert append(log, b"goes on", now_ms=clock.wall_ms()) == 121
    manager.close()
    reopened, report = open_manager(files, clock, **SMALL)
    assert report.was_clean
    assert first_log(reopened, "timed").ends.log_start_offset == 121


def test_a_wall_clock_that_jumps_ahead_deletes_nothing(files: MemoryFiles) -> None:
    clock = ManualClock()
    manager, _ = open_manager(files, clock, **SMALL)
    log = _filled(first_log(manager), 40)
    append(log, b"p", producer=ProducerIdAndEpoch(1, 0), sequence=0)
    log.flush()
    clock.jump_wall(30 * 86_400_000)
    assert manager.retention_pass() == 0
    assert manager.expire_producers() == 0
    clock.advance(8 * 86_400_000)
    assert manager.expire_producers() == 1
    assert manager.retention_pass() > 0
