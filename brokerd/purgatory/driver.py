"""A purgatory advanced by the event loop with one timer, set to the next deadline. No task, no polling.

The only module of this package that imports asyncio. It makes no decisions.
"""

from __future__ import annotations

import asyncio

from brokerd.clock import Clock
from brokerd.purgatory.purgatory import DelayedOperation, Purgatory
from brokerd.purgatory.timing_wheel import TimingWheel

_TICK_MS = 1
_WHEEL_SIZE = 20


class TimedPurgatory(Purgatory):
    """A purgatory that expires due operations on its own, at most every `period_ms`, so that many deadlines share a wake-up.

    Add operations with `watch`.
    """

    def __init__(self, clock: Clock, *, period_ms: int = 1) -> None:
        super().__init__(TimingWheel(tick_ms=_TICK_MS, wheel_size=_WHEEL_SIZE, start_ms=clock.monotonic_ms()))
        self.clock = clock
        self._period_ms = period_ms
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._is_closed = False

    def watch(self, operation: DelayedOperation) -> bool:
        """Like `try_complete_else_watch`; also sets the timer to the operation's deadline, unless it is set to an earlier one."""
        if self.try_complete_else_watch(operation):
            return True
        if self._timer is None or self._timer_due_ms > operation.expiry_ms:
            self._set_timer()
        return False

    def close(self) -> None:
        """Stops the timer. Complete pending operations before."""
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
        due_ms = max(due_ms, now_ms + self._period_ms)
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
