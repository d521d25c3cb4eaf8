"""Operations that wait for a condition on watched objects or for a deadline (Kafka's DelayedOperation and purgatory). Each is
completed exactly once.

A watched object is anything that moves, such as a partition's high watermark. Its owner keeps its Waiters and wakes them when it
moves. A woken operation checks that object only, so a wake-up costs the same however many objects the operation watches. A
Purgatory holds the operations and one timing wheel for their deadlines. A TimedPurgatory, the only reader of a clock here, advances
the wheel by one timer of the event loop, set to the next deadline: no task, no polling.

A subclass of DelayedOperation defines the condition and the completion. Completion removes an operation from all Waiters and from
the wheel at once, in time proportional to the number of watched objects. So, unlike in Kafka, nothing is purged later.
"""

from __future__ import annotations

import abc
import asyncio
import enum
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from brokerd.clock import Clock

T = TypeVar("T", bound=Hashable)

_WHEEL_SIZE = 20


class Completion(enum.Enum):
    """How an operation ended."""

    CONDITION = "condition"  # its condition was found true
    FORCED = "forced"  # force_complete was called
    EXPIRED = "expired"  # its deadline passed
    CANCELLED = "cancelled"  # its client is gone


class DelayedOperation(abc.ABC):
    """A pending operation. Call all methods on one thread, the event loop's.

    The first of condition, force, expiry and cancel ends the operation; later ones are ignored and return False. `on_complete` runs
    inside the call that completes the operation, after its removal from the wheel and all Waiters, so it may trigger further
    completions. It must not raise.

    Only the purgatory may write `waits_for` and `release`.
    """

    __slots__ = ("__weakref__", "completion", "expiry_ms", "release", "waits_for")

    def __init__(self, expiry_ms: int, waits_for: Sequence[Waiters]) -> None:
        """`waits_for`: the Waiters of each watched object, without duplicates. Methods identify an object by its place in this
        sequence."""
        self.expiry_ms = expiry_ms  # monotonic
        self.completion: Completion | None = None
        self.waits_for = waits_for
        self.release: Callable[[DelayedOperation], None] | None = None  # removes the operation from its purgatory

    @abc.abstractmethod
    def is_satisfied(self, place: int) -> bool:
        """True if the condition holds, now that the object at `place` may have moved. First called once for each place.

        Must not change anything but the operation's own state. Must not raise.
        """

    @abc.abstractmethod
    def on_complete(self, completion: Completion) -> None:
        """Called once, on completion, but not on cancel. Must not raise."""

    @property
    def is_completed(self) -> bool:
        """True once the operation has ended in any way."""
        return self.completion is not None

    def moved(self, place: int) -> bool:
        """Completes the operation if its condition holds, now that the object at `place` may have moved; True if this call
        completed it."""
        return self.completion is None and self.is_satisfied(place) and self._end(Completion.CONDITION)

    def force_complete(self) -> bool:
        """Completes the operation, whether or not its condition holds; True if this call completed it."""
        return self._end(Completion.FORCED)

    def expire(self) -> bool:
        """Completes the operation because its deadline passed; True if this call completed it."""
        return self._end(Completion.EXPIRED)

    def cancel(self) -> bool:
        """Ends the operation without `on_complete`, because its client is gone; True if this call ended it."""
        return self._end(Completion.CANCELLED)

    def _end(self, completion: Completion) -> bool:
        if self.completion is not None:
            return False
        self.completion = completion
        release, self.release = self.release, None
        if release is not None:
            release(self)
        if completion is not Completion.CANCELLED:
            self.on_complete(completion)
        return True


