"""The promises of the timing wheel: never early, never late, nothing left behind, O(1)."""

from __future__ import annotations

import gc
import random
import sys
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.purgatory import TimingWheel
from tests.support.scale import TEST_SCALE

YEAR_MS = 365 * 24 * 3_600_000


class Entry:
    """An object with a deadline."""

    def __init__(self, expiry_ms: int) -> None:
        self.expiry_ms = expiry_ms


Wheel = TimingWheel[Entry]


def add(wheel: Wheel, expiry_ms: int) -> None:
    """Adds an entry."""
    wheel.add(Entry(expiry_ms), expiry_ms)


def drive(wheel: Wheel, now_ms: int) -> list[tuple[int, Entry]]:
    """Advances from one due time to the next, up to `now_ms`. Returns times and expired entries."""
    fired: list[tuple[int, Entry]] = []
    while (due_ms := wheel.next_due_ms()) is not None and due_ms <= now_ms:
        fired.extend((due_ms, entry) for entry in wheel.advance(now_ms=due_ms))
    fired.extend((now_ms, entry) for entry in wheel.advance(now_ms=now_ms))
    return fired


@settings(max_examples=200 * TEST_SCALE, deadline=None)
@given(start_ms=st.integers(0, 10_000_000), delays=st.lists(st.integers(-10, 3_000_000), max_size=60), data=st.data())
def test_every_entry_fires_once_and_in_time(start_ms: int, delays: list[int], data: st.DataObject) -> None:
    wheel: Wheel = TimingWheel(start_ms)
    entries = [Entry(start_ms + delay) for delay in delays]
    waiting = [entry for entry in entries if wheel.add(entry, entry.expiry_ms)]
    assert all(entry.expiry_ms <= start_ms for entry in entries if entry not in waiting)
    cancelled = data.draw(st.sets(st.sampled_from(waiting))) if waiting else set()
    assert all(wheel.cancel(entry) for entry in cancelled)
    assert not any(wheel.cancel(entry) for entry in cancelled)

    fired = drive(wheel, start_ms + 4_000_000)

    assert {entry for _, entry in fired} == set(waiting) - cancelled
    assert len(fired) == len(waiting) - len(cancelled)
    assert all(when_ms == entry.expiry_ms for when_ms, entry in fired)
    assert len(wheel) == 0
    assert wheel.next_due_ms() is None


@settings(max_examples=100 * TEST_SCALE, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_time_that_jumps_fires_late_but_never_early_and_loses_nothing(seed: int) -> None:
    rng = random.Random(seed)
    now_ms = rng.randrange(1_000_000)
    wheel: Wheel = TimingWheel(now_ms)
    waiting: set[Entry] = set()
    for _ in range(200):
        entry = Entry(now_ms + rng.choice((1, 19, 20, 21, 399, 400, 401, 8_000, 10**6)) + rng.randrange(3))
        if wheel.add(entry, entry.expiry_ms):
            waiting.add(entry)
        before_ms, now_ms = now_ms, now_ms + rng.choice((0, 1, 5, 20, 400, 100_000))
        for fired in wheel.advance(now_ms=now_ms):
            waiting.remove(fired)
            assert fired.expiry_ms <= now_ms
        assert all(entry.expiry_ms > now_ms for entry in waiting)
        assert wheel.advance(now_ms=before_ms) == []
        assert len(wheel) == len(waiting)


def test_a_simulated_year_with_a_driver_that_is_a_little_late() -> None:
    rng = random.Random(20)
    period_ms = 5
    start_ms = now_ms = 123_456_789
    wheel: Wheel = TimingWheel(start_ms)
    delays = [1, 20, 500, 30_000, 3_600_000, 86_400_000, 30 * 86_400_000, YEAR_MS - 1]
    for delay in delays * 20:
        add(wheel, start_ms + rng.randrange(1, delay + 1))
    worst_ms = fired_count = 0
    while now_ms < start_ms + YEAR_MS:
        due_ms = wheel.next_due_ms()
        if due_ms is None:
            break
        now_ms = max(now_ms, due_ms) + rng.randrange(period_ms)
        for entry in wheel.advance(now_ms=now_ms):
            assert entry.expiry_ms <= now_ms
            worst_ms = max(worst_ms, now_ms - entry.expiry_ms)
            fired_count += 1
            if fired_count < 20_000 * TEST_SCALE:
                add(wheel, now_ms + rng.randrange(1, rng.choice(delays) + 1))
    assert fired_count >= 2_000
    assert worst_ms < period_ms


def test_entries_fire_in_order_of_their_deadlines() -> None:
    rng = random.Random(3)
    wheel: Wheel = TimingWheel(0)
    for _ in range(2_000):
        add(wheel, rng.randrange(1, 100_000))
    deadlines = [entry.expiry_ms for entry in wheel.advance(now_ms=100_000)]
    assert deadlines == sorted(deadlines)
    assert len(deadlines) == 2_000


def test_wheels_are_made_on_demand() -> None:
    wheel: Wheel = TimingWheel(0)
    for delay_ms, wheels in ((19, 1), (20, 2), (399, 2), (400, 3), (8_000, 4), (40 * YEAR_MS, 10)):
        add(wheel, delay_ms)
        assert len(wheel._wheels) == wheels


def test_an_entry_can_be_scheduled_again_after_it_was_cancelled_or_has_fired_but_not_twice() -> None:
    wheel: Wheel = TimingWheel(0)
    entry = Entry(5)
    assert wheel.add(entry, entry.expiry_ms)
    with pytest.raises(ValueError, match="scheduled already"):
        wheel.add(entry, entry.expiry_ms)
    assert wheel.cancel(entry)
    assert wheel.add(entry, entry.expiry_ms)
    assert wheel.advance(now_ms=5) == [entry]
    assert not wheel.cancel(entry)
    assert not wheel.add(entry, entry.expiry_ms), "its deadline has passed"


def test_cancelled_entries_leave_nothing_behind() -> None:
    wheel: Wheel = TimingWheel(0)
    entries = [Entry(10 + number % 7_000) for number in range(10_000)]
    for entry in entries:
        wheel.add(entry, entry.expiry_ms)
    for entry in entries:
        wheel.cancel(entry)
    reference = weakref.ref(entries[0])
    entries.clear()
    assert reference() is None
    assert len(wheel) == 0
    assert wheel.next_due_ms() is None, "not even an empty bucket is waited for"


def test_insert_and_cancel_touch_as_much_with_many_timers_as_with_a_hundred() -> None:
    """Counts the interpreter's calls for one insert and one cancel, instead of timing them."""
    calls = {}
    for count in (100, 100_000):
        wheel: Wheel = TimingWheel(0)
        for number in range(count):
            add(wheel, 60_000 - number * 60_000 // count)
        calls[count] = _calls_of(wheel, Entry(30_000))
    assert calls[100] == calls[100_000]


def _calls_of(wheel: Wheel, entry: Entry) -> int:
    count = 0

    def count_calls(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # its callbacks, such as Hypothesis's, would count
    sys.setprofile(count_calls)
    try:
        wheel.add(entry, entry.expiry_ms)
        wheel.cancel(entry)
    finally:
        sys.setprofile(None)
        gc.enable()
    return count
