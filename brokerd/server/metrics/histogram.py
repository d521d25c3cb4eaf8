"""Bucket counts. Pure; an observation is one bisection and three additions."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

# From a request served from the page cache to a disk about to fail.
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts durations that were at most each of SECONDS."""

    __slots__ = ("_counts", "sum_seconds")

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self.sum_seconds = 0.0

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self._counts)

    def observe_ns(self, nanoseconds: int) -> None:
        """Counts one duration."""
        seconds = nanoseconds / 1e9
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self.sum_seconds += seconds

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound in seconds, observations up to it); the last bound is infinite."""
        return list(zip((*SECONDS, float("inf")), accumulate(self._counts), strict=True))
