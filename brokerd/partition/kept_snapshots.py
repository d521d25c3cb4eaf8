"""Keeps track of one log's snapshots of producer state: those on the disk, and those to be written. Does no I/O.

Producer state outlives the records that made it, so a segment may go only once a snapshot at its end or above is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.partition.snapshots import Snapshot

_KEPT = 2  # one may rot


class KeptSnapshots:
    """The snapshots of one log, by offset."""

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
        old = [offset for offset in self._durable[:-_KEPT] if offset != base]
        self._durable = [offset for offset in self._durable if offset not in old]
        return old

    def forget(self, offsets: Sequence[int]) -> None:
        """Forgets snapshots that are removed from the disk."""
        self._durable = [kept for kept in self._durable if kept not in offsets]
