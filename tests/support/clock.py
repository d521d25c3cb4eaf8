"""Clocks that move only when a test advances them, or with every reading."""

from __future__ import annotations

import itertools

from brokerd.clock import SystemClock

START_WALL_MS = 1_700_000_000_000
_boots = itertools.count(1)


class ManualClock:
    """A brokerd.clock.Clock. `advance` moves all clocks, `sleep` all but the monotonic one, `jump_wall` only the wall clock."""

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
        """See Clock. Each ManualClock is another boot of the machine."""
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
        """The machine is suspended."""
        self._slept_ms += ms
        self._wall_ms += ms

    def jump_wall(self, ms: int) -> None:
        """The wall clock is set."""
        self._wall_ms += ms


class LateClock(SystemClock):
    """The machine's clock, which a test moves ahead by `late_ms`: a limit of minutes ends when the test wants it to."""

    late_ms = 0

    def monotonic_ms(self) -> int:
        """See Clock."""
        return super().monotonic_ms() + self.late_ms


class HastyClock(ManualClock):
    """Each reading advances it by seven seconds. A loop that retries until a deadline of about a minute ends soon, but tries at
    least a few times, however slow the machine. `step_ms`: for another deadline."""

    def __init__(self, *, step_ms: int = 7_000) -> None:
        super().__init__()
        self._step_ms = step_ms

    def monotonic_ms(self) -> int:
        """See Clock."""
        self.advance(self._step_ms)
        return super().monotonic_ms()
