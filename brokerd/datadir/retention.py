"""Retention over all logs of a data directory: roll what has expired, move log starts, make them durable, then remove.

The order is the rule here: a segment goes only once the checkpoint on the disk says that the log begins behind it. What one
log may give up is the partition's decision (retention_rules.py). One log's trouble never stands in the way of the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from brokerd.datadir.checkpoint import CheckpointFile
from brokerd.datadir.steps import Job, Steps
from brokerd.errors import Fate, StorageError, WireError
from brokerd.partition.entries import NEW_PARTITION
from brokerd.partition.partition_log import PartitionLog
from brokerd.partition.retention_rules import deletion_target, retained_from
from brokerd.partition.snapshots import remove_snapshot
from brokerd.storage.checksummed_file import NotSyncedError
from brokerd.storage.files import Files
from brokerd.storage.segment import Segment
from brokerd.storage.spare_files import SpareFiles

logger = logging.getLogger(__name__)


class _Removal(NamedTuple):
    """What of one log is no longer needed."""

    log: PartitionLog
    segments: Sequence[Segment]
    snapshot_offsets: Sequence[int]


def roll_expired(logs: Iterable[PartitionLog], *, now_wall_ms: int, earliest_append_ms: int) -> list[PartitionLog]:
    """Closes last segments that are past retention; returns their logs, which are to be flushed before `retire`.

    A log that cannot be rolled is passed over: the next pass tries again.
    """
    rolled = []
    for log in logs:
        if not log.core.is_stopped:
            try:
                if log.roll_if_expired(now_wall_ms, earliest_append_ms):
                    rolled.append(log)
            except OSError as error:
                logger.warning("%s: retention could not close the last segment (%s)", log.name, error.strerror)
    return rolled


def retire(
    logs: Sequence[PartitionLog],
    files: Files,
    spares: SpareFiles,
    checkpoint: CheckpointFile,
    checkpoint_job: Callable[[], Job],
    *,
    now_wall_ms: int,
    earliest_append_ms: int,
) -> Steps[int]:
    """Moves log starts and removes what lies below; returns how many segments are gone. Raises OSError, once all that can be
    done is done; log starts that are not durable are taken back.
    """
    failed: OSError | None = None
    try:
        yield from _move_log_starts(logs, checkpoint_job, now_wall_ms, earliest_append_ms)
    except OSError as error:
        failed = error  # what is durable already may go all the same: on a full disk it makes the room that is missing
    written = checkpoint.written
    removals = []
    for log in logs:
        entry = written.get(log.tp, NEW_PARTITION)
        removal = _Removal(log, log.take_removable(entry.log_start_offset), log.core.take_old_snapshots())
        if removal.segments or removal.snapshot_offsets:
            removals.append(removal)
    if removals:
        yield lambda: _remove_all(files, removals)
    if not spares.is_whole:
        yield spares.restore
    if failed is not None:
        raise failed
    return sum(len(removal.segments) for removal in removals)


def _move_log_starts(
    logs: Sequence[PartitionLog], checkpoint_job: Callable[[], Job], now_wall_ms: int, earliest_append_ms: int
) -> Steps[None]:
    """Durably, or not at all. Raises OSError."""
    before: dict[PartitionLog, int] = {}
    try:
        for log in logs:
            start = log.log_start_offset if log.core.is_stopped else retained_from(log.core, now_wall_ms, earliest_append_ms)
            if start != log.log_start_offset:
                before[log] = log.log_start_offset
                log.set_log_start(start)
        if before:
            yield checkpoint_job()
    except BaseException:
        for log, start in before.items():
            log.set_log_start(start)
        raise


def delete_records(asked: Sequence[tuple[PartitionLog, int]], checkpoint_job: Callable[[], Job]) -> Steps[list[WireError | None]]:
    """Moves log starts up to the offsets asked for (-1: the high watermark), durably in the end, with one write for all.
    Returns what went wrong with each: OffsetOutOfRangeError, LogDamagedError or StorageError; then its log start is as it was, but
    with an unknown fate the new one may show at the next start.
    """
    results: list[WireError | None] = []
    before: dict[PartitionLog, int] = {}
    try:
        for log, offset in asked:
            try:
                target = deletion_target(log.core, offset)
            except WireError as error:
                results.append(error)
                continue
            results.append(None)
            if target > log.log_start_offset:
                before.setdefault(log, log.log_start_offset)
                log.set_log_start(target)
        if before:
            yield checkpoint_job()
    except BaseException as error:
        for log, start in before.items():
            log.set_log_start(start)
        if not isinstance(error, OSError):
            raise
        failed = _log_start_error(error)
        results = [result or (failed if log in before else None) for result, (log, _) in zip(results, asked, strict=True)]
    return results


def _log_start_error(error: OSError) -> StorageError:
    if isinstance(error, NotSyncedError):
        return StorageError(
            f"the log start could not be made durable ({error.strerror}): it is as it was, but a restart may find it moved",
            fate=Fate.UNKNOWN,
        )
    return StorageError(f"the log start could not be written ({error.strerror})")


def _remove_all(files: Files, removals: Sequence[_Removal]) -> None:
    """Removes files; what could not be removed is no longer known to its log, and goes at the next start."""
    failed: OSError | None = None
    for log, segments, snapshot_offsets in removals:
        directory = log.tp.directory_name
        try:
            for segment in segments:
                segment.remove()
            for offset in snapshot_offsets:
                remove_snapshot(files, directory, offset)
            if segments:
                files.sync_dir(directory)
        except OSError as error:
            failed = failed or error
    if failed is not None:
        raise failed
