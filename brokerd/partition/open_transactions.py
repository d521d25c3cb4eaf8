"""Keeps track of the transactions that hold back a partition's last stable offset.

A transaction is open from a member's first batch on. A marker ends it, and counts once it lies below the high watermark. A commit
holds back each of its partitions besides, from its decision until all have their markers. A replica that starts with a high
watermark below its log end does not know which transactions ended in between, and treats nothing of that range as stable before
all of it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class _Ended(NamedTuple):
    """Transactions whose marker does not count yet; `first_offset` is the lowest of them."""

    marker_offset: int
    first_offset: int


class OpenTransactions:
    """The undecided transactions of one partition. A member is a producer id, and has one transaction."""

    def __init__(self, first_offsets: Mapping[int, int]) -> None:
        """`first_offsets`: first offset of each open transaction, by producer id, in ascending order."""
        # In order of their first offsets: a transaction opens at the log end.
        self._open = dict(first_offsets)
        self._ended: list[_Ended] = []
        self.held_back: dict[str, int] = {}  # first offsets, by commit
        self._unknown: tuple[int, int] | None = None  # (from, until): offsets where it is not known which transactions ended

    @property
    def first_undecided(self) -> int | None:
        """The lowest offset that belongs to a transaction without a marker that counts, or is held back; None if there is none."""
        first = next(iter(self._open.values()), None)
        for ended in self._ended:
            if first is None or ended.first_offset < first:
                first = ended.first_offset
        for held in self.held_back.values():
            if first is None or held < first:
                first = held
        if self._unknown is not None and (first is None or self._unknown[0] < first):
            first = self._unknown[0]
        return first

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Notes a member's first batch; later ones change nothing."""
        self._open.setdefault(producer_id, first_offset)

    def end(self, producer_ids: Iterable[int], marker_offset: int) -> None:
        """Notes a marker, which ends the transactions of these members."""
        first_offsets = [self._open.pop(producer_id) for producer_id in producer_ids if producer_id in self._open]
        if first_offsets:
            self._ended.append(_Ended(marker_offset, min(first_offsets)))

    def doubt(self, first_offset: int, *, until_offset: int) -> None:
        """Takes all from `first_offset` on for undecided until the high watermark reaches `until_offset`."""
        self._unknown = (first_offset, until_offset)

    def hold_back(self, commit: str, first_offset: int) -> None:
        """Takes `first_offset` for undecided until `commit` is released, whatever markers say."""
        self.held_back[commit] = first_offset

    def release(self, commit: str) -> None:
        """The commit holds back nothing any more, if it did."""
        self.held_back.pop(commit, None)

    def settle(self, high_watermark: int) -> None:
        """Counts the markers below the high watermark."""
        if self._ended:
            self._ended = [ended for ended in self._ended if ended.marker_offset >= high_watermark]
        if self._unknown is not None and high_watermark >= self._unknown[1]:
            self._unknown = None

    def truncate(self, offset: int, first_offsets: Mapping[int, int]) -> None:
        """Follows a cut of the log at `offset`. `first_offsets`: the transactions that are open in what is left, as in __init__."""
        self._open = dict(first_offsets)
        self._ended = [ended for ended in self._ended if ended.marker_offset < offset]
        if self._unknown is not None:
            self._unknown = (self._unknown[0], min(self._unknown[1], offset))
