"""The bounds of one segment: offsets, size and times. No I/O."""

from __future__ import annotations

from brokerd.record.header import BatchHeader


class SegmentBounds:
    """The bounds of a segment, without the file: offsets [`base_offset`, `next_offset`), timestamps, and `size_bytes`, which ends
    with the last whole batch.
    """

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = -1  # of records, as readers see it, ms
        self.first_log_time = -1
        self.max_log_time = -1
        self.is_end_damaged = False

    def add(self, header: BatchHeader) -> None:
        """Extends the bounds by a batch."""
        timestamp, log_time = header.readers_timestamp, header.log_time
        self.size_bytes += header.size
        self.next_offset = header.next_offset
        if timestamp > self.max_timestamp and not header.is_control:
            self.max_timestamp = timestamp
        if log_time > self.max_log_time:
            self.max_log_time = log_time
        if self.first_log_time < 0:
            self.first_log_time = log_time

    def end_damaged(self, size_bytes: int, next_offset: int) -> None:
        """Closes a segment with a damaged end, which stays; the next segment continues the log at `next_offset`."""
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        self.is_end_damaged = True

    def has_passed(self, retention_ms: int, now_ms: int) -> bool:
        """True if all batches are older than `retention_ms` (-1: never) at log time `now_ms`."""
        return retention_ms >= 0 and now_ms - self.max_log_time > retention_ms
