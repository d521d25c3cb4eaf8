"""A wall clock that jumps, or is wrong at the start: what is believed, and what retention and producers make of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from brokerd.datadir.believed_time import SLACK_MS, START_SLACK_MS, BelievedTime
from brokerd.ids import ProducerIdAndEpoch
from tests.support.build import append, first_log, open_manager
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096, "log_retention_ms": 7 * DAY_MS}


def _time(clock: ManualClock, seen_wall_ms: int | None = None) -> BelievedTime:
    return BelievedTime(now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms(), seen_wall_ms=seen_wall_ms)


def _believed(time: BelievedTime, clock: ManualClock) -> int:
    return time.believe(now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms())


@pytest.mark.parametrize("step_ms", [0, SLACK_MS, -SLACK_MS])
def test_a_clock_that_goes_its_way_is_believed(step_ms: int) -> None:
    clock = ManualClock()
    time = _time(clock, START_WALL_MS - START_SLACK_MS)
    for _ in range(10):
        clock.advance(60_000)
        clock.jump_wall(step_ms)
        assert _believed(time, clock) == clock.wall_ms()
    assert not time.take_news()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, 8 * HOUR_MS, 30 * DAY_MS, 20_000 * DAY_MS, -HOUR_MS, -30 * DAY_MS])
def test_a_jump_is_said_once_and_believed_within_a_day(jump_ms: int) -> None:
    clock = ManualClock(wall_ms=30_000 * DAY_MS)
    time = _time(clock)
    clock.advance(60_000)
    clock.jump_wall(jump_ms)
    assert _believed(time, clock) == clock.wall_ms() - jump_ms, "nothing of it at once"
    assert ("ahead of" if jump_ms > 0 else "behind") in time.take_news()
    before = abs(jump_ms)
    for _ in range(24 * 60 + 1):
        clock.advance(60_000)
        gap = abs(clock.wall_ms() - _believed(time, clock))
        assert gap <= before
        assert before - gap <= max(abs(jump_ms) // (24 * 60), 60_000) + SLACK_MS, "and never much"
        before = gap
    assert _believed(time, clock) == clock.wall_ms()
    assert not time.take_news()
    clock.jump_wall(2 * SLACK_MS)
    _believed(time, clock)
    assert time.take_news(), "the next one is said too"


def test_a_second_jump_before_the_first_is_believed_makes_it_faster() -> None:
    clock = ManualClock()
    time = _time(clock)
    for jump_ms in (HOUR_MS, 90 * DAY_MS):
        clock.jump_wall(jump_ms)
        clock.advance(60_000)
        _believed(time, clock)
        assert time.take_news()
    clock.advance(DAY_MS)
    assert _believed(time, clock) == clock.wall_ms()


def test_a_jump_and_its_correction_leave_nothing() -> None:
    clock = ManualClock()
    time = _time(clock)
    clock.jump_wall(300 * DAY_MS)
    _believed(time, clock)
    clock.jump_wall(-300 * DAY_MS)
    clock.advance(60_000)
    assert _believed(time, clock) == clock.wall_ms()


def test_appends_are_never_stamped_with_a_clock_that_is_known_to_be_behind() -> None:
    clock = ManualClock(wall_ms=0)
    time = _time(clock, START_WALL_MS)
    assert time.stamp(now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms()) == START_WALL_MS
    clock.advance(60_000)
    assert time.stamp(now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms()) == START_WALL_MS + 60_000
    clock.jump_wall(START_WALL_MS + HOUR_MS)
    _believed(time, clock)
    assert time.stamp(now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms()) == clock.wall_ms()


def _fill(manager: LogManager, clock: ManualClock) -> None:
    log = first_log(manager)
    append(log, b"p", producer=ProducerIdAndEpoch(1, 0), sequence=0, now_ms=manager.time.stamp_wall_ms(), timestamp_ms=0)
    for _ in range(40):
        append(log, b"x" * 300, now_ms=manager.time.stamp_wall_ms(), timestamp_ms=0)
    log.flush()


@pytest.mark.parametrize("ending", ["kill", "close"])
def test_a_start_a_month_ahead_deletes_nothing_for_hours(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    files, clock = MemoryFiles(), ManualClock()
    manager, _ = open_manager(files, clock, **SETTINGS)
    _fill(manager, clock)
    manager.retention_pass(clock.wall_ms())
    for _ in range(3):
        files.kill() if ending == "kill" else manager.close()
        clock = ManualClock(wall_ms=START_WALL_MS + 30 * DAY_MS)
        with caplog.at_level(logging.WARNING):
            manager, _ = open_manager(files, clock, **SETTINGS)
        assert "30 days, 0:00:00 ahead of the believed time" in caplog.text
        clock.advance(60_000)
        assert manager.retention_pass(clock.wall_ms()) == 0
        assert len(first_log(manager).core.producers) == 1
    clock.advance(DAY_MS)
    assert manager.expire_producers(clock.wall_ms()) == 1
    assert manager.retention_pass(clock.wall_ms()) > 0, "in the end it is believed"


def test_a_start_days_behind_that_is_corrected_and_restarted_deletes_nothing_young() -> None:
    files, clock = MemoryFiles(), ManualClock()
    manager, _ = open_manager(files, clock, log_retention_ms=DAY_MS)
    manager.retention_pass(clock.wall_ms())
    manager.close()
    behind = ManualClock(wall_ms=START_WALL_MS - 3 * DAY_MS)
    manager, _ = open_manager(files, behind, log_retention_ms=DAY_MS)
    _fill(manager, behind)
    behind.jump_wall(3 * DAY_MS)
    behind.advance(60_000)
    assert manager.retention_pass(behind.wall_ms()) == 0
    manager.close()
    manager, _ = open_manager(files, behind, log_retention_ms=DAY_MS)
    assert manager.retention_pass(behind.wall_ms()) == 0
    assert len(first_log(manager).core.producers) == 1


def test_what_was_appended_in_1970_lives_as_long_as_it_should() -> None:
    files, clock = MemoryFiles(), ManualClock(wall_ms=0)
    manager, _ = open_manager(files, clock, **SETTINGS)
    _fill(manager, clock)
    clock.advance(60_000)
    clock.jump_wall(START_WALL_MS)
    manager.retention_pass(clock.wall_ms())
    for _ in range(6):
        clock.advance(DAY_MS)
        assert manager.retention_pass(clock.wall_ms()) == 0
    clock.advance(2 * DAY_MS)
    assert manager.retention_pass(clock.wall_ms()) > 0
