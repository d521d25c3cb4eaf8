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

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Bucket(Generic[T]):
    """The entries of one slot, with their deadlines. A dict serves as an ordered set: O(1), without a linked list."""

    __slots__ = ("bit", "entries", "wheel")

    def __init__(self, wheel: _Wheel[T], bit: int) -> None:
        self.wheel = wheel
        self.bit = bit
        self.entries: dict[T, int] = {}  # -> the tick at which it expires


class _Wheel(Generic[T]):
    """One turn of `size` buckets, each `ticks_per_bucket` ticks wide."""

    __slots__ = ("buckets", "occupied", "reach_ticks", "size", "ticks_per_bucket")

    def __init__(self, ticks_per_bucket: int, size: int) -> None:
        self.ticks_per_bucket = ticks_per_bucket
        self.reach_ticks = ticks_per_bucket * size
        self.size = size
        self.occupied = 0  # bit i is set while bucket i holds an entry
        self.buckets: list[_Bucket[T]] = [_Bucket(self, 1 << index) for index in range(size)]

    def reaches(self, expiry_tick: int, now_tick: int) -> bool:
        return expiry_tick < now_tick - now_tick % self.ticks_per_bucket + self.reach_ticks

    def next_due_tick(self, now_tick: int) -> int:
        """The tick at which the first occupied bucket after now is due; there must be one. The current bucket is always empty."""
        first = now_tick // self.ticks_per_bucket + 1
        shift = first % self.size
        turned = self.occupied >> shift | self.occupied << self.size - shift
        distance = (turned & -turned).bit_length() - 1
        return (first + distance) * self.ticks_per_bucket


class TimingWheel(Generic[T]):
    """Entries with deadlines, in milliseconds of a monotonic clock that starts at `start_ms`. Iterates over the entries."""

    def __init__(self, *, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        if tick_ms < 1 or wheel_size < 2:
            raise ValueError(f"tick_ms is {tick_ms} and wheel_size {wheel_size}; at least 1 and 2 are needed")
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self._now_tick = start_ms // tick_ms
        self._wheels: list[_Wheel[T]] = [_Wheel(1, wheel_size)]
        self._buckets: dict[T, _Bucket[T]] = {}  # of each scheduled entry

    def __len__(self) -> int:
        """The number of scheduled entries."""
        return len(self._buckets)

    def __iter__(self) -> Iterator[T]:
        return iter(self._buckets)

    @property
    def wheel_count(self) -> int:
        """The number of wheels; they are created on demand and kept."""
        return len(self._wheels)

    def add(self, entry: T, expiry_ms: int) -> bool:
        """Schedules `entry`; returns False, without scheduling it, if its deadline has passed. O(wheels)."""
        if entry in self._buckets:
            raise ValueError("the entry is scheduled already")
        expiry_tick = -(-expiry_ms // self.tick_ms)
        if expiry_tick <= self._now_tick:
            return False
        self._place(entry, expiry_tick)
        return True

    def cancel(self, entry: T) -> bool:
        """Removes `entry`; returns False if it is not scheduled (cancelled before, or expired). O(1), leaves nothing behind."""
        bucket = self._forget(entry)
        if bucket is None:
            return False
        del bucket.entries[entry]
        if not bucket.entries:
            bucket.entries.clear()  # a dict keeps its table until cleared
            bucket.wheel.occupied &= ~bucket.bit
        return True

    def next_due_ms(self) -> int | None:
        """When to call `advance` next, or None if nothing is scheduled. That call may only move entries to a finer wheel."""
        due_tick = self._next_due_tick()
        return None if due_tick is None else due_tick * self.tick_ms

    def advance(self, *, now_ms: int) -> list[T]:
        """Moves time to `now_ms` and returns the expired entries, earliest first. A `now_ms` in the past changes nothing."""
        expired: list[T] = []
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

    def _empty(self, wheel: _Wheel[T], expired: list[T]) -> None:
        """Empties the current bucket: due entries have expired, the rest move to a finer wheel."""
        bucket = wheel.buckets[self._now_tick // wheel.ticks_per_bucket % wheel.size]
        if not bucket.entries:
            return
        entries, bucket.entries = bucket.entries, {}
        wheel.occupied &= ~bucket.bit
        for entry, expiry_tick in entries.items():
            if expiry_tick <= self._now_tick:
                self._forget(entry)
                expired.append(entry)
            else:
                self._place(entry, expiry_tick)

    def _place(self, entry: T, expiry_tick: int) -> None:
        """Puts `entry`, not yet due, into the finest wheel that reaches it."""
        for wheel in self._wheels:
            if wheel.reaches(expiry_tick, self._now_tick):
                break
        else:
            wheel = self._overflow_wheel(expiry_tick)
        bucket = self._buckets[entry] = wheel.buckets[expiry_tick // wheel.ticks_per_bucket % wheel.size]
        bucket.entries[entry] = expiry_tick
        wheel.occupied |= bucket.bit

    def _forget(self, entry: T) -> _Bucket[T] | None:
        bucket = self._buckets.pop(entry, None)
        if not self._buckets:
            self._buckets.clear()
        return bucket

    def _overflow_wheel(self, expiry_tick: int) -> _Wheel[T]:
        """A coarser wheel that reaches `expiry_tick`, creating the ones in between."""
        while True:
            wheel: _Wheel[T] = _Wheel(self._wheels[-1].reach_ticks, self.wheel_size)
            self._wheels.append(wheel)
            if wheel.reaches(expiry_tick, self._now_tick):
                return wheel
