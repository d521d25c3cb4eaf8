"""One operation that waits: it completes exactly once, by its condition, by force or by expiry.

What it waits for and what it does then is said by a subclass. How it is found when something happens is in purgatory.py.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Hashable

from brokerd.purgatory.timing_wheel import TimerEntry


class Completion(enum.Enum):
    """What ended an operation."""

    CONDITION = "condition"  # try_complete found its condition true
    FORCED = "forced"  # somebody called force_complete
    EXPIRED = "expired"  # its deadline passed
    CANCELLED = "cancelled"  # nobody wants its outcome any more


class DelayedOperation(TimerEntry, abc.ABC):
    """An operation that is not done yet. All of its methods belong to one thread, the event loop's.

    A final state is final: whatever comes second, of a condition that becomes true, a force, an expiry and a cancel, is
    ignored and answered with False. `on_complete` runs inside the call that completes it, after the operation has left
    wheel and watch lists, so that it may itself cause further completions. It must not raise.

    `watch_keys` and `release` are the purgatory's own notes; nobody else writes them.
    """

    __slots__ = ("completion", "release", "watch_keys")

    def __init__(self, expiry_ms: int) -> None:
        super().__init__(expiry_ms)
        self.completion: Completion | None = None
        self.watch_keys: tuple[Hashable, ...] = ()
        self.release: Callable[[DelayedOperation], None] | None = None  # takes it out of the purgatory that holds it

    @abc.abstractmethod
    def is_satisfied(self) -> bool:
        """Whether the condition holds now. Changes nothing but what the operation itself remembers. Must not raise."""

    @abc.abstractmethod
    def on_complete(self, completion: Completion) -> None:
        """Called once, when the operation is done; not after a cancel. Must not raise."""

    @property
    def is_completed(self) -> bool:
        """True once it has ended, by whatever."""
        return self.completion is not None

    def try_complete(self) -> bool:
        """Completes it if its condition holds; True if this call did."""
        return self.completion is None and self.is_satisfied() and self._end(Completion.CONDITION)

    def force_complete(self) -> bool:
        """Completes it whether its condition holds or not; True if this call did."""
        return self._end(Completion.FORCED)

    def expire(self) -> bool:
        """Completes it because its deadline passed; True if this call did."""
        return self._end(Completion.EXPIRED)

    def cancel(self) -> bool:
        """Ends it without `on_complete`: its client is gone. True if this call did."""
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
