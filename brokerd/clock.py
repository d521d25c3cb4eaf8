"""The only place that reads a clock. All other code is given a Clock, or `now_ms`.

Two clocks that never share a name: `monotonic_ms` drives waiting, expiry and retries; `wall_ms` is stored
(timestamps, retention) and never decides an order.
"""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    """The clocks that code may read."""

    def monotonic_ms(self) -> int:
        """Milliseconds from some fixed start; never goes back."""

    def boot_ms(self) -> int:
        """The same, but it counts on while the machine sleeps: for comparisons with other machines' time, not for waiting."""

    def boot_id(self) -> str:
        """Names the machine's present start, which `boot_ms` counts from; empty where it is unknown."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump in either direction."""

    def wall_ns(self) -> int:
        """The same clock in nanoseconds, for stamps so frequent that a division each would cost too much."""


# Nanoseconds from some fixed start, for durations that are only reported. No decision depends on it.
stopwatch_ns: Final = time.perf_counter_ns


# Linux alone has a clock of its own for it; elsewhere the monotonic one serves.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clocks."""

    def monotonic_ms(self) -> int:
        """Milliseconds from some fixed start; never goes back."""
        return time.monotonic_ns() // 1_000_000

    def boot_ms(self) -> int:
        """The same, but it counts on while the machine sleeps."""
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def boot_id(self) -> str:
        """Linux names it."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump."""
        return time.time_ns() // 1_000_000

    wall_ns = staticmethod(time.time_ns)
