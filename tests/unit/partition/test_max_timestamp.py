"""ListOffsets' largest timestamp: of what is left and durable, never none while records are there. The oracle walks all records."""

from __future__ import annotations

import random

import pytest

from brokerd.partition.partition import Partition
from tests.support.build import arrow_batch, first_log, open_manager, raw_batch
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles


def _log(files: MemoryFiles, **configs: str) -> Partition:
    manager, _ = open_manager(files, log_segment_bytes=4_096, log_index_interval_bytes=1_000)
    manager.create_topic("t", 1, {name.replace("_", "."): value for name, value in configs.items()})
    return first_log(manager)


def _expected(times: list[int], start: int, end: int) -> tuple[int, int] | None:
    if start >= end:
        return None
    newest = max(times[start:end])
    return times.index(newest, start), newest


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_of_what_is_left_is_found(seed: int) -> None:
    rng = random.Random(seed)
    files = MemoryFiles()
    log = _log(files)
    times: list[int] = []
    for _ in range(40):
        batch = [START_WALL_MS + rng.randrange(100_000) for _ in range(rng.randrange(1, 4))]
        if seed == 0:
            batch = sorted(START_WALL_MS + len(times) * 10 + n for n in range(len(batch)))
        if seed == 1:
            batch = [START_WALL_MS - len(times) * 10 - n for n in range(len(batch))]
        log.append(arrow_batch([b"v" * 60] * len(batch), batch), now_wall_ms=START_WALL_MS)
        times += batch
        if rng.random() < 0.9:
            log.flush()
    assert log.look_ups.max_timestamp_offset() == _expected(times, 0, log.ends.high_watermark)
    for start in range(0, log.ends.high_watermark + 1, 3):
        log.set_log_start(start)
        assert log.look_ups.max_timestamp_offset() == _expected(times, start, log.ends.high_watermark), start
    log.set_log_start(0)
    log.flush()
    files.kill()
    log = first_log(open_manager(files, log_segment_bytes=4_096)[0])
    for start in range(0, log.ends.high_watermark + 1, 7):
        log.set_log_start(start)
        assert log.look_ups.max_timestamp_offset() == _expected(times, start, log.ends.high_watermark), start


def test_what_is_not_durable_is_not_told_and_hides_nothing() -> None:
    log = _log(MemoryFiles())
    assert log.look_ups.max_timestamp_offset() is None
    log.append(arrow_batch([b"v"], [START_WALL_MS + 5]), now_wall_ms=START_WALL_MS)
    log.flush()
    log.append(arrow_batch([b"v"], [START_WALL_MS + 9]), now_wall_ms=START_WALL_MS)
    assert log.look_ups.max_timestamp_offset() == (0, START_WALL_MS + 5)


def test_times_of_the_append_and_batches_nobody_can_decode_have_an_answer_too() -> None:
    log = _log(MemoryFiles(), message_timestamp_type="LogAppendTime")
    for n in range(6):
        log.append(raw_batch(b"x" * 200, count=5), now_wall_ms=START_WALL_MS + 10 - n)
    log.flush()
    for start, found in ((0, (0, 10)), (4, (4, 10)), (7, (7, 9)), (29, (29, 5))):
        log.set_log_start(start)
        assert log.look_ups.max_timestamp_offset() == (found[0], START_WALL_MS + found[1])


def test_a_header_that_promises_a_time_that_no_record_has_is_no_reason_for_none() -> None:
    log = _log(MemoryFiles())
    log.append(arrow_batch([b"v", b"w"], [START_WALL_MS + 7, START_WALL_MS + 3]), now_wall_ms=START_WALL_MS)
    log.append(raw_batch(b"no arrow", count=2, timestamp_ms=START_WALL_MS + 50), now_wall_ms=START_WALL_MS)
    log.flush()
    assert log.look_ups.max_timestamp_offset() == (2, START_WALL_MS + 50)
    log.set_log_start(3)
    assert log.look_ups.max_timestamp_offset() == (3, START_WALL_MS + 50)
    log.set_log_start(1)
    assert log.look_ups.max_timestamp_offset() == (2, START_WALL_MS + 50)
