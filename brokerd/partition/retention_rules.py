"""Decides which records and segments of one partition may be removed. Pure: asks the core, and changes nothing."""

from __future__ import annotations

from brokerd.errors import OffsetOutOfRangeError
from brokerd.partition.core import PartitionCore

HIGH_WATERMARK = -1  # as a requested offset


def deletion_target(core: PartitionCore, before_offset: int) -> int:
    """The log start that DeleteRecords requests. Raises OffsetOutOfRangeError; StorageError and LogDamagedError if the log has
    stopped: its checkpoint entry no longer changes, so the new log start would not be durable.
    """
    core.health.check_writable(core.log_start_offset)
    target = core.high_watermark if before_offset == HIGH_WATERMARK else before_offset
    if not 0 <= target <= core.high_watermark:
        raise OffsetOutOfRangeError(
            f"{core.name}: cannot delete records before offset {before_offset}, the high watermark is {core.high_watermark}"
        )
    return target


def retained_from(core: PartitionCore, now_ms: int) -> int:
    """The log start by retention.ms and retention.bytes: a segment's base offset, or the present log start."""
    config = core.config
    start = core.log_start_offset
    size = core.size_bytes
    # Undecided transactions and damage stay, and everything above them.
    limit = core.last_stable_offset
    stopping = core.health.first_damage(start)
    if stopping is not None:
        limit = min(limit, stopping.first_offset)
    for segment, successor in zip(core.segments, core.segments[1:], strict=False):
        is_old = segment.has_passed(config.retention_ms, now_ms)
        is_excess = config.retention_bytes >= 0 and size - segment.size_bytes >= config.retention_bytes
        if successor.base_offset > limit or not (is_old or is_excess):
            break
        size -= segment.size_bytes
        start = max(start, successor.base_offset)
    return start


def must_close_last(core: PartitionCore, now_ms: int) -> bool:
    """True if all records of the last segment are durable and older than retention.ms: rolling lets retention remove it."""
    last = core.segments[-1]
    is_idle = core.flushes.dirty_bytes == 0 and core.flushes.under_way is None
    return is_idle and last.size_bytes > 0 and last.has_passed(core.config.retention_ms, now_ms)


def removable_count(core: PartitionCore, durable_start: int) -> int:
    """The number of oldest segments that may be removed: those below the log start. `durable_start`: the log start in the
    checkpoint on the disk.
    """
    if core.is_stopped:
        return 0
    # A snapshot must hold the state of their producers, one that also survives any cut of the log that is still possible.
    start = min(core.log_start_offset, durable_start, core.snapshots.newest_below(core.high_watermark))
    count = 0
    while count + 1 < len(core.segments) and core.segments[count + 1].base_offset <= start:
        if core.segments[count] in core.flushes.sealed:
            break
        count += 1
    return count
