"""Retention over all logs of a data directory: roll expired segments, move log starts, make them durable, then remove segments.

The order matters: a segment is removed only once the checkpoint on disk has a log start above it. The partition decides which
segments may be removed (PartitionCore.retained_from). A failure of one log does not hold up the others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.datadir.checkpoint import Checkpoint
from brokerd.datadir.log_time import DirectoryTime
from brokerd.datadir.partition_table import PartitionTable
from brokerd.errors import Fate, StorageError, WireError
from brokerd.partition.core import Role
from brokerd.partition.derived_files import remove_snapshot
from brokerd.partition.log_state import NEW_PARTITION
from brokerd.partition.partition import Partition
from brokerd.steps import Steps
from brokerd.storage.checksummed_file import NotSyncedError
from brokerd.storage.files import Files
from brokerd.storage.segment import Segment
from brokerd.storage.spare_files import SpareFiles

logger = logging.getLogger(__name__)


class _Removal(NamedTuple):
    """Segments and snapshots of one log whose files can be removed."""

    log: Partition
    segments: Sequence[Segment]
    snapshot_offsets: Sequence[int]


@dataclass(eq=False)
class Retention:
    """Retention of one data directory, by log time."""

    _files: Files
    _spares: SpareFiles
    _partitions: PartitionTable
    _checkpoint: Checkpoint
    _time: DirectoryTime
    is_off: bool = False  # the directory is read-only

    def roll_expired(self) -> list[Partition]:
        """The first half of a pass: rolls active segments that have passed retention. Returns the logs to flush before `retire`.

        A log that cannot be rolled is skipped until the next pass.
        """
        rolled: list[Partition] = []
        now_ms = self._time.now_ms()
        for log in self._partitions if not self.is_off else ():
            try:
                if log.role is not Role.NONE and log.roll_if_expired(now_ms):
                    rolled.append(log)
            except OSError as error:
                logger.warning("%s: retention could not roll the last segment (%s)", log.name, error.strerror)
        return rolled

    def retire(self) -> Steps[int]:
        """The second half of a pass: moves log starts and removes the segments below. Returns the number removed. Raises OSError,
        but only after doing everything else possible. Log starts that could not be made durable are moved back.
        """
        if self.is_off:
            return 0
        now_ms = self._time.now_ms()
        yield self._time.note()
        return (yield from self._retire(list(self._partitions), now_ms))

    def delete_records(self, asked: Sequence[tuple[Partition, int]]) -> Steps[list[WireError | None]]:
        """Moves log starts up to the requested offsets (-1: the high watermark), durably, by one checkpoint write. Returns each
        request's error, as in PartitionCore.deletion_target, or None. After an error the log start is unchanged, but with fate
        UNKNOWN the new one may appear after a restart.
        """
        results: list[WireError | None] = []
        starts: dict[Partition, int] = {}
        for log, offset in asked:
            try:
                target = log.deletion_target(offset)
            except WireError as error:
                results.append(error)
                continue
            results.append(None)
            if target > starts.get(log, log.ends.log_start_offset):
                starts[log] = target
        try:
            yield from self._move_log_starts(starts)
        except OSError as error:
            failed = _log_start_error(error)
            results = [result or (failed if log in starts else None) for result, (log, _) in zip(results, asked, strict=True)]
        return results

    def give_up_below(self, log: Partition, offset: int) -> Steps[WireError | None]:
        """Moves the log start of one log, durably, and removes the segments below it. Returns the error if the log start could not
        be moved, else None. Raises OSError as `retire` does."""
        (error,) = yield from self.delete_records([(log, offset)])
        if error is None:
            yield from self._retire([log], self._time.now_ms())
        return error

    def _move_log_starts(self, starts: Mapping[Partition, int]) -> Steps[None]:
        """Moves log starts, durably. On any error all are moved back."""
        before = {log: log.ends.log_start_offset for log in starts}
        try:
            for log, start in starts.items():
                log.set_log_start(start)
            if starts:
                yield self._checkpoint.job(makes_room=True)
        except BaseException:
            for log, start in before.items():
                log.set_log_start(start)
            raise

    def _retire(self, logs: Sequence[Partition], now_ms: int) -> Steps[int]:
        failed: OSError | None = None
        led = [(log, log.retained_from(now_ms)) for log in logs if log.is_leader]  # followers adopt their leader's log start
        try:
            yield from self._move_log_starts({log: start for log, start in led if start != log.ends.log_start_offset})
        except OSError as error:
            failed = error  # still remove segments below durable log starts, which frees space on a full disk
        written = self._checkpoint.written
        removals = []
        for log in logs:
            entry = written.get(log.tp, NEW_PARTITION)
            removal = _Removal(log, *log.take_removable(entry.log_start_offset))
            if removal.segments or removal.snapshot_offsets:
                removals.append(removal)
        if removals:
            yield lambda: _remove_all(self._files, removals)
        if not self._spares.is_whole:
            yield self._spares.restore
        if failed is not None:
            raise failed
        return sum(len(removal.segments) for removal in removals)


def _log_start_error(error: OSError) -> StorageError:
    if isinstance(error, NotSyncedError):
        return StorageError(
            f"the log start could not be made durable ({error.strerror}): it is unchanged, but may have moved after a restart",
            fate=Fate.UNKNOWN,
        )
    return StorageError(f"the log start could not be written ({error.strerror})")


def _remove_all(files: Files, removals: Sequence[_Removal]) -> None:
    """Removes files that their logs have already dropped. After an error, the next start removes the rest."""
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
