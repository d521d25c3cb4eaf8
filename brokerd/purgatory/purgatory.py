"""Operations that wait for an event, each completed exactly once, and who finds them when one happens: watch lists by key, and one
timing wheel for the deadlines.

A subclass of DelayedOperation defines the condition and the completion. A completed operation is in no list and in no bucket:
completion removes it at once, in time proportional to the number of its keys, so nothing needs to be purged later.
"""

from __future__ import annotations

import abc
import enum
import itertools
from collections.abc import Callable, Hashable, Iterable

from brokerd.purgatory.timing_wheel import TimerEntry, TimingWheel


class Completion(enum.Enum):
    """How an operation ended."""

    CONDITION = "condition"  # try_complete found its condition true
    FORCED = "forced"  # force_complete was called
    EXPIRED = "expired"  # its deadline passed
    CANCELLED = "cancelled"  # its client is gone


class DelayedOperation(TimerEntry, abc.ABC):
    """A pending operation. All of its methods must be called on one thread, the event loop's.

    A final state is final: after the first of condition, force, expiry and cancel, the others are ignored and return False.
    `on_complete` runs inside the call that completes the operation, after it has left the wheel and the watch lists, so that it
    may trigger further completions. It must not raise.

    `watch_keys` and `release` belong to the purgatory; nothing else may write them.
    """

    __slots__ = ("completion", "release", "watch_keys")

    def __init__(self, expiry_ms: int) -> None:
        super().__init__(expiry_ms)
        self.completion: Completion | None = None
        self.watch_keys: tuple[Hashable, ...] = ()
        self.release: Callable[[DelayedOperation], None] | None = None  # removes it from the purgatory that holds it

    @abc.abstractmethod
    def is_satisfied(self) -> bool:
        """Whether the condition holds now. Must not change anything but the operation's own cached state. Must not raise."""

    @abc.abstractmethod
    def on_complete(self, completion: Completion) -> None:
        """Called once, on completion; not after a cancel. Must not raise."""

    @property
    def is_completed(self) -> bool:
        """True once it has ended in any way."""
        return self.completion is not None

    def try_complete(self) -> bool:
        """Completes the operation if its condition holds; True if this call did."""
        return self.completion is None and self.is_satisfied() and self._end(Completion.CONDITION)

    def force_complete(self) -> bool:
        """Completes the operation whether its condition holds or not; True if this call did."""
        return self._end(Completion.FORCED)

    def expire(self) -> bool:
        """Completes the operation because its deadline passed; True if this call did."""
        return self._end(Completion.EXPIRED)

    def cancel(self) -> bool:
        """Ends the operation without `on_complete`, because its client is gone. True if this call did."""
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


class Purgatory:
    """Holds operations until they complete. Belongs to one thread; `now_ms` is monotonic."""

    def __init__(self, wheel: TimingWheel) -> None:
        self._wheel = wheel
        self._watchers: dict[Hashable, dict[DelayedOperation, None]] = {}
        self._held: set[DelayedOperation] = set()

    def __len__(self) -> int:
        """The number of pending operations."""
        return len(self._held)

    @property
    def watched_key_count(self) -> int:
        """The number of keys with at least one watcher."""
        return len(self._watchers)

    def watcher_count(self, key: Hashable) -> int:
        """The number of operations that watch `key`."""
        return len(self._watchers.get(key, ()))

    def try_complete_else_watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> bool:
        """Completes `operation` now if possible; otherwise holds it until an event on one of `keys`, or its deadline.

        Returns True if it is complete on return. The condition is checked once the operation is watched: of an event between a
        check and the watch nobody would tell it. One whose deadline has passed expires at once.
        """
        operation.watch_keys = tuple(dict.fromkeys(keys))
        operation.release = self._remove
        self._held.add(operation)
        for key in operation.watch_keys:
            self._watchers.setdefault(key, {})[operation] = None
        operation.try_complete()
        if operation.completion is None and not self._wheel.add(operation):
            operation.expire()
        return operation.completion is not None

    def check_and_complete(self, key: Hashable) -> int:
        """Handles an event on `key`: completes those of its watchers whose condition holds now, and returns how many.

        Watchers added meanwhile are skipped: they have just checked their condition themselves.
        """
        watchers = self._watchers.get(key)
        if not watchers:
            return 0
        return sum([operation.try_complete() for operation in list(watchers)])

    def force_complete(self, count_max: int) -> int:
        """Completes up to `count_max` pending operations; returns how many."""
        return sum([operation.force_complete() for operation in list(itertools.islice(self._held, count_max))])

    def cancel_all(self) -> int:
        """Cancels all pending operations and returns how many. All watch lists are dropped at once, however many keys there
        are."""
        held, self._held, self._watchers = self._held, set(), {}
        for operation in held:
            self._wheel.cancel(operation)
            operation.watch_keys, operation.release = (), None
            operation.cancel()
        return len(held)

    def force_complete_all(self) -> int:
        """Completes all pending operations, as on shutdown; returns how many."""
        return sum([operation.force_complete() for operation in list(self._held)])

    def advance(self, *, now_ms: int) -> int:
        """Expires what is due at `now_ms`; returns how many."""
        expired = self._wheel.advance(now_ms=now_ms)
        return sum([operation.expire() for operation in expired if isinstance(operation, DelayedOperation)])

    def next_due_ms(self) -> int | None:
        """When to call `advance` next, or None if nothing has a deadline."""
        return self._wheel.next_due_ms()

    def _remove(self, operation: DelayedOperation) -> None:
        self._wheel.cancel(operation)
        self._held.discard(operation)
        for key in operation.watch_keys:
            watchers = self._watchers[key]
            del watchers[operation]
            if not watchers:
                del self._watchers[key]
        operation.watch_keys = ()
