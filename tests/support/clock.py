"""Clocks that move only when a test says so, or with every look at them."""

from __future__ import annotations

import itertools

START_WALL_MS = 1_700_000_000_000
_boots = itertools.count(1)


class ManualClock:
    """The clocks of brokerd.clock.Clock. `advance` moves all; `sleep` not the monotonic one, `jump_wall` the wall clock alone."""

    def __init__(self, *, wall_ms: int = START_WALL_MS) -> None:
        self._monotonic_ms = 0
        self._slept_ms = 0
        self._wall_ms = wall_ms
        self._boot_id = f"boot-{next(_boots)}"

    def monotonic_ms(self) -> int:
        """See Clock."""
        return self._monotonic_ms

    def boot_ms(self) -> int:
        """See Clock."""
        return self._monotonic_ms + self._slept_ms

    def boot_id(self) -> str:
        """See Clock. Each clock is a start of its machine."""
        return self._boot_id

    def wall_ms(self) -> int:
        """See Clock."""
        return self._wall_ms

    def wall_ns(self) -> int:
        """See Clock."""
        return self._wall_ms * 1_000_000

    def advance(self, ms: int) -> None:
        """Time passes."""
        self._monotonic_ms += ms
        self._wall_ms += ms

    def sleep(self, ms: int) -> None:
        """The machine sleeps."""
        self._slept_ms += ms
        self._wall_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Somebody sets the wall clock."""
        self._wall_ms += ms


class HastyClock(ManualClock):
    """Seven seconds pass with every look: what is tried until its time is over is over soon, and no try for want of time, however
    slow the machine is. For time limits of a minute.
    """

    def monotonic_ms(self) -> int:
        """See Clock."""
        self.advance(7_000)
        return super().monotonic_ms()
