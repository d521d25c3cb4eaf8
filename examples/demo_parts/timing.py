"""The time of a streaming query: in total, and without its first micro-batch.

In the first micro-batch Spark starts Python workers, loads classes and compiles the query. That takes seconds, which weigh more the
fewer rows there are. Neither figure includes the start of Spark itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Progress(Protocol):
    """The part of a StreamingQueryProgress that is used here."""

    @property
    def numInputRows(self) -> int: ...  # noqa: N802 (Spark's name)

    @property
    def durationMs(self) -> Mapping[str, int]: ...  # noqa: N802


class Timing(NamedTuple):
    """Rows and seconds of a query from start to end; `later_*` leave out the first micro-batch, as measured by Spark."""

    rows: int
    seconds: float
    later_rows: int
    later_seconds: float

    def lines(self) -> tuple[str, ...]:
        """Rows per second, each with a description of what was measured."""
        whole = f"{self.rows / self.seconds:>12,.0f} rows/s   from the query's start to its end"
        if not self.later_rows or not self.later_seconds:
            return (whole,)
        return (
            whole,
            f"{self.later_rows / self.later_seconds:>12,.0f} rows/s   without its first micro-batch, which warms up",
        )


def timing_of(progress: Sequence[Progress], seconds: float) -> Timing:
    """The timing of a query that took `seconds` and reported `progress`."""
    batches = [(one.numInputRows, one.durationMs.get("triggerExecution", 0)) for one in progress if one.numInputRows]
    later = batches[1:]
    return Timing(
        rows=sum(rows for rows, _ in batches),
        seconds=seconds,
        later_rows=sum(rows for rows, _ in later),
        later_seconds=sum(duration_ms for _, duration_ms in later) / 1000,
    )
