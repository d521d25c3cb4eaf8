"""A wall clock that jumps or is wrong after a boot: how the log time follows it, and when segments and producers expire."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest

from brokerd.datadir.log_time import SLACK_MS, START_SLACK_MS, LogTime, NotedTime, read_clock
from brokerd.ids import ProducerIdAndEpoch
from tests.support.build import append, first_log, open_manager
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096, "log_retention_ms": 7 * DAY_MS}


def _time(clock: ManualClock, noted: NotedTime | None = None) -> LogTime:
    return LogTime(boot_id=clock.boot_id(), boot_ms=clock.boot_ms(), wall_ms=clock.wall_ms(), noted=noted)


def _now(time: LogTime, clock: ManualClock) -> int:
    return time.now(boot_ms=clock.boot_ms(), wall_ms=clock.wall_ms())


def _noted(wall_ms: int) -> NotedTime:
    return NotedTime(wall_ms, 0, 0, "", 0)


@pytest.mark.parametrize("step_ms", [0, SLACK_MS, -SLACK_MS])
def test_a_clock_that_goes_its_way_is_now(step_ms: int) -> None:
    clock = ManualClock()
    time = _time(clock, _noted(START_WALL_MS - START_SLACK_MS))
    for _ in range(10):
        clock.advance(60_000)
        clock.jump_wall(step_ms)
        assert _now(time, clock) == clock.wall_ms()
    assert not time.take_news()


@pytest.mark.parametrize("off_ms", [2 * HOUR_MS, 30 * DAY_MS])
def test_a_long_pause_is_believed_within_a_day(off_ms: int) -> None:
    clock = ManualClock(wall_ms=30_000 * DAY_MS)
    time = _time(clock, _noted(clock.wall_ms() - off_ms))
    assert _now(time, clock) == clock.wall_ms() - off_ms, "nothing of it at once"
    assert "take that over gradually" in time.take_news()
    before = off_ms
    for _ in range(24 * 60 + 1):
        clock.advance(60_000)
        gap = clock.wall_ms() - _now(time, clock)
        assert before - max(off_ms // (24 * 60), 60_000) - 1 <= gap <= before, "and never much"
        before = gap
    assert _now(time, clock) == clock.wall_ms()
    assert not time.take_news()


def test_of_a_pause_of_years_a_month_is_believed_in_a_day() -> None:
    """A clock that is decades ahead after a boot, and is corrected an hour later, ages batches by less than a week."""
    clock = ManualClock(wall_ms=39_000 * DAY_MS)
    time = _time(clock, _noted(19_000 * DAY_MS))
    assert "within 666 days, 16:00:00" in time.take_news()
    clock.advance(HOUR_MS)
    assert _now(time, clock) == 19_000 * DAY_MS + 31 * HOUR_MS
    clock.advance(DAY_MS)
    assert _now(time, clock) == 19_000 * DAY_MS + 25 * 31 * HOUR_MS


def test_a_log_that_began_in_1970_has_no_pause_up_to_the_present() -> None:
    first = ManualClock(wall_ms=0)
    time = _time(first)
    first.advance(HOUR_MS)
    _now(time, first)
    right = ManualClock()
    time = _time(right, time.noted())
    right.advance(DAY_MS)
    assert _now(time, right) == HOUR_MS + DAY_MS
    assert "do not count that" in time.take_news()
    right = ManualClock(wall_ms=right.wall_ms() + 5 * DAY_MS)
    time = _time(right, time.noted())
    right.advance(DAY_MS)
    assert _now(time, right) == HOUR_MS + 7 * DAY_MS, "now the clock is right, and says how long the machine was off"


@pytest.mark.parametrize("jump_ms", [HOUR_MS, 365 * DAY_MS, -HOUR_MS, -9 * DAY_MS])
def test_a_jump_is_said_once_and_ages_nothing(jump_ms: int) -> None:
    clock = ManualClock(wall_ms=30_000 * DAY_MS)
    time = _time(clock)
    begin_ms = _now(time, clock)
    clock.jump_wall(jump_ms)
    clock.advance(HOUR_MS)
    assert _now(time, clock) == begin_ms + HOUR_MS
    assert ("ahead of" if jump_ms > 0 else "behind") in time.take_news()
    clock.jump_wall(-jump_ms)
    assert _now(time, clock) == clock.wall_ms()
    time.take_news()
    assert not time.take_news()


def test_a_pause_by_a_wrong_clock_is_taken_back_with_its_correction() -> None:
    clock = ManualClock()
    time = _time(clock, _noted(clock.wall_ms() - 30 * DAY_MS))
    clock.advance(HOUR_MS)
    clock.jump_wall(-30 * DAY_MS)
    at_ms = _now(time, clock)
    assert abs(at_ms - clock.wall_ms()) <= 30 * DAY_MS // 24 + HOUR_MS, "but for what was believed in that hour"
    clock.advance(DAY_MS)
    assert _now(time, clock) == at_ms + DAY_MS, "and no more of it"


@pytest.mark.parametrize("is_pause_long", [False, True])
@pytest.mark.parametrize("behind_ms", [20 * DAY_MS, -20 * DAY_MS])
def test_a_node_that_joins_goes_on_with_the_time_of_the_cluster(behind_ms: int, is_pause_long: bool) -> None:
    clock, others_clock = ManualClock(), ManualClock()
    clock.jump_wall(-behind_ms)
    mine = _time(clock)
    others = _time(others_clock, _noted(START_WALL_MS - 10 * DAY_MS) if is_pause_long else None)
    _now(mine, clock)
    mine.take_over(_now(others, others_clock), others.owed)
    for _ in range(30):
        for each in (clock, others_clock):
            each.advance(HOUR_MS)
        assert _now(mine, clock) == _now(others, others_clock)
    clock.jump_wall(behind_ms)  # the clock is corrected
    assert _now(mine, clock) == _now(others, others_clock)


def test_a_machine_that_boots_behind_does_not_count_its_pause() -> None:
    clock = ManualClock(wall_ms=0)
    time = _time(clock, _noted(START_WALL_MS))
    assert _now(time, clock) == START_WALL_MS
    clock.advance(HOUR_MS)
    clock.jump_wall(START_WALL_MS + DAY_MS)
    assert _now(time, clock) == START_WALL_MS + HOUR_MS


def test_a_clock_that_was_behind_and_is_right_at_the_next_boot_has_no_pause_of_years() -> None:
    """The step from 1970 to the present is the clock's correction. Only the rest of the difference can be a pause."""
    behind = ManualClock(wall_ms=0)
    time = _time(behind, _noted(START_WALL_MS))
    behind.advance(HOUR_MS)
    assert _now(time, behind) == START_WALL_MS + HOUR_MS
    right = ManualClock(wall_ms=START_WALL_MS + 4 * HOUR_MS)
    time = _time(right, time.noted())
    for _ in range(48):
        right.advance(HOUR_MS)
        assert _now(time, right) <= right.wall_ms()
    assert _now(time, right) == right.wall_ms()


