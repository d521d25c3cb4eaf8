"""Index of one partition's aborted transactions, whose records read_committed readers skip. No I/O.

Like producer state, it is derived from the batches in order and stored in the same snapshots. Look-ups go by overlap: a batch is
aborted if it has that producer id and lies between the first offset and the marker. Matching the first offset or the marker alone
would let aborted records through where a range ends inside a transaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

_marker_offset = attrgetter("marker_offset")


class AbortedTransaction(NamedTuple):
    """Records of `producer_id` from `first_offset` up to the marker are aborted. Transactions that end later begin at
    `last_stable_offset` or above.
    """

    producer_id: int
    first_offset: int
    marker_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """The index, ordered by marker offset."""

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        """`entries`: in the order of the markers."""
        self._entries = list(entries)

    @property
    def entries(self) -> tuple[AbortedTransaction, ...]:
        """The whole index, in the order of the markers."""
        return tuple(self._entries)

    def add(self, entries: Iterable[AbortedTransaction]) -> None:
        """Adds the transactions aborted by a marker at the log end."""
        self._entries.extend(entries)

    def overlapping(self, from_offset: int, until_offset: int) -> list[AbortedTransaction]:
        """The transactions whose span, from first record to marker, overlaps [`from_offset`, `until_offset`)."""
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
        """Drops transactions whose marker lies below `offset`, where records can no longer be read."""
        del self._entries[: bisect_left(self._entries, offset, key=_marker_offset)]
