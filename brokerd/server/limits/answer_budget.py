"""Answers to fetches that are in memory: how large the next may be, and whose reader is too slow. gRPC is not known here.

A reader that does not read keeps its answer here for as long as it likes, and there may be thousands of them. So

    one half of the limit   is shared: an answer gets at most a quarter of what is left of it
    the other half          is for first batches alone: what a fetch gets however little is left
    all of it used up       fetches wait their turn, and whoever has not read his answer for a second makes room for them

so that quick readers go on, with smaller answers, beside any number of slow ones. How large a first batch is shows only when it
is read: while shares are small, a few fetches read at a time, or together they would pass the limit by a batch each.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from brokerd.server.limits.budgets import ByteBudget

_SHARE = 4
_SMALL_SHARE_BYTES = 1_048_576  # what a producer makes its batches by default: a first batch may well be larger than such a share
_TURNS = 4
# Nobody loses his answer sooner, however many wait: one slice of a busy client's event loop, or a pause of its collector.
PATIENCE_MS = 1_000

W = TypeVar("W")


class AnswerBudget(ByteBudget, Generic[W]):
    """Bytes of answers that are being read or written, and since when each is being written. `W` is who writes."""

    def __init__(self, limit_bytes: int, *, write_timeout_ms: int) -> None:
        super().__init__(limit_bytes)
        self._write_timeout_ms = write_timeout_ms
        # For whoever reads while shares are small: look for room and read with one of these held.
        self.turns = asyncio.Semaphore(_TURNS)
        self._writes: dict[W, tuple[int, int]] = {}  # (start in ms, bytes), oldest first

    def share(self, wanted_bytes: int) -> int:
        """How many bytes the next answer may have; a first batch that is larger may come all the same."""
        left_bytes = self.limit_bytes // 2 - self.used_bytes
        return min(wanted_bytes, max(0, left_bytes // _SHARE))

    @property
    def is_share_small(self) -> bool:
        """True while what may be read is likely to be one batch, larger than its share."""
        return self.share(_SMALL_SHARE_BYTES) < _SMALL_SHARE_BYTES

    def begin_write(self, writer: W, size_bytes: int, *, now_ms: int) -> None:
        """`writer` hands an answer over. It has one at a time."""
        self._writes[writer] = (now_ms, size_bytes)

    def end_write(self, writer: W) -> None:
        """It is handed over, or will never be."""
        self._writes.pop(writer, None)

    def overdue(self, *, now_ms: int) -> list[W]:
        """Whose stream is to be ended, oldest first. Beyond the timeout it is everyone; while others wait for room, as many as
        make the first half free again.
        """
        overdue: list[W] = []
        left_bytes = self.used_bytes
        for writer, (start_ms, size_bytes) in self._writes.items():
            age_ms = now_ms - start_ms
            makes_room = self.waiter_count > 0 and age_ms >= PATIENCE_MS and left_bytes > self.limit_bytes // 2
            if age_ms < self._write_timeout_ms and not makes_room:
                break
            overdue.append(writer)
            left_bytes -= size_bytes
        return overdue