@pytest.mark.parametrize("short_ms", [HOUR_MS // 2, 2 * DAY_MS])
def test_a_clock_that_was_behind_and_is_less_so_at_the_next_boot_has_no_pause(short_ms: int) -> None:
    behind = ManualClock(wall_ms=0)
    time = _time(behind, _noted(START_WALL_MS))
    nearer = ManualClock(wall_ms=START_WALL_MS - short_ms)
    time = _time(nearer, time.noted())
    nearer.advance(DAY_MS)
    assert _now(time, nearer) == START_WALL_MS + DAY_MS


def test_a_pause_by_a_wrong_clock_is_taken_back_at_the_next_boot() -> None:
    clock = ManualClock(wall_ms=START_WALL_MS + 30 * DAY_MS)
    time = _time(clock, _noted(START_WALL_MS))
    clock.advance(HOUR_MS)
    at_ms = _now(time, clock)
    right = ManualClock(wall_ms=START_WALL_MS + HOUR_MS + 60_000)
    time = _time(right, time.noted())
    right.advance(DAY_MS)
    assert _now(time, right) == at_ms + DAY_MS, "and no more of it"


@pytest.mark.parametrize("seed", range(200))
def test_the_log_time_counts_what_passes_whatever_the_clock_says(seed: int) -> None:
    """Goal: over random jumps in both directions, suspends, restarts and reboots, the log time advances by the elapsed time: never
    by more, and by less only if a clock that was behind at a boot hid a pause. Method: a clock whose error the test knows. No boot
    sets it ahead, since that looks like a pause; the tests above cover that.
    """
    rng = random.Random(seed)
    clock = ManualClock()
    time = _time(clock)
    start_ms = _now(time, clock)
    error_ms = passed_ms = hidden_ms = 0
    for _ in range(300):
        ms = rng.randrange(1, 3 * HOUR_MS)
        match rng.choice(("advance", "sleep", "jump", "correct", "restart", "reboot")):
            case "advance":
                clock.advance(ms)
                passed_ms += ms
            case "sleep":
                clock.sleep(ms)
                passed_ms += ms
            case "jump" if not error_ms:
                error_ms = rng.choice((-1, 1)) * rng.randrange(2 * SLACK_MS, 400 * DAY_MS)
                clock.jump_wall(error_ms)
            case "correct":
                clock.jump_wall(-error_ms)
                error_ms = 0
            case "restart":
                time = _time(clock, time.noted())
            case "reboot":
                _now(time, clock)
                noted = time.noted()
                off_ms = ms // 3
                is_behind = not error_ms and rng.random() < 0.5
                if is_behind:
                    error_ms, hidden_ms = -rng.randrange(DAY_MS, 400 * DAY_MS), hidden_ms + off_ms
                clock = ManualClock(wall_ms=clock.wall_ms() + off_ms + (error_ms if is_behind else 0))
                time = _time(clock, noted)
                passed_ms += off_ms
        assert passed_ms - hidden_ms <= _now(time, clock) - start_ms <= passed_ms


@pytest.mark.parametrize("seed", range(200))
def test_only_a_clock_ahead_since_a_boot_adds_to_the_log_time(seed: int) -> None:
    """Goal: with a clock that may be wrong in either direction after each boot, and is corrected at a later boot or in between, the
    log time advances by at most the elapsed time. While the clock has been ahead since a boot, it may advance by another 1/24 of
    that lead per hour, or another hour. Method: as above. Each step may add an hour, since a shorter pause is counted at once.
    """
    rng = random.Random(seed)
    clock = ManualClock()
    time = _time(clock)
    start_ms = _now(time, clock)
    error_ms = ahead_since_boot_ms = allowed_ms = 0
    for _ in range(25):
        allowed_ms += HOUR_MS
        ms = rng.randrange(1, 3 * HOUR_MS)
        match rng.choice(("advance", "jump", "correct", "restart", "reboot", "reboot right", "reboot wrong", "reboot late")):
            case "advance":
                clock.advance(ms)
                allowed_ms += ms + (ahead_since_boot_ms * ms // DAY_MS + ms if ahead_since_boot_ms else 0)
            case "jump" if not error_ms:
                error_ms = rng.choice((-1, 1)) * rng.randrange(2 * SLACK_MS, 400 * DAY_MS)
                clock.jump_wall(error_ms)
            case "correct":
                clock.jump_wall(-error_ms)
                error_ms = ahead_since_boot_ms = 0
            case "restart":
                time = _time(clock, time.noted())
            case "reboot" | "reboot right" | "reboot wrong" | "reboot late" as how:
                _now(time, clock)
                noted, true_ms = time.noted(), clock.wall_ms() - error_ms
                off_ms = 100 * ms if how == "reboot late" else ms // 6
                allowed_ms += off_ms
                if how in ("reboot right", "reboot wrong"):
                    error_ms = rng.choice((-1, 1)) * rng.randrange(DAY_MS, 400 * DAY_MS) if how == "reboot wrong" else 0
                    ahead_since_boot_ms = max(error_ms, 0)
                clock = ManualClock(wall_ms=true_ms + off_ms + error_ms)
                time = _time(clock, noted)
        assert _now(time, clock) - start_ms <= allowed_ms


def _stamp(manager: LogManager) -> dict[str, int]:
    now_ms, ahead_ms = manager.time.stamp_ms()
    return {"now_ms": now_ms, "clock_ahead_ms": ahead_ms}


def _fill(manager: LogManager, clock: ManualClock) -> None:
    log = first_log(manager)
    append(log, b"p", producer=ProducerIdAndEpoch(1, 0), sequence=0, timestamp_ms=0, **_stamp(manager))
    for _ in range(40):
        append(log, b"x" * 300, timestamp_ms=0, **_stamp(manager))
    log.flush()


@pytest.mark.parametrize("ending", ["kill", "close"])
def test_a_start_a_month_ahead_deletes_nothing_for_hours(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    files, clock = MemoryFiles(), ManualClock()
    manager, _ = open_manager(files, clock, **SETTINGS)
    _fill(manager, clock)
    manager.retention_pass()
    for _ in range(3):
        files.kill() if ending == "kill" else manager.close()
        clock = ManualClock(wall_ms=START_WALL_MS + 30 * DAY_MS)
        with caplog.at_level(logging.WARNING):
            manager, _ = open_manager(files, clock, **SETTINGS)
        assert "30 days, 0:00:00 ahead of what was expected" in caplog.text
        clock.advance(60_000)
        assert manager.retention_pass() == 0
        assert len(first_log(manager).core.producers) == 1
    clock.advance(DAY_MS)
    assert manager.expire_producers() == 1
    assert manager.retention_pass() > 0, "in the end it is believed"


def test_a_start_days_behind_that_is_corrected_and_restarted_deletes_nothing_young() -> None:
    files, clock = MemoryFiles(), ManualClock()
    manager, _ = open_manager(files, clock, log_retention_ms=DAY_MS)
    manager.retention_pass()
    manager.close()
    behind = ManualClock(wall_ms=START_WALL_MS - 3 * DAY_MS)
    manager, _ = open_manager(files, behind, log_retention_ms=DAY_MS)
    _fill(manager, behind)
    behind.jump_wall(3 * DAY_MS)
    behind.advance(60_000)
    assert manager.retention_pass() == 0
    manager.close()
    manager, _ = open_manager(files, behind, log_retention_ms=DAY_MS)
    assert manager.retention_pass() == 0
    assert len(first_log(manager).core.producers) == 1


def test_the_noted_time_is_of_one_moment() -> None:
    """A thread writes the time while appends continue. If only half of a jump were recorded, a restart would count the rest."""
    files, clock = MemoryFiles(), ManualClock()
    manager, _ = open_manager(files, clock, **SETTINGS)
    steps = manager.retention.retire()
    job = next(steps)
    before = NotedTime(clock.wall_ms(), 0, 0, clock.boot_id(), clock.boot_ms())
    clock.jump_wall(DAY_MS)
    manager.time.stamp_ms()
    job()
    assert read_clock(files) == before


def test_what_was_appended_in_1970_lives_as_long_as_it_should() -> None:
    files, clock = MemoryFiles(), ManualClock(wall_ms=0)
    manager, _ = open_manager(files, clock, **SETTINGS)
    _fill(manager, clock)
    clock.advance(60_000)
    clock.jump_wall(START_WALL_MS)
    manager.retention_pass()
    for _ in range(6):
        clock.advance(DAY_MS)
        assert manager.retention_pass() == 0
    clock.advance(2 * DAY_MS)
    assert manager.retention_pass() > 0


@pytest.mark.parametrize("ahead_ms", [365 * DAY_MS, -9 * DAY_MS])
@pytest.mark.parametrize("is_corrected_while_off", [False, True])
def test_what_a_wrong_clock_stamped_lives_as_long_as_the_rest(ahead_ms: int, is_corrected_while_off: bool) -> None:
    """The clock is wrong for a day, and is corrected while the broker runs or is stopped. The broker restarts each day."""
    files, clock = MemoryFiles(), ManualClock()
    clock.jump_wall(ahead_ms)
    manager, _ = open_manager(files, clock, **SETTINGS)
    _fill(manager, clock)
    clock.advance(DAY_MS)
    manager.retention_pass()
    if not is_corrected_while_off:
        clock.jump_wall(-ahead_ms)
        assert manager.retention_pass() == 0
    manager.close()
    if is_corrected_while_off:
        clock.jump_wall(-ahead_ms)
    for _ in range(6):
        manager, _ = open_manager(files, clock, **SETTINGS)
        assert manager.retention_pass() == 0
        assert len(first_log(manager).core.producers) == 1 or clock.monotonic_ms() > DAY_MS
        clock.advance(DAY_MS)
        manager.close()
    manager, _ = open_manager(files, clock, **SETTINGS)
    clock.advance(1)
    assert manager.retention_pass() > 0
    assert first_log(manager).core.size_bytes == 0


@pytest.mark.parametrize("ahead_ms", [100 * 365 * DAY_MS, -100 * 365 * DAY_MS])
def test_a_batch_has_the_log_time_however_wrong_the_clock_is(ahead_ms: int) -> None:
    files, clock = MemoryFiles(), ManualClock(wall_ms=40_000 * DAY_MS)
    manager, _ = open_manager(files, clock, **SETTINGS)
    before_ms = manager.time.now_ms()
    clock.jump_wall(ahead_ms)
    _fill(manager, clock)
    assert all(0 <= segment.max_log_time - before_ms < 1_000 for segment in first_log(manager).segments)
