"""How many bytes of a partition are below its high watermark, as a number that never decreases.

A fetch that waits for min_bytes compares two readings of it: no file is touched and no offset is converted to a position. Knows
nothing of logs or files.
"""

from __future__ import annotations

from collections import deque


class PartitionProgress:
    """Counts appended bytes, and releases them when the high watermark passes their batch."""

    __slots__ = ("_unflushed", "appended_bytes", "durable_bytes")

    def __init__(self) -> None:
        self.appended_bytes = 0  # since the start of the daemon
        self.durable_bytes = 0  # those of them below the high watermark
        self._unflushed: deque[tuple[int, int]] = deque()  # (next offset of a batch, appended_bytes with it)

    def append(self, *, next_offset: int, size_bytes: int) -> None:
        """A batch was appended; offsets increase from call to call."""
        self.appended_bytes += size_bytes
        self._unflushed.append((next_offset, self.appended_bytes))

    def advance(self, high_watermark: int) -> None:
        """The high watermark has moved."""
        unflushed = self._unflushed
        while unflushed and unflushed[0][0] <= high_watermark:
            self.durable_bytes = unflushed.popleft()[1]

    def bytes_below(self, offset: int) -> int:
        """The value of `durable_bytes` when the high watermark reaches `offset`, which must not be below it."""
        below = self.durable_bytes
        for next_offset, appended_bytes in self._unflushed:
            if next_offset > offset:
                break
            below = appended_bytes
        return below
