"""Maps events to the operations that wait for them: watch lists by key, and one timing wheel for the deadlines.

A completed operation is in no list and in no bucket: completion removes it at once, in time proportional to the number of its
keys, so nothing needs to be purged later.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable

from brokerd.purgatory.delayed import DelayedOperation
from brokerd.purgatory.timing_wheel import TimingWheel


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

        Returns True if it is complete on return. The condition is checked once more after the operation is watched:
        `is_satisfied` may itself cause the very event, which would be lost between check and watch. An operation whose deadline
        has passed expires at once.
        """
        if operation.try_complete() or operation.is_completed:
            return True
        operation.watch_keys = tuple(dict.fromkeys(keys))
        operation.release = self._remove
        self._held.add(operation)
        for key in operation.watch_keys:
            self._watchers.setdefault(key, {})[operation] = None
        if operation.try_complete() or operation.is_completed:
            return True
        if not self._wheel.add(operation):
            operation.expire()
        return operation.is_completed

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
