"""The bounds of a segment: offsets, size and times that rolling, retention and readers need. No file."""

from __future__ import annotations


class SegmentBounds:
    """Offsets from `base_offset` up to, not including, `next_offset`; `size_bytes` ends with the last whole batch."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = -1  # as readers see it, ms
        self.first_log_time = -1
        self.max_log_time = -1
        self.is_end_damaged = False

    def add(self, next_offset: int, size_bytes: int, timestamp: int, log_time: int) -> None:
        """Counts in a batch at the end; `timestamp` is the largest that its readers see."""
        self.size_bytes += size_bytes
        self.next_offset = next_offset
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if log_time > self.max_log_time:
            self.max_log_time = log_time
        if self.first_log_time < 0:
            self.first_log_time = log_time

    def end_damaged(self, size_bytes: int, next_offset: int) -> None:
        """Ends a segment whose last bytes are damaged: they stay, and the log goes on at `next_offset` in the next segment."""
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        self.is_end_damaged = True

    def has_passed(self, retention_ms: int, now_ms: int) -> bool:
        """True if all its batches are older than `retention_ms` (-1: never), at this log time."""
        return retention_ms >= 0 and now_ms - self.max_log_time > retention_ms