class Waiters:
    """The operations that watch one object, each with the object's place in the operation's `waits_for`."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        self.places: dict[DelayedOperation, int] = {}  # written by the purgatory only

    def __len__(self) -> int:
        """The number of operations."""
        return len(self.places)

    def wake(self) -> int:
        """Completes the operations whose condition holds, now that the object has moved; returns how many.

        Operations added meanwhile are skipped: they have just checked their conditions.
        """
        return sum([operation.moved(place) for operation, place in list(self.places.items())])


class Purgatory:
    """Holds operations until they complete. Belongs to one thread; times are monotonic."""

    def __init__(self, start_ms: int = 0) -> None:
        self._wheel: TimingWheel[DelayedOperation] = TimingWheel(start_ms)  # holds every pending operation

    def __len__(self) -> int:
        """The number of pending operations."""
        return len(self._wheel)

    def try_complete_else_watch(self, operation: DelayedOperation) -> bool:
        """Completes `operation` now if possible; otherwise holds it until its condition holds or its deadline passes.

        Returns True if the operation is complete. It is added to all Waiters before its condition is checked, so that no move in
        between is missed. If its deadline has passed, it expires at once.
        """
        operation.release = self._remove
        is_in_time = self._wheel.add(operation, operation.expiry_ms)
        for place, waiters in enumerate(operation.waits_for):
            assert operation not in waiters.places, "it waits for one thing twice, and would be told of one place alone"
            waiters.places[operation] = place
        for place in range(len(operation.waits_for)):
            operation.moved(place)
            if operation.completion is not None:
                return True
        if not is_in_time:
            operation.expire()
        return operation.completion is not None

    def force_complete(self, count_max: int | None = None) -> int:
        """Completes all pending operations, or up to `count_max`; returns how many."""
        return sum([operation.force_complete() for operation in list(itertools.islice(self._wheel, count_max))])

    def cancel_all(self) -> int:
        """Cancels all pending operations and returns how many."""
        return sum([operation.cancel() for operation in list(self._wheel)])

    def advance(self, *, now_ms: int) -> int:
        """Expires operations due at `now_ms`; returns how many."""
        return sum([operation.expire() for operation in self._wheel.advance(now_ms=now_ms)])

    def next_due_ms(self) -> int | None:
        """When to call `advance` next, or None if nothing has a deadline."""
        return self._wheel.next_due_ms()

    def _remove(self, operation: DelayedOperation) -> None:
        self._wheel.cancel(operation)
        for waiters in operation.waits_for:
            del waiters.places[operation]
            if not waiters.places:
                waiters.places.clear()  # a dict keeps its table until cleared
        operation.waits_for = ()


class TimedPurgatory(Purgatory):
    """A purgatory that expires due operations on its own, at most once a millisecond, so that many deadlines share a wake-up.

    Add operations with `watch`.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock.monotonic_ms())
        self.clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._is_closed = False

    def watch(self, operation: DelayedOperation) -> bool:
        """Like `try_complete_else_watch`; also sets the timer to the operation's deadline, unless an earlier one is set."""
        if self.try_complete_else_watch(operation):
            return True
        if self._timer is None or self._timer_due_ms > operation.expiry_ms:
            self._set_timer()
        return False

    def close(self) -> None:
        """Stops the timer. Complete pending operations first."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        """Sets the timer to the next deadline. O(wheels)."""
        due_ms = self.next_due_ms()
        if due_ms is None or self._is_closed:
            return
        now_ms = self.clock.monotonic_ms()
        due_ms = max(due_ms, now_ms + 1)
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later((due_ms - now_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        try:
            self.advance(now_ms=self.clock.monotonic_ms())
        finally:
            self._set_timer()


class _Bucket(Generic[T]):
    """The entries of one slot, with their deadlines. A dict serves as an ordered set: O(1), without a linked list."""

    __slots__ = ("bit", "entries", "wheel")

    def __init__(self, wheel: _Wheel[T], bit: int) -> None:
        self.wheel = wheel
        self.bit = bit
        self.entries: dict[T, int] = {}  # entry -> deadline (ms)


class _Wheel(Generic[T]):
    """One turn of buckets, each `bucket_ms` wide."""

    __slots__ = ("bucket_ms", "buckets", "occupied", "reach_ms")

    def __init__(self, bucket_ms: int) -> None:
        self.bucket_ms = bucket_ms
        self.reach_ms = bucket_ms * _WHEEL_SIZE
        self.occupied = 0  # bit i is set while bucket i holds an entry
        self.buckets: list[_Bucket[T]] = [_Bucket(self, 1 << index) for index in range(_WHEEL_SIZE)]

    def reaches(self, expiry_ms: int, now_ms: int) -> bool:
        return expiry_ms < now_ms - now_ms % self.bucket_ms + self.reach_ms

    def next_due_ms(self, now_ms: int) -> int:
        """When the first occupied bucket after now is due; there must be one. The current bucket is always empty."""
        first = now_ms // self.bucket_ms + 1
        shift = first % _WHEEL_SIZE
        turned = self.occupied >> shift | self.occupied << _WHEEL_SIZE - shift
        distance = (turned & -turned).bit_length() - 1
        return (first + distance) * self.bucket_ms


class TimingWheel(Generic[T]):
    """Deadlines in milliseconds of a monotonic clock that starts at `start_ms`. Iterates over the entries. Not thread-safe.

    `add` and `cancel` take O(1), `advance` time proportional to the number of due entries, `next_due_ms` no search; cancelled
    entries leave nothing behind. An entry never expires early, and is late only by the delay of the `advance` call. Design
    (Varghese and Lauck, 1987; Kafka's TimingWheel): a wheel is created when a deadline first lies beyond the existing ones.

        wheel 0   20 buckets of 1 ms: deadlines of the next 20 ms
        wheel 1   20 buckets of 20 ms: of the next 400 ms
        wheel 2   20 buckets of 400 ms: of the next 8 s        (10 wheels reach 40 years)

    An entry goes into the finest wheel whose turn reaches its deadline. When a coarse bucket comes due, its entries move down to
    finer wheels; each entry moves at most once per wheel. Each wheel keeps the set of its occupied buckets as bits of one integer,
    so that empty time is skipped and the next due bucket is a few bit operations away.
    """

    def __init__(self, start_ms: int) -> None:
        self._now_ms = start_ms
        self._wheels: list[_Wheel[T]] = [_Wheel(1)]
        self._buckets: dict[T, _Bucket[T]] = {}  # of each scheduled entry

    def __len__(self) -> int:
        """The number of scheduled entries."""
        return len(self._buckets)

    def __iter__(self) -> Iterator[T]:
        return iter(self._buckets)

    def add(self, entry: T, expiry_ms: int) -> bool:
        """Schedules `entry`; returns False, without scheduling it, if its deadline has passed. O(wheels)."""
        if entry in self._buckets:
            raise ValueError("the entry is scheduled already")
        if expiry_ms <= self._now_ms:
            return False
        self._place(entry, expiry_ms)
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
        due_ms = [wheel.next_due_ms(self._now_ms) for wheel in self._wheels if wheel.occupied]
        return min(due_ms) if due_ms else None

    def advance(self, *, now_ms: int) -> list[T]:
        """Moves time to `now_ms` and returns the expired entries, earliest first. A `now_ms` in the past changes nothing."""
        expired: list[T] = []
        while (due_ms := self.next_due_ms()) is not None and due_ms <= now_ms:
            self._now_ms = due_ms
            for wheel in self._wheels:
                if due_ms % wheel.bucket_ms == 0:
                    self._empty(wheel, expired)
        self._now_ms = max(self._now_ms, now_ms)
        return expired

    def _empty(self, wheel: _Wheel[T], expired: list[T]) -> None:
        """Empties the current bucket: due entries have expired, the rest move to a finer wheel."""
        bucket = wheel.buckets[self._now_ms // wheel.bucket_ms % _WHEEL_SIZE]
        if not bucket.entries:
            return
        entries, bucket.entries = bucket.entries, {}
        wheel.occupied &= ~bucket.bit
        for entry, expiry_ms in entries.items():
            if expiry_ms <= self._now_ms:
                self._forget(entry)
                expired.append(entry)
            else:
                self._place(entry, expiry_ms)

    def _place(self, entry: T, expiry_ms: int) -> None:
        """Puts `entry`, not yet due, into the finest wheel that reaches it."""
        for wheel in self._wheels:
            if wheel.reaches(expiry_ms, self._now_ms):
                break
        else:
            wheel = self._overflow_wheel(expiry_ms)
        bucket = self._buckets[entry] = wheel.buckets[expiry_ms // wheel.bucket_ms % _WHEEL_SIZE]
        bucket.entries[entry] = expiry_ms
        wheel.occupied |= bucket.bit

    def _forget(self, entry: T) -> _Bucket[T] | None:
        bucket = self._buckets.pop(entry, None)
        if not self._buckets:
            self._buckets.clear()
        return bucket

    def _overflow_wheel(self, expiry_ms: int) -> _Wheel[T]:
        """A coarser wheel that reaches `expiry_ms`, creating the ones in between."""
        while True:
            wheel: _Wheel[T] = _Wheel(self._wheels[-1].reach_ms)
            self._wheels.append(wheel)
            if wheel.reaches(expiry_ms, self._now_ms):
                return wheel
