"""Which transactions hold back a partition's last stable offset.

A transaction is open from a member's first batch on. A marker ends it, and counts once it lies below the high watermark; a marker
that is held counts only once it is released too, when all partitions of its transaction have theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class _Ended(NamedTuple):
    """A transaction whose marker does not count yet."""

    marker_offset: int
    first_offset: int
    is_held: bool


class OpenTransactions:
    """See the module. Producers are members: each has one transaction."""

    def __init__(self, first_offsets: Mapping[int, int]) -> None:
        """`first_offsets`: of the open transactions, by producer id."""
        # In order of their first offsets: a transaction opens at the log end.
        self._open = dict(sorted(first_offsets.items(), key=lambda entry: entry[1]))
        self._ended: list[_Ended] = []
        self._unknown: tuple[int, int] | None = None  # offsets from, until: which transactions ended there is not known

    @property
    def first_undecided(self) -> int | None:
        """The lowest offset that belongs to a transaction without a marker that counts; None if there is none."""
        first = next(iter(self._open.values()), None)
        for ended in self._ended:
            if first is None or ended.first_offset < first:
                first = ended.first_offset
        if self._unknown is not None and (first is None or self._unknown[0] < first):
            first = self._unknown[0]
        return first

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A member wrote; nothing new if it wrote before."""
        self._open.setdefault(producer_id, first_offset)

    def end(self, producer_ids: Iterable[int], marker_offset: int, *, is_held: bool) -> None:
        """A marker was written."""
        for producer_id in producer_ids:
            first_offset = self._open.pop(producer_id, None)
            if first_offset is not None:
                self._ended.append(_Ended(marker_offset, first_offset, is_held))

    def hold(self, first_offset: int, *, until_offset: int) -> None:
        """Nothing from `first_offset` on is decided before the high watermark reaches `until_offset`."""
        self._unknown = (first_offset, until_offset)

    def release(self, marker_offset: int) -> None:
        """The marker there is held no longer."""
        self._ended = [ended._replace(is_held=False) if ended.marker_offset == marker_offset else ended for ended in self._ended]

    def settle(self, high_watermark: int) -> None:
        """Markers below it count, if they are not held."""
        if self._ended:
            self._ended = [ended for ended in self._ended if ended.is_held or ended.marker_offset >= high_watermark]
        if self._unknown is not None and high_watermark >= self._unknown[1]:
            self._unknown = None

    def truncate(self, offset: int, first_offsets: Mapping[int, int]) -> None:
        """What stood from `offset` on is gone; `first_offsets`: what is open in the log that is left."""
        self._open = dict(sorted(first_offsets.items(), key=lambda entry: entry[1]))
        self._ended = [ended for ended in self._ended if ended.marker_offset < offset]
        if self._unknown is not None:
            self._unknown = (self._unknown[0], min(self._unknown[1], offset))
