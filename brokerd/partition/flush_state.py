"""Plans the flushes of one partition, and notes what each has made durable: the log, and the snapshots of producer state. Pure:
flush_task.py syncs the files.

A flush covers what was written when it began. At most one is under way, so appends meanwhile go with the next: group commit.
Producer state outlives the records that made it, so a segment may go only once a snapshot at its end or above is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_ends import LogEnds
from brokerd.partition.snapshots import Snapshot
from brokerd.storage.segment import SegmentBounds

# A restart checks the payloads of about so many durable bytes; older ones are checked when they are read, and by the doctor.
RECOVERY_WINDOW_BYTES = 64 * 1_048_576
_SNAPSHOTS_KEPT = 2  # one may rot


class FlushPlan(NamedTuple):
    """The work of one flush, which makes all below `end_offset` durable: the data of the sealed segments and the last one, then
    the directory, then the derived files: snapshots, and the epochs if they changed."""

    end_offset: int
    appended_bytes: int
    sealed: list[SegmentBounds]  # closed since the last flush, all of them just before the last segment
    snapshots: list[Snapshot]
    epochs: tuple[EpochEntry, ...] | None


class FlushOutcome(NamedTuple):
    """The result of a flush, none of whose syncs has failed."""

    is_untried: bool = False  # the directory could not even be opened: nothing failed, and nothing is durable
    has_snapshots: bool = True  # durably, all of them
    has_derived: bool = True


class FlushState:
    """The dirty part of one partition, and the flush under way."""

    def __init__(self, ends: LogEnds, recovery_point: int, snapshots: KeptSnapshots) -> None:
        self.recovery_point = recovery_point
        self.snapshots = snapshots
        self.sealed: list[SegmentBounds] = []  # closed and not flushed since
        self.flushed_bytes = 0  # of ends.appended_bytes, or given up
        self.epochs_changed = False
        self.under_way: FlushPlan | None = None
        self._ends = ends
        self._recovery_mark = (ends.durable_end, 0)  # (offset, flushed bytes) that becomes the recovery point next

    @property
    def dirty_bytes(self) -> int:
        """Bytes appended and not yet flushed."""
        return self._ends.appended_bytes - self.flushed_bytes

    @property
    def is_due(self) -> bool:
        """True if a flush has something to do."""
        return bool(self.dirty_bytes > 0 or self.sealed or self.snapshots.has_waiting)

    def seal(self, segment: SegmentBounds, snapshot: Snapshot) -> None:
        """Notes that a segment was closed, and the snapshot at its end."""
        self.sealed.append(segment)
        self.snapshots.add(snapshot)

    def begin(self, epochs: list[EpochEntry]) -> FlushPlan:
        """The plan of a flush of all that is due. No other flush may be under way."""
        assert self.under_way is None, "one flush at a time"
        plan = FlushPlan(
            self._ends.log_end_offset,
            self._ends.appended_bytes,
            self.sealed,
            self.snapshots.take_waiting(),
            tuple(epochs) if self.epochs_changed else None,
        )
        self.sealed = []
        self.epochs_changed = False
        self.under_way = plan
        return plan

    def done(self, plan: FlushPlan, outcome: FlushOutcome) -> bool:
        """Ends a flush. True if all below its `end_offset` is durable now. Derived files that are missing go with the
        next flush.
        """
        self._end(plan)
        if outcome.is_untried:
            self._take_back(plan)
            self.epochs_changed = self.epochs_changed or plan.epochs is not None
            return False
        if outcome.has_snapshots:
            self.snapshots.note_written(plan.snapshots)
        if not outcome.has_derived:
            self.epochs_changed = True
            if not outcome.has_snapshots:  # retention waits for it
                self._take_back(plan)
        self._settle(plan.appended_bytes)
        return True

    def failed(self, plan: FlushPlan) -> None:
        """Ends a flush whose sync failed: it has made nothing durable."""
        self._end(plan)

    def give_up(self) -> None:
        """Counts dirty bytes as settled: the log has stopped, so they will never be flushed."""
        self._settle(self._ends.appended_bytes)

    def truncate(self, end_offset: int) -> None:
        """Follows a cut of the log, all of which was durable, at `end_offset`."""
        assert self.under_way is None
        assert not self.sealed, "all is flushed before a cut"
        assert self.dirty_bytes == 0, "all is flushed before a cut"
        self.recovery_point = min(self.recovery_point, end_offset)
        self._recovery_mark = (min(self._recovery_mark[0], end_offset), self._recovery_mark[1])

    def advance_recovery_point(self) -> int:
        """The offset where a restart begins to check payloads, from now on: about RECOVERY_WINDOW_BYTES below the durable end."""
        durable_end = self._ends.durable_end
        mark_offset, mark_bytes = self._recovery_mark
        if self.flushed_bytes - mark_bytes >= RECOVERY_WINDOW_BYTES:
            self.recovery_point = mark_offset
            self._recovery_mark = (durable_end, self.flushed_bytes)
        return min(self.recovery_point, durable_end)

    def _take_back(self, plan: FlushPlan) -> None:
        self.sealed = [*plan.sealed, *self.sealed]
        self.snapshots.note_failed(plan.snapshots)

    def _settle(self, appended_bytes: int) -> None:
        self.flushed_bytes = max(self.flushed_bytes, appended_bytes)

    def _end(self, plan: FlushPlan) -> None:
        assert plan is self.under_way, "a flush ends that did not begin"
        self.under_way = None


class KeptSnapshots:
    """The snapshots of one log, by offset: those on the disk, and those to be written."""

    def __init__(self, durable: Sequence[int] = (), unwritten: Snapshot | None = None) -> None:
        """`durable`: offsets of the snapshots on the disk, ascending. `unwritten`: one that could not be written."""
        self._durable = list(durable)
        self._waiting = [unwritten] if unwritten is not None else []

    @property
    def durable(self) -> tuple[int, ...]:
        """Offsets of the snapshots that a restart finds, ascending."""
        return tuple(self._durable)

    @property
    def newest(self) -> int:
        """Offset of the newest durable snapshot; -1 if there is none."""
        return self._durable[-1] if self._durable else -1

    @property
    def has_waiting(self) -> bool:
        """True if the next flush has a snapshot to write."""
        return bool(self._waiting)

    def add(self, snapshot: Snapshot) -> None:
        """Adds a snapshot at the current log end, to be written with the next flush."""
        self._waiting.append(snapshot)

    def take_waiting(self) -> list[Snapshot]:
        """Hands the waiting snapshots to a flush, which ends in `note_written` or `note_failed`."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def note_written(self, snapshots: Sequence[Snapshot]) -> None:
        """Notes that these are durable."""
        self._durable = sorted({*self._durable, *(snapshot.offset for snapshot in snapshots)})

    def note_failed(self, snapshots: Sequence[Snapshot]) -> None:
        """Notes that these could not be written. Only the newest of all is retried, so that a bad disk costs the memory of one."""
        if snapshots:
            self._waiting = [*snapshots, *self._waiting][-1:]

    def newest_below(self, offset: int) -> int:
        """Offset of the newest durable snapshot at or below `offset`; -1 if there is none."""
        return max((kept for kept in self._durable if kept <= offset), default=-1)

    def take_old(self, floor: int) -> list[int]:
        """Forgets the snapshots that are no longer needed, and returns their offsets. The log may be cut at `floor` or above, so
        the newest at or below it stays.
        """
        base = self.newest_below(floor)
        old = [offset for offset in self._durable[:-_SNAPSHOTS_KEPT] if offset != base]
        self._durable = [offset for offset in self._durable if offset not in old]
        return old

    def forget(self, offsets: Sequence[int]) -> None:
        """Forgets snapshots that are removed from the disk."""
        self._durable = [kept for kept in self._durable if kept not in offsets]
