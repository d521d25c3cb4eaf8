"""The start offset of each leader epoch of one partition. No I/O: derived_files.py keeps the list in a file.

Besides its number, an epoch has a random id, drawn by its leader and stamped on every batch. Diverged logs, such as a restored copy
and the original that kept running, never draw the same id. So the epoch id of the record before a position identifies the history
of that position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from brokerd.record.header import BatchHeader

_start_offset = attrgetter("start_offset")
_epoch = attrgetter("epoch")
UNKNOWN_OFFSET = -1


class EpochEntry(NamedTuple):
    """An epoch and the base offset of its first batch."""

    epoch: int
    start_offset: int
    id: int = 0  # 0 = unknown; brokers never write 0


class LeaderEpochs:
    """Entries in order; epochs and offsets both rise."""

    def __init__(self, entries: Sequence[EpochEntry] = ()) -> None:
        self.entries = list(entries)

    @property
    def latest(self) -> int:
        """The epoch of the last batch; -1 if there is none."""
        return self.entries[-1].epoch if self.entries else -1

    @property
    def latest_id(self) -> int:
        """The id of the epoch of the last batch; 0 if there is none."""
        return self.entries[-1].id if self.entries else 0

    def may_have(self, epoch: int, epoch_id: int) -> bool:
        """False if this log has the epoch under another id: two leaders have used the same number."""
        at = bisect_right(self.entries, epoch, key=_epoch)
        known = self.entries[at - 1] if at else None
        return known is None or known.epoch != epoch or epoch_id in (known.id, 0) or not known.id

    def assign(self, epoch: int, start_offset: int, epoch_id: int = 0) -> bool:
        """Adds the epoch of a batch at `start_offset`; True if it is new."""
        if epoch <= self.latest:
            return False
        self.entries.append(EpochEntry(epoch, start_offset, epoch_id))
        return True

    def truncate(self, offset: int) -> None:
        """Drops epochs that began at `offset` or above."""
        self.entries = [entry for entry in self.entries if entry.start_offset < offset]

    def below(self, offset: int) -> tuple[EpochEntry, ...]:
        """Entries that began below `offset`."""
        return tuple(entry for entry in self.entries if entry.start_offset < offset)

    def entry_at(self, offset: int) -> EpochEntry | None:
        """The epoch of the batch at `offset`; None if unknown."""
        at = bisect_right(self.entries, offset, key=_start_offset)
        return self.entries[at - 1] if at else None

    def epoch_at(self, offset: int) -> int:
        """The number of the epoch of the batch at `offset`; -1 if unknown."""
        entry = self.entry_at(offset)
        return -1 if entry is None else entry.epoch

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The newest epoch not above `epoch` (-1 if there is none), and its end offset (KIP-101). Of two logs, ask the one with the
        newer last batch for the last epoch of the other: they agree up to the lower of their end offsets for the epoch found.
        """
        at = bisect_right(self.entries, epoch, key=_epoch)
        end_offset = self.entries[at].start_offset if at < len(self.entries) else log_end_offset
        return self.entries[at - 1].epoch if at else -1, end_offset

    def has(self, header: BatchHeader) -> bool:
        """True if the batch has the epoch recorded for its offset."""
        entry = self.entry_at(header.base_offset)
        return entry is not None and (entry.epoch, entry.id) == (header.leader_epoch, header.leader_epoch_id)

    def parts_at(self, offset: int, epoch_id: int, log_end_offset: int) -> int | None:
        """The offset at which this log diverges from a log whose record before `offset` has epoch id `epoch_id`. None if the two
        agree up to `offset`, or this log's epochs there are unknown; UNKNOWN_OFFSET if they diverge at an unknown offset.

        If this log has the epoch id and that epoch reaches `offset`, both logs agree up to there: one run of the broker wrote the
        epoch, each offset once. An id missing from the list was never in this log, unless its epochs below `offset` are unknown.
        """
        end_offset = log_end_offset
        for entry in reversed(self.entries):
            if entry.id == epoch_id:
                return None if offset <= end_offset else end_offset
            end_offset = entry.start_offset
        return None if self.entry_at(offset - 1) is None and offset <= log_end_offset else UNKNOWN_OFFSET
