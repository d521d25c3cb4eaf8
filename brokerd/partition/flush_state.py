"""Plans the flushes of one partition, and notes what each has made durable. Pure: flush_task.py syncs the files.

A flush covers what was written when it began. At most one is under way, so appends meanwhile go with the next: group commit.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.partition.kept_snapshots import KeptSnapshots
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.snapshots import Snapshot
from brokerd.storage.segment_bounds import SegmentBounds

# A restart checks the payloads of about so many durable bytes; older ones are checked when they are read, and by the doctor.
RECOVERY_WINDOW_BYTES = 64 * 1_048_576


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

    def __init__(self, durable_end: int, recovery_point: int, snapshots: KeptSnapshots) -> None:
        self.recovery_point = recovery_point
        self.snapshots = snapshots
        self.sealed: list[SegmentBounds] = []  # closed and not flushed since
        self.appended_bytes = 0  # since the start
        self.flushed_bytes = 0  # of appended_bytes, or given up
        self.epochs_changed = False
        self.under_way: FlushPlan | None = None
        self._recovery_mark = (durable_end, 0)  # (offset, flushed bytes) that becomes the recovery point next

    @property
    def dirty_bytes(self) -> int:
        """Bytes appended and not yet flushed."""
        return self.appended_bytes - self.flushed_bytes

    @property
    def is_due(self) -> bool:
        """True if a flush has something to do."""
        return bool(self.dirty_bytes > 0 or self.sealed or self.snapshots.has_waiting)

    def seal(self, segment: SegmentBounds, snapshot: Snapshot) -> None:
        """Notes that a segment was closed, and the snapshot at its end."""
        self.sealed.append(segment)
        self.snapshots.add(snapshot)

    def begin(self, log_end_offset: int, epochs: list[EpochEntry]) -> FlushPlan:
        """The plan of a flush of all that is due. No other flush may be under way."""
        assert self.under_way is None, "one flush at a time"
        plan = FlushPlan(
            log_end_offset,
            self.appended_bytes,
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
        self._settle(self.appended_bytes)

    def truncate(self, end_offset: int) -> None:
        """Follows a cut of the log, all of which was durable, at `end_offset`."""
        assert self.under_way is None
        assert not self.sealed, "all is flushed before a cut"
        assert self.dirty_bytes == 0, "all is flushed before a cut"
        self.recovery_point = min(self.recovery_point, end_offset)
        self._recovery_mark = (min(self._recovery_mark[0], end_offset), self._recovery_mark[1])

    def advance_recovery_point(self, durable_end: int) -> int:
        """The offset where a restart begins to check payloads, from now on: about RECOVERY_WINDOW_BYTES below `durable_end`."""
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
