"""The ends of one partition's log: how far it is written, durable and readable, what holds readers back, and which ends an event
has moved. Pure.

    log_start_offset <= last_stable_offset <= high_watermark <= durable_end <= log_end_offset

A transaction is open from a member's first batch on. A marker ends it, and counts once it lies below the high watermark. A commit
holds back each of its partitions besides, from its decision until all have their markers. A replica that starts with a high
watermark below its log end does not know which transactions ended in between, and treats nothing of that range as stable before
all of it is.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_NOWHERE = -1


class LogEnd(enum.Enum):
    """The ends that requests wait for: consumers for the high watermark or the last stable offset, followers for the log end. A log
    start that moves ends the waits below it.
    """

    LOG_START = "log start"
    LAST_STABLE_OFFSET = "last stable offset"
    HIGH_WATERMARK = "high watermark"
    LOG_END = "log end"

    __hash__ = object.__hash__  # an append looks one up: Enum's own hash is a call of Python


Moved = tuple[LogEnd, ...]  # by one event; requests that wait for one of them are to be woken

NOTHING_MOVED: Moved = ()
LOG_END_MOVED: Moved = (LogEnd.LOG_END,)


class _Ended(NamedTuple):
    """Transactions whose marker does not count yet; `first_offset` is the lowest of them."""

    marker_offset: int
    first_offset: int


class LogEnds:
    """The ends of one log, and the bytes below them. Each event returns what it has moved."""

    def __init__(
        self, log_start_offset: int, log_end_offset: int, high_watermark: int, open_transactions: Mapping[int, int]
    ) -> None:
        """`open_transactions`: the first offsets of those without a marker, as they are at any time, in ascending order."""
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.durable_end = log_end_offset
        self.log_end_offset = log_end_offset
        self.appended_bytes = 0  # since the start
        self.readable_bytes = 0  # those of them below the high watermark: a fetch that waits for bytes compares two readings
        self._unreadable: deque[tuple[int, int]] = deque()  # (next offset of a batch, appended_bytes with it)
        self.held_back: dict[str, int] = {}  # first offsets, by commit
        self._open = open_transactions
        self._ended: list[_Ended] = []
        # (from, until): offsets where it is not known which transactions ended: none of it is stable before all of it is.
        self._unknown = (high_watermark, log_end_offset) if high_watermark < log_end_offset else None
        self._replicas: dict[int, int] | None = None  # durable ends of the other in-sync replicas; None = this one does not lead
        self._leader_high_watermark = _NOWHERE  # on a follower: as the leader said last
        self.last_stable_offset = self._stable_end()

    def of(self, end: LogEnd) -> int:
        """The offset where readers of that kind see the log end."""
        if end is LogEnd.LAST_STABLE_OFFSET:
            return self.last_stable_offset
        return self.high_watermark if end is LogEnd.HIGH_WATERMARK else self.log_end_offset

    # Appends, and what becomes of them

    def written(self, next_offset: int, size_bytes: int) -> Moved:
        """A batch was written at the log end."""
        self.log_end_offset = next_offset
        self.appended_bytes += size_bytes
        self._unreadable.append((next_offset, self.appended_bytes))
        return LOG_END_MOVED

    def truncated(self, log_end_offset: int, open_transactions: Mapping[int, int]) -> Moved:
        """The log, all of which was durable, was cut, and ends there. `open_transactions`: of what is left, as at first."""
        self.log_end_offset = log_end_offset
        self._open = open_transactions
        self._ended = [ended for ended in self._ended if ended.marker_offset < log_end_offset]
        if self._unknown is not None:
            self._unknown = (self._unknown[0], min(self._unknown[1], log_end_offset))
        self._count_markers()
        while self._unreadable and self._unreadable[-1][0] > log_end_offset:
            self._unreadable.pop()
        return self.durable_to(log_end_offset)

    def durable_to(self, offset: int) -> Moved:
        """All below `offset` is durable on this replica."""
        self.durable_end = offset
        return self._advance()

    def bytes_below(self, offset: int) -> int:
        """The value of `readable_bytes` when the high watermark reaches `offset`, which must not be below it."""
        below = self.readable_bytes
        for next_offset, appended_bytes in self._unreadable:
            if next_offset > offset:
                break
            below = appended_bytes
        return below

    # Replicas

    def lead(self) -> None:
        """Makes this node the leader, without followers until `in_sync`."""
        self._replicas = {}

    def follow(self) -> None:
        """This node does not lead: the high watermark moves as its leader says."""
        self._replicas = None
        self._leader_high_watermark = _NOWHERE

    def in_sync(self, followers: Iterable[int]) -> Moved:
        """Sets the other in-sync replicas. A new one has nothing durable until `replica_at`."""
        known = self._replicas or {}
        self._replicas = {node: known.get(node, _NOWHERE) for node in followers}
        return self._advance()

    def replica_at(self, node: int, durable_end: int) -> Moved:
        """Notes how far a follower is durable; ignored unless it is in sync."""
        if self._replicas is None or node not in self._replicas:
            return NOTHING_MOVED
        self._replicas[node] = durable_end
        return self._advance()

    def leader_at(self, high_watermark: int) -> Moved:
        """Notes the leader's high watermark, on a follower."""
        self._leader_high_watermark = high_watermark
        return self._advance()

    def _advance(self) -> Moved:
        """Advances the high watermark to what all in-sync replicas have durably. It never goes back."""
        known = (self._leader_high_watermark,) if self._replicas is None else self._replicas.values()
        end = min([self.durable_end, *known])
        if end <= self.high_watermark:
            return NOTHING_MOVED
        self.high_watermark = end
        unreadable = self._unreadable
        while unreadable and unreadable[0][0] <= end:
            self.readable_bytes = unreadable.popleft()[1]
        self._count_markers()
        return (LogEnd.HIGH_WATERMARK, *self._move_stable())

    def _count_markers(self) -> None:
        """Counts the markers below the high watermark."""
        if self._ended:
            self._ended = [ended for ended in self._ended if ended.marker_offset >= self.high_watermark]
        if self._unknown is not None and self.high_watermark >= self._unknown[1]:
            self._unknown = None

    # Transactions, and the log start

    def ended(self, first_offset: int, marker_offset: int) -> None:
        """A marker has ended transactions, of which the first began at `first_offset`."""
        self._ended.append(_Ended(marker_offset, first_offset))

    def hold_back(self, commit: str, first_offset: int) -> Moved:
        """Keeps the last stable offset from passing `first_offset` until `release`: the commit's data begins there. Before its
        first marker this moves nothing; after a start it may go back, so nothing may have been read yet.
        """
        self.held_back[commit] = first_offset
        return self._move_stable()

    def release(self, commit: str) -> Moved:
        """Lets the markers of a commit count: by now all its partitions have theirs durably."""
        self.held_back.pop(commit, None)
        return self._move_stable()

    def set_log_start(self, offset: int) -> Moved:
        """Moves the log start to `offset`."""
        if offset == self.log_start_offset:
            return NOTHING_MOVED
        self.log_start_offset = offset
        return (LogEnd.LOG_START, *self._move_stable())

    def _move_stable(self) -> Moved:
        end = self._stable_end()
        if end == self.last_stable_offset:
            return NOTHING_MOVED
        self.last_stable_offset = end
        return (LogEnd.LAST_STABLE_OFFSET,)

    def _stable_end(self) -> int:
        """The last stable offset: the high watermark, or the first offset of an undecided transaction below it.

        It does not stop at damage. If it did, a streaming reader would wait there for ever, and a batch read would take it for the
        end of the log; so readers go on to the damaged range and get LOG_DAMAGED.
        """
        end = next(iter(self._open.values()), self.high_watermark)
        if self._ended:
            end = min(end, *[ended.first_offset for ended in self._ended])
        if self.held_back:
            end = min(end, *self.held_back.values())
        if self._unknown is not None:
            end = min(end, self._unknown[0])
        return max(min(end, self.high_watermark), self.log_start_offset)
