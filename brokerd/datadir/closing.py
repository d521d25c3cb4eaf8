"""Closes the logs at a clean shutdown: flushes each, and writes next to it what the next start reads instead of its batches.

Files that are up to date are not written again, so idle partitions cost nothing. The rest is mostly waiting for the disk, and
concurrent syncs share its journal, so many logs are closed at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from brokerd.datadir.node_state import CleanLogs
from brokerd.partition.entries import CleanLog, CleanSegment
from brokerd.partition.partition_log import PartitionLog
from brokerd.partition.snapshots import encode_snapshot, write_snapshot
from brokerd.storage.files import Files

logger = logging.getLogger(__name__)

_THREADS_MAX = 32
_LOGS_PER_THREAD = 8  # fewer are not worth a thread

T = TypeVar("T")


def end_logs(files: Files, logs: Iterable[PartitionLog]) -> CleanLogs:
    """Flushes the logs and writes their end files; returns those that closed cleanly. A failure of one log does not affect the
    others, nor does the failure of a file that only saves work.
    """
    logs = list(logs)
    _flush(logs)
    clean: CleanLogs = {}
    ended = [log for log in logs if not log.core.is_stopped and log.core.durable_end == log.log_end_offset]
    _for_all(lambda log: _write_end(files, log), [log for log in ended if not _has_end(log)])
    for log in ended:
        if not any(segment.has_excess_bytes for segment in log.segments):
            segments = tuple(CleanSegment(segment.base_offset, segment.size_bytes) for segment in log.segments)
            clean[log.tp] = CleanLog(log.log_end_offset, segments)
    return clean


def _flush(logs: list[PartitionLog]) -> None:
    tasks = [(log, task) for log in logs if (task := log.prepare_flush()) is not None]
    errors: list[OSError | None] = [None] * len(tasks)

    def run(at: int) -> None:
        try:
            tasks[at][1].run()
        except OSError as error:
            errors[at] = error

    _for_all(run, range(len(tasks)))
    for (log, task), error in zip(tasks, errors, strict=True):
        if error is None:
            log.complete_flush(task)
        else:
            log.fail_flush(task, error)


def _has_end(log: PartitionLog) -> bool:
    """True if the next start will find everything that `_write_end` would write."""
    return log.core.snapshots.newest == log.log_end_offset and log.segments[-1].has_written_index


def _write_end(files: Files, log: PartitionLog) -> None:
    """Writes the index of the last segment and a snapshot at the end, so that the next start reads nothing else."""
    directory = log.tp.directory_name
    try:
        if not log.segments[-1].has_written_index:
            log.segments[-1].write_index()
        if log.core.snapshots.newest != log.log_end_offset:
            write_snapshot(files, directory, encode_snapshot(log.core.snapshot()), log.log_end_offset)
        files.sync_dir(directory)
    except OSError as error:
        logger.warning("%s: could not write index or snapshot (%s): the next start reads more of the log", log.name, error.strerror)


def _for_all(do: Callable[[T], None], items: Iterable[T]) -> None:
    """Calls `do` for each item, in threads if there are many."""
    items = list(items)
    threads = min(_THREADS_MAX, len(items) // _LOGS_PER_THREAD)
    if threads <= 1:
        for item in items:
            do(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="brokerd-close") as pool:
        for done in [pool.submit(do, item) for item in items]:
            done.result()
