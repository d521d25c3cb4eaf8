"""A delayed operation completes exactly once: by its condition, by force or by expiry.

A subclass defines the condition and the completion. purgatory.py finds the operation when something happens.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Hashable

from brokerd.purgatory.timing_wheel import TimerEntry


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
