"""The only module that reads a clock. All other code takes a Clock, or `now_ms`.

The clocks never share a name: `monotonic_ms` drives waiting, expiry and retries; `boot_ms` is compared with other machines' time;
`wall_ms` is stored (timestamps, retention) and never decides an order.
"""

from __future__ import annotations

import time
from typing import Final, Protocol


class Clock(Protocol):
    """The clocks available to the code."""

    def monotonic_ms(self) -> int:
        """Milliseconds from some fixed start; never goes back."""

    def boot_ms(self) -> int:
        """As `monotonic_ms`, but includes the time the machine slept: for comparing with other machines' time, not for waiting."""

    def boot_id(self) -> str:
        """The id of the current boot, which `boot_ms` counts from; empty if unknown."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump in either direction."""

    def wall_ns(self) -> int:
        """As `wall_ms`, in nanoseconds: for stamps so frequent that a division each would cost too much."""


# Nanoseconds from some fixed start, only for durations that are reported: no decision depends on it.
stopwatch_ns: Final = time.perf_counter_ns


# Only Linux has CLOCK_BOOTTIME; elsewhere the monotonic clock is used.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock(Clock):
    """The machine's clocks."""

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000

    def boot_id(self) -> str:
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    wall_ns = staticmethod(time.time_ns)
