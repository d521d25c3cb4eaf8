"""Reads one partition for requests: batches from an offset on, and offsets by time. Changes nothing; for any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from brokerd.config.topic import TopicConfig
from brokerd.errors import OffsetOutOfRangeError, StorageError, UnknownTopicIdError
from brokerd.partition.aborted_transactions import AbortedTransactions
from brokerd.partition.backlog import Backlog, find_backlog
from brokerd.partition.core import PartitionCore
from brokerd.partition.newest import find_newest
from brokerd.partition.reach import Reach, find_reach
from brokerd.partition.timestamps import IsWanted, LookUp, OffsetAndTimestamp, find_by_timestamp, find_max_timestamp
from brokerd.storage.log_reader import NO_LIMIT, FetchDataInfo, LogReader
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment

T = TypeVar("T")
_RETRY_AFTER_MS = 200


def _always() -> bool:
    return True


class PartitionReader:
    """Reads of one partition. `log` reads its files; the partition's log gives it new segments."""

    def __init__(self, core: PartitionCore, seed: int, open_files: OpenFiles) -> None:
        self._core = core
        self._open_files = open_files
        self.name = core.name
        self.log = LogReader(
            core.name,
            seed,
            open_files,
            index_interval_bytes=core.config.index_interval_bytes,
            on_damage=core.damage_found,
        )
        self.log.damaged = core.health.damaged

    @property
    def config(self) -> TopicConfig:
        """The topic's settings."""
        return self._core.config

    @property
    def log_start_offset(self) -> int:
        """The first offset that readers may have."""
        return self._core.ends.log_start_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Segments, oldest first."""
        return self.log.segments

    def read(
        self, offset: int, *, max_bytes: int, until_offset: int, cached_only: bool, first_batch_max_bytes: int = NO_LIMIT
    ) -> FetchDataInfo:
        """Whole batches from the one that holds `offset` on, below `until_offset`, about `max_bytes`; the first one even if larger,
        but not than `first_batch_max_bytes`.

        Empty if there is nothing to read yet. Raises OffsetOutOfRangeError, LogDamagedError, StorageError, NeedsRoom if the first
        batch is too large, and WouldBlock with `cached_only` if the disk would have to be waited for: ask again in a thread, with
        cached_only=False.
        """
        core = self._core
        if not core.ends.log_start_offset <= offset <= core.log_end_offset:
            raise self._out_of_range(offset)
        until_offset = min(until_offset, core.log_end_offset)
        try:
            return self.log.read(
                offset,
                max_bytes=max_bytes,
                until_offset=until_offset,
                cached_only=cached_only,
                first_batch_max_bytes=first_batch_max_bytes,
            )
        except FileNotFoundError:
            # Removed during the read; whatever removed it has noted that before.
            if core.health.is_deleted:
                raise UnknownTopicIdError(f"{self.name} is deleted") from None
            if offset < core.ends.log_start_offset:
                raise self._out_of_range(offset) from None
            raise StorageError(f"{self.name}: a file of the log that holds offset {offset} is missing") from None

    def offset_for_timestamp(
        self, timestamp_ms: int, *, is_committed: bool = False, is_wanted: IsWanted = _always
    ) -> OffsetAndTimestamp | None:
        """The first durable record whose timestamp is at least `timestamp_ms`, below the last stable offset if `is_committed`; None
        if there is none. Reads files: call it in a thread.

        Raises StorageError; LogDamagedError if the record may be one that cannot be read; LookUpAbandoned soon after it is not
        wanted any more.
        """
        until = self._end(is_committed)
        return self._looked_up(is_wanted, lambda look_up: find_by_timestamp(look_up, timestamp_ms, until))

    def max_timestamp_offset(self, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> OffsetAndTimestamp | None:
        """The first durable record with the largest timestamp of the log; None if it is empty. Otherwise as
        offset_for_timestamp.
        """
        until = self._end(is_committed)
        return self._looked_up(is_wanted, lambda look_up: find_max_timestamp(look_up, until))

    def backlog(self, offset: int, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> Backlog:
        """The rest that a reader at `offset` has left to read, below the last stable offset if `is_committed`. Raises
        StorageError, LookUpAbandoned; otherwise as offset_for_timestamp.
        """
        until = self._end(is_committed)
        return self._looked_up(is_wanted, lambda look_up: find_backlog(look_up, offset, until))

    def reach(
        self, from_offset: int, until_offset: int, max_bytes: int, *, is_committed: bool = False, is_wanted: IsWanted = _always
    ) -> Reach:
        """How far `max_bytes` reach, in whole batches from the one that holds `from_offset` on: the end of the last one that fits,
        of the first one at least, and at most `until_offset`. Raises StorageError, LookUpAbandoned.
        """
        end = min(until_offset, self._end(is_committed))
        found = self._looked_up(is_wanted, lambda look_up: find_reach(look_up, from_offset, end, max_bytes))
        return found if found.offset < end else found._replace(offset=until_offset)

    def newest_offset(self, count: int, *, is_committed: bool = False, is_wanted: IsWanted = _always) -> int:
        """From which offset on the newest `count` records follow that a reader may have; the log start if there are no more.
        Raises StorageError, LookUpAbandoned.
        """
        until = self._end(is_committed)
        # A copy: the event loop changes the index meanwhile.
        aborted = AbortedTransactions(self._core.producers.aborted.entries if is_committed else ())
        return self._looked_up(is_wanted, lambda look_up: find_newest(look_up, count, until, aborted))

    def _end(self, is_committed: bool) -> int:
        ends = self._core.ends
        return ends.last_stable_offset if is_committed else ends.high_watermark

    def _looked_up(self, is_wanted: IsWanted, find: Callable[[LookUp], T]) -> T:
        try:
            return find(LookUp(self, self.log, self._open_files, is_wanted))
        except FileNotFoundError:
            if self._core.health.is_deleted:
                raise UnknownTopicIdError(f"{self.name} is deleted") from None
            # Retention was faster; a retry will probably succeed.
            raise StorageError(f"{self.name}: the log start has just moved", retry_after_ms=_RETRY_AFTER_MS) from None
        except OSError as error:
            raise StorageError(f"{self.name}: reading failed ({error.strerror})", retry_after_ms=_RETRY_AFTER_MS) from error

    def _out_of_range(self, offset: int) -> OffsetOutOfRangeError:
        core = self._core
        return OffsetOutOfRangeError(
            f"{self.name}: offset {offset} is out of range, the log has {core.ends.log_start_offset} to {core.log_end_offset}",
            log_start_offset=core.ends.log_start_offset,
        )
