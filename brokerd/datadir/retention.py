"""Retention over all logs of a data directory: roll expired segments, move log starts, make them durable, then remove.

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
    """The part of one log that is no longer needed."""

    log: PartitionLog
    segments: Sequence[Segment]
    snapshot_offsets: Sequence[int]


def roll_expired(logs: Iterable[PartitionLog], *, now_ms: int) -> list[PartitionLog]:
    """Rolls last segments that are past retention; returns their logs, which must be flushed before `retire`.

    A log that cannot be rolled is skipped: the next pass tries again.
    """
    rolled = []
    for log in logs:
        if not log.core.is_stopped:
            try:
                if log.roll_if_expired(now_ms):
                    rolled.append(log)
            except OSError as error:
                logger.warning("%s: retention could not roll the last segment (%s)", log.name, error.strerror)
    return rolled


def retire(
    logs: Sequence[PartitionLog],
    files: Files,
    spares: SpareFiles,
    checkpoint: CheckpointFile,
    checkpoint_job: Callable[[], Job],
    *,
    now_ms: int,
) -> Steps[int]:
    """Moves log starts and removes the segments below; returns how many. Raises OSError, but only after everything possible is
    done; log starts that are not durable are moved back.
    """
    failed: OSError | None = None
    try:
        yield from _move_log_starts(logs, checkpoint_job, now_ms)
    except OSError as error:
        failed = error  # segments below durable log starts are still removed: on a full disk that frees space
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


def _move_log_starts(logs: Sequence[PartitionLog], checkpoint_job: Callable[[], Job], now_ms: int) -> Steps[None]:
    """Moves log starts durably, or not at all. Raises OSError."""
    before: dict[PartitionLog, int] = {}
    try:
        for log in logs:
            start = log.log_start_offset if log.core.is_stopped else retained_from(log.core, now_ms)
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
    """Moves log starts up to the requested offsets (-1: the high watermark), made durable with one write for all. Returns each
    partition's error: OffsetOutOfRangeError, LogDamagedError or StorageError; its log start is then unchanged, but with an
    unknown fate the new one may appear after a restart.
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
            f"the log start could not be made durable ({error.strerror}): it is unchanged, but may turn out moved after a restart",
            fate=Fate.UNKNOWN,
        )
    return StorageError(f"the log start could not be written ({error.strerror})")


def _remove_all(files: Files, removals: Sequence[_Removal]) -> None:
    """Removes files; those that could not be removed are no longer known to their log, and go at the next start."""
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
