"""Plans one partition's flushes and tracks which data and snapshots of producer state are durable. No I/O: FlushTask
(partition.py) syncs the files.

A flush covers everything written before it began. At most one is under way; batches appended meanwhile share the next one (group
commit). Producer state outlives the records it derives from, so a segment may be removed only once a snapshot at or above its end
is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_ends import LogEnds
from brokerd.partition.log_state import Snapshot
from brokerd.storage.segment_bounds import SegmentBounds

# A restart checks payloads in about the last 64 MiB of durable bytes; consumers and `brokerd doctor` check older ones.
RECOVERY_WINDOW_BYTES = 64 * 1_048_576
_SNAPSHOTS_KEPT = 2  # in case one is damaged


class FlushPlan(NamedTuple):
    """The work of one flush, which makes everything below `end_offset` durable: sync the sealed segments and the active one, then
    the directory; then write the derived files (snapshots, indexes, and the leader epochs if they changed)."""

    end_offset: int
    appended_bytes: int
    sealed: list[SegmentBounds]  # closed since the last flush: the segments just before the active one
    snapshots: list[Snapshot]
    epochs: tuple[EpochEntry, ...] | None


@dataclass(slots=True)
class FlushOutcome:
    """The result of a flush in which no sync failed."""

    has_snapshots: bool = True  # all planned snapshots are durable
    # A derived file (index, snapshot, epochs) could not be written. The data is durable all the same.
    derived_error: OSError | None = None
    # The directory could not be opened to sync it. Nothing counts as durable; the next flush repeats everything.
    untried_error: OSError | None = None


class FlushState:
    """The dirty data of one partition, and the flush under way."""

    def __init__(self, ends: LogEnds, recovery_point: int, snapshots: KeptSnapshots) -> None:
        self.recovery_point = recovery_point
        self.snapshots = snapshots
        self.sealed: list[SegmentBounds] = []  # closed since the last flush
        self.flushed_bytes = 0  # part of ends.appended_bytes; includes bytes abandoned by `give_up`
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
        return bool(self.dirty_bytes > 0 or self.sealed or self.snapshots.waiting)

    @property
    def has_unsynced(self) -> bool:
        """True while batches or closed segments wait for a flush, or one is under way. A cut need not wait for snapshots."""
        return bool(self.dirty_bytes > 0 or self.sealed or self.under_way is not None)

    def seal(self, segment: SegmentBounds, snapshot: Snapshot) -> None:
        """Adds a closed segment, and the snapshot at its end, to the next flush."""
        self.sealed.append(segment)
        self.snapshots.waiting.append(snapshot)

    def begin(self, epochs: list[EpochEntry]) -> FlushPlan:
        """Begins a flush of everything due. No other flush may be under way."""
        assert self.under_way is None, "one flush at a time"
        plan = FlushPlan(
            self._ends.log_end_offset,
            self._ends.appended_bytes,
            self.sealed,
            self.snapshots.waiting,
            tuple(epochs) if self.epochs_changed else None,
        )
        self.sealed, self.snapshots.waiting = [], []
        self.epochs_changed = False
        self.under_way = plan
        return plan

    def done(self, plan: FlushPlan, outcome: FlushOutcome) -> bool:
        """Ends a flush. True if everything below its `end_offset` is now durable. Snapshots and epochs that could not be written
        are left to a later flush.
        """
        self.ended(plan)
        if outcome.untried_error is not None:
            self._take_back(plan)
            self.epochs_changed = self.epochs_changed or plan.epochs is not None
            return False
        if outcome.has_snapshots:
            self.snapshots.durable = sorted({*self.snapshots.durable, *(snapshot.offset for snapshot in plan.snapshots)})
        if outcome.derived_error is not None:
            self.epochs_changed = True
            if not outcome.has_snapshots:  # retention needs them
                self._take_back(plan)
        self.flushed_bytes = max(self.flushed_bytes, plan.appended_bytes)
        return True

    def ended(self, plan: FlushPlan) -> None:
        """Ends a flush without counting its data as durable. Called directly only after a failed sync."""
        assert plan is self.under_way, "a flush ends that did not begin"
        self.under_way = None

    def give_up(self) -> None:
        """Counts the dirty bytes of a stopped log as flushed, since it will never flush them."""
        self.flushed_bytes = self._ends.appended_bytes

    def truncate(self, end_offset: int) -> None:
        """Adjusts to a cut of the log at `end_offset`. Everything must have been flushed."""
        assert not self.has_unsynced, "all is flushed before a cut"
        self.recovery_point = min(self.recovery_point, end_offset)
        self._recovery_mark = (min(self._recovery_mark[0], end_offset), self._recovery_mark[1])

    def advance_recovery_point(self) -> int:
        """Advances the offset from which a restart checks payloads to about RECOVERY_WINDOW_BYTES below the durable end."""
        durable_end = self._ends.durable_end
        mark_offset, mark_bytes = self._recovery_mark
        if self.flushed_bytes - mark_bytes >= RECOVERY_WINDOW_BYTES:
            self.recovery_point = mark_offset
            self._recovery_mark = (durable_end, self.flushed_bytes)
        return min(self.recovery_point, durable_end)

    def _take_back(self, plan: FlushPlan) -> None:
        self.sealed = [*plan.sealed, *self.sealed]
        if plan.snapshots:  # retry only the newest, so that a failing disk costs the memory of one snapshot
            self.snapshots.waiting = [*plan.snapshots, *self.snapshots.waiting][-1:]


class KeptSnapshots:
    """The snapshots of one log: those on disk, by offset, and those waiting to be written."""

    def __init__(self, durable: Sequence[int] = (), unwritten: Snapshot | None = None) -> None:
        """`unwritten`: a snapshot that recovery could not write."""
        self.durable = list(durable)  # offsets of the snapshots on disk, ascending
        self.waiting = [unwritten] if unwritten is not None else []  # for the next flush to write

    def newest_below(self, offset: int) -> int:
        """Offset of the newest durable snapshot at or below `offset`; -1 if there is none."""
        return max((kept for kept in self.durable if kept <= offset), default=-1)

    def take_old(self, floor: int) -> list[int]:
        """Drops unneeded snapshots and returns their offsets. A cut may happen at `floor` or above, so the newest snapshot at or
        below `floor` stays.
        """
        base = self.newest_below(floor)
        old = [offset for offset in self.durable[:-_SNAPSHOTS_KEPT] if offset != base]
        self.durable = [offset for offset in self.durable if offset not in old]
        return old

    def forget(self, offsets: Sequence[int], end_offset: int) -> None:
        """Drops the snapshots at `offsets`, which a cut removes from disk, and waiting ones at or above the new log end."""
        self.durable = [kept for kept in self.durable if kept not in offsets]
        self.waiting = [snapshot for snapshot in self.waiting if snapshot.offset < end_offset]
