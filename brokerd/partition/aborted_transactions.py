"""Index of the aborted transactions of one partition, whose records readers of committed records leave out. Pure.

It is folded from all batches, as the state of producers is, and stands in the same snapshots. Look-ups go by overlap: a batch is
void if it has that producer id and lies between the first offset and the marker. By first offset or by marker alone they would let
records through wherever a range ends within a transaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

_marker_offset = attrgetter("marker_offset")


class AbortedTransaction(NamedTuple):
    """Records of `producer_id` from `first_offset` up to the marker are void. Transactions that end later begin at
    `last_stable_offset` or above.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """See the module."""

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        """`entries`: in the order of the markers."""
        self._entries = list(entries)

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """The whole index, in the order of the markers."""
        return tuple(self._entries)

    def add(self, entries: Iterable[AbortedTransaction]) -> None:
        """Adds the transactions that a marker at the end of the log aborts."""
        self._entries.extend(entries)

    def overlapping(self, from_offset: int, until_offset: int) -> list[AbortedTransaction]:
        """The transactions that reach into [`from_offset`, `until_offset`), from their first record to the marker."""
        found: list[AbortedTransaction] = []
        entries, at = self._entries, bisect_left(self._entries, from_offset, key=_marker_offset)
        while at < len(entries):
            marker_offset, stable = entries[at].marker_offset, entries[at].last_stable_offset
            while at < len(entries) and entries[at].marker_offset == marker_offset:
                if entries[at].first_offset < until_offset:
                    found.append(entries[at])
                at += 1
            if stable >= until_offset:
                break
        return found

    def forget_below(self, offset: int) -> None:
        """Forgets transactions whose marker lies below `offset`, where nothing can be read any more."""
        del self._entries[: bisect_left(self._entries, offset, key=_marker_offset)]
