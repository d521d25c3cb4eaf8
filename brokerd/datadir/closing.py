"""Closes the logs at a clean shutdown: flushes each, and writes the index and snapshot that spare the next start a scan.

Files that are up to date are not rewritten, so idle partitions cost nothing. The rest is mostly waiting for the disk, and
concurrent syncs share journal commits, so many logs are closed in parallel.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from brokerd.datadir.node_state import CleanLogs
from brokerd.partition.partition import FlushTask, Partition

logger = logging.getLogger(__name__)

_THREADS_MAX = 32
_LOGS_PER_THREAD = 8  # fewer are not worth a thread

T = TypeVar("T")
U = TypeVar("U")


def end_logs(partitions: Iterable[Partition]) -> CleanLogs:
    """Flushes the logs and writes their indexes and snapshots; returns the logs that closed cleanly. A failure of one log does not
    affect the others; a log whose files could not be written still counts as clean.
    """
    partitions = list(partitions)
    _flush(partitions)
    clean = {}
    for partition, ended in zip(partitions, _for_all(Partition.write_end, partitions), strict=True):
        if isinstance(ended, Exception):
            logger.error("%s: internal error at its end: the next start recovers it", partition.name, exc_info=ended)
        elif ended is not None:
            clean[partition.tp] = ended
    return clean


def _flush(partitions: Iterable[Partition]) -> None:
    tasks = [(partition, task) for partition in partitions if (task := partition.prepare_flush()) is not None]
    for (partition, task), error in zip(tasks, _for_all(FlushTask.run, [task for _, task in tasks]), strict=True):
        if error is None:
            partition.complete_flush(task)
            continue
        if not isinstance(error, OSError):
            logger.error("%s: internal error in a flush", partition.name, exc_info=error)
            error = OSError(errno.EIO, f"internal error: {type(error).__name__}")
        partition.fail_flush(task, error)


def _for_all(do: Callable[[T], U], items: Sequence[T]) -> list[U | Exception]:
    """The results of `do` for each item, or what it raised, in threads if there are many."""

    def done(item: T) -> U | Exception:
        try:
            return do(item)
        except Exception as error:
            return error

    threads = min(_THREADS_MAX, len(items) // _LOGS_PER_THREAD)
    if threads <= 1:
        return [done(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="brokerd-close") as pool:
        return list(pool.map(done, items))
