"""The snapshots of producer state that one log has on the disk, and those that wait to be written. Decides, and writes nothing.

Producer state outlives the records that made it, so a segment may go only once a snapshot at its end or above is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.partition.snapshots import Snapshot

_KEPT = 2  # one may rot


class KeptSnapshots:
    """See the module."""

    def __init__(self, durable: Sequence[int] = (), unwritten: Snapshot | None = None) -> None:
        """`durable`: offsets of those on the disk, ascending. `unwritten`: one that could not be written."""
        self._durable = list(durable)
        self._waiting = [unwritten] if unwritten is not None else []

    @property
    def durable(self) -> tuple[int, ...]:
        """Offsets of those that a restart finds, ascending."""
        return tuple(self._durable)

    @property
    def newest(self) -> int:
        """Up to here the producer state is durable without the log; -1 if nowhere."""
        return self._durable[-1] if self._durable else -1

    @property
    def has_waiting(self) -> bool:
        """True if one is to be written with the next flush."""
        return bool(self._waiting)

    def add(self, snapshot: Snapshot) -> None:
        """One at the log end as it is now."""
        self._waiting.append(snapshot)

    def take_waiting(self) -> list[Snapshot]:
        """What a flush is to write; it ends in `note_written` or `note_failed`."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def note_written(self, snapshots: Sequence[Snapshot]) -> None:
        """They are durable."""
        self._durable = sorted({*self._durable, *(snapshot.offset for snapshot in snapshots)})

    def note_failed(self, snapshots: Sequence[Snapshot]) -> None:
        """They could not be written; the newest of all is tried again, so that a bad disk costs the memory of one."""
        if snapshots:
            self._waiting = [*snapshots, *self._waiting][-1:]

    def newest_below(self, offset: int) -> int:
        """The newest durable one at or below `offset`; -1 if there is none."""
        return max((kept for kept in self._durable if kept <= offset), default=-1)

    def take_old(self, floor: int) -> list[int]:
        """Offsets of those that are no longer wanted; they are no longer known here. The log may be cut at `floor` or above, so the
        newest at or below it stays too.
        """
        base = self.newest_below(floor)
        old = [offset for offset in self._durable[:-_KEPT] if offset != base]
        self._durable = [offset for offset in self._durable if offset not in old]
        return old

    def forget(self, offsets: Sequence[int]) -> None:
        """These are gone from the disk."""
        self._durable = [kept for kept in self._durable if kept not in offsets]
