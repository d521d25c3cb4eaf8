"""A hierarchical timing wheel: deadlines with O(1) insert and cancel.

Requirements: `add` and `cancel` in O(1); `advance` in time proportional to the number of due entries; `next_due_ms` without a
search; nothing left behind by cancelled entries.

Design (Varghese and Lauck, 1987; Kafka's TimingWheel): time is cut into ticks. Wheel 0 has one bucket per tick, wheel 1 one
bucket per turn of wheel 0, and so on; a wheel is created when a deadline first lies beyond the existing ones.

    wheel 0   tick 1 ms     20 buckets: deadlines of the next 20 ms
    wheel 1   tick 20 ms    20 buckets: of the next 400 ms
    wheel 2   tick 400 ms   20 buckets: of the next 8 s        (7 wheels reach 40 years)

An entry goes into the finest wheel whose turn reaches its deadline. When a coarse bucket comes due, its entries move down to
finer wheels; each entry moves at most once per wheel. Each wheel keeps the set of its occupied buckets as bits of one integer, so
that empty time is skipped and the next due bucket is a few bit operations away.

Deadlines are rounded up to a tick: an entry never expires early, and is late by less than a tick plus the caller's delay.
Not thread-safe; reads no clock.
"""

from __future__ import annotations


class TimerEntry:
    """An object with a deadline, in at most one wheel at a time. Meant to be subclassed.

    Only the wheel may write `bucket` and `expiry_tick`.
    """

    __slots__ = ("__weakref__", "bucket", "expiry_ms", "expiry_tick")

    def __init__(self, expiry_ms: int) -> None:
        self.expiry_ms = expiry_ms  # monotonic
        self.expiry_tick = 0
        self.bucket: _Bucket | None = None

    @property
    def is_scheduled(self) -> bool:
        """True while the entry is in a wheel."""
        return self.bucket is not None


class _Bucket:
    """The entries of one slot. A dict serves as an ordered set: insert and delete are O(1) and need no linked list."""

    __slots__ = ("bit", "entries", "wheel")

    def __init__(self, wheel: _Wheel, bit: int) -> None:
        self.wheel = wheel
        self.bit = bit
        self.entries: dict[TimerEntry, None] = {}


class _Wheel:
    """One turn of `size` buckets, each `ticks_per_bucket` ticks wide."""

    __slots__ = ("buckets", "occupied", "reach_ticks", "size", "ticks_per_bucket")

    def __init__(self, ticks_per_bucket: int, size: int) -> None:
        self.ticks_per_bucket = ticks_per_bucket
        self.reach_ticks = ticks_per_bucket * size
        self.size = size
        self.occupied = 0  # bit i is set while bucket i holds an entry
        self.buckets = [_Bucket(self, 1 << index) for index in range(size)]

    def reaches(self, expiry_tick: int, now_tick: int) -> bool:
        return expiry_tick < now_tick - now_tick % self.ticks_per_bucket + self.reach_ticks

    def next_due_tick(self, now_tick: int) -> int:
        """The tick at which the first occupied bucket after now is due; there must be one. The current bucket is always empty."""
        first = now_tick // self.ticks_per_bucket + 1
        shift = first % self.size
        turned = self.occupied >> shift | self.occupied << self.size - shift
        distance = (turned & -turned).bit_length() - 1
        return (first + distance) * self.ticks_per_bucket


class TimingWheel:
    """Deadlines in milliseconds of a monotonic clock that starts at `start_ms`."""

    def __init__(self, *, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        if tick_ms < 1 or wheel_size < 2:
            raise ValueError(f"tick_ms is {tick_ms} and wheel_size {wheel_size}; at least 1 and 2 are needed")
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self._now_tick = start_ms // tick_ms
        self._wheels = [_Wheel(1, wheel_size)]
        self._count = 0

    def __len__(self) -> int:
        """The number of scheduled entries."""
        return self._count

    @property
    def wheel_count(self) -> int:
        """The number of wheels; they are created on demand and kept."""
        return len(self._wheels)

    def add(self, entry: TimerEntry) -> bool:
        """Schedules `entry`; returns False, without scheduling it, if its deadline has passed. O(wheels)."""
        if entry.bucket is not None:
            raise ValueError("the entry is scheduled already")
        entry.expiry_tick = -(-entry.expiry_ms // self.tick_ms)
        if entry.expiry_tick <= self._now_tick:
            return False
        self._place(entry)
        self._count += 1
        return True

    def cancel(self, entry: TimerEntry) -> bool:
        """Removes `entry`; returns False if it is not scheduled (cancelled before, or expired). O(1), leaves nothing behind."""
        bucket = entry.bucket
        if bucket is None:
            return False
        entry.bucket = None
        del bucket.entries[entry]
        if not bucket.entries:
            bucket.entries.clear()  # a dict keeps its table until cleared
            bucket.wheel.occupied &= ~bucket.bit
        self._count -= 1
        return True

    def next_due_ms(self) -> int | None:
        """When to call `advance` next, or None if nothing is scheduled. That call may only move entries to a finer wheel."""
        due_tick = self._next_due_tick()
        return None if due_tick is None else due_tick * self.tick_ms

    def advance(self, *, now_ms: int) -> list[TimerEntry]:
        """Moves time to `now_ms` and returns the expired entries, earliest first. A `now_ms` in the past changes nothing."""
        expired: list[TimerEntry] = []
        target_tick = now_ms // self.tick_ms
        while (due_tick := self._next_due_tick()) is not None and due_tick <= target_tick:
            self._now_tick = due_tick
            for wheel in self._wheels:
                if due_tick % wheel.ticks_per_bucket == 0:
                    self._empty(wheel, expired)
        self._now_tick = max(self._now_tick, target_tick)
        return expired

    def _next_due_tick(self) -> int | None:
        due = [wheel.next_due_tick(self._now_tick) for wheel in self._wheels if wheel.occupied]
        return min(due) if due else None

    def _empty(self, wheel: _Wheel, expired: list[TimerEntry]) -> None:
        """Empties the current bucket: due entries have expired, the rest move to a finer wheel."""
        bucket = wheel.buckets[self._now_tick // wheel.ticks_per_bucket % wheel.size]
        if not bucket.entries:
            return
        entries, bucket.entries = bucket.entries, {}
        wheel.occupied &= ~bucket.bit
        for entry in entries:
            if entry.expiry_tick <= self._now_tick:
                entry.bucket = None
                self._count -= 1
                expired.append(entry)
            else:
                self._place(entry)

    def _place(self, entry: TimerEntry) -> None:
        """Puts `entry`, not yet due, into the finest wheel that reaches it."""
        for wheel in self._wheels:
            if wheel.reaches(entry.expiry_tick, self._now_tick):
                break
        else:
            wheel = self._overflow_wheel(entry.expiry_tick)
        bucket = wheel.buckets[entry.expiry_tick // wheel.ticks_per_bucket % wheel.size]
        bucket.entries[entry] = None
        wheel.occupied |= bucket.bit
        entry.bucket = bucket

    def _overflow_wheel(self, expiry_tick: int) -> _Wheel:
        """A coarser wheel that reaches `expiry_tick`, creating the ones in between."""
        while True:
            wheel = _Wheel(self._wheels[-1].reach_ticks, self.wheel_size)
            self._wheels.append(wheel)
            if wheel.reaches(expiry_tick, self._now_tick):
                return wheel
