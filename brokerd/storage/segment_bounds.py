"""The bounds of a segment: offsets, size and times that rolling, retention and readers need. No file."""

from __future__ import annotations


class SegmentBounds:
    """Offsets from `base_offset` up to, not including, `next_offset`; `size_bytes` ends with the last whole batch."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size_bytes = 0
        self.max_timestamp = -1  # as readers see it, ms
        self.first_append_timestamp = -1
        self.max_append_timestamp = -1
        self.is_end_damaged = False
        self.is_of_this_run = False  # appended to since the start

    def add(self, next_offset: int, size_bytes: int, timestamp: int, append_timestamp: int) -> None:
        """Counts in a batch at the end; `timestamp` is the largest that its readers see."""
        self.size_bytes += size_bytes
        self.next_offset = next_offset
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        if append_timestamp > self.max_append_timestamp:
            self.max_append_timestamp = append_timestamp
        if self.first_append_timestamp < 0:
            self.first_append_timestamp = append_timestamp

    def end_damaged(self, size_bytes: int, next_offset: int) -> None:
        """Ends a segment whose last bytes are damaged: they stay, and the log goes on at `next_offset` in the next segment."""
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        self.is_end_damaged = True

    def has_passed(self, retention_ms: int, now_wall_ms: int, earliest_append_ms: int) -> bool:
        """True if all its batches are older than `retention_ms` (-1: never). Batches appended since the start count as no older
        than `earliest_append_ms`, whatever their timestamp is.
        """
        newest = max(self.max_append_timestamp, earliest_append_ms) if self.is_of_this_run else self.max_append_timestamp
        return retention_ms >= 0 and now_wall_ms - newest > retention_ms
