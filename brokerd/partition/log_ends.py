"""The ends of one partition's log: where its written, durable and readable parts end. Each event returns the ends it moved. No I/O.

    log_start_offset <= last_stable_offset <= high_watermark <= durable_end <= log_end_offset

A transaction is open from a member's first batch until its marker, which takes effect once it lies below the high watermark. A
commit also holds back the last stable offset of each of its partitions, from the decision until all of them have durable markers. A
replica that starts with its high watermark below its log end cannot tell which transactions ended in between. So its last stable
offset stays at the last announced one until the high watermark has passed that whole range.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Key in `held_back` while it is unknown which commits hold back this partition. No transactional id is empty.
UNSETTLED = ""
_NOWHERE = -1
_NO_LIMIT = 2**63 - 1
_COUNTED_MAX = 4_096  # batches above the high watermark whose bytes are kept one by one: half a megabyte


class LogEnd(enum.Enum):
    """The ends that requests wait for: consumers for the high watermark or the last stable offset, followers for the log end. A
    move of the log start rechecks every waiting request.
    """

    LOG_START = "log start"
    LAST_STABLE_OFFSET = "last stable offset"
    HIGH_WATERMARK = "high watermark"
    LOG_END = "log end"

    __hash__ = object.__hash__  # hashed on every append: Enum.__hash__ is a Python function


Moved = tuple[LogEnd, ...]  # the ends moved by one event; the caller wakes the requests that wait for them

NOTHING_MOVED: Moved = ()
LOG_END_MOVED: Moved = (LogEnd.LOG_END,)


class _Ended(NamedTuple):
    """Transactions ended by one marker not yet below the high watermark. `first_offset` is the lowest of their first offsets."""

    marker_offset: int
    first_offset: int


class LogEnds:
    """The ends of one log, and the bytes below them. Each event returns the ends that it moved."""

    def __init__(
        self,
        log_start_offset: int,
        log_end_offset: int,
        high_watermark: int,
        open_transactions: Mapping[int, int],
        *,
        announced_stable_offset: int = 0,
    ) -> None:
        """`open_transactions`: producer id -> first offset, ascending, of transactions without a marker; a live view."""
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.durable_end = log_end_offset
        self.log_end_offset = log_end_offset
        self.appended_bytes = 0  # since the start
        self.readable_bytes = 0  # the part below the high watermark; a fetch with min_bytes compares two readings
        # The bytes below an offset are known from here on: batches below precede the start, or were too many to count.
        self.counted_from = log_end_offset
        self._unreadable: deque[tuple[int, int]] = deque()  # (next offset of a batch, appended_bytes with it)
        self.held_back: dict[str, int] = {}  # commit -> first offset
        self._open = open_transactions
        self._ended: list[_Ended] = []
        # (stable, until): the last stable offset may not exceed `stable` until the high watermark reaches `until`; see the module.
        stable = min(high_watermark, announced_stable_offset)
        self._unknown = (stable, log_end_offset) if high_watermark < log_end_offset else None
        self._replicas: dict[int, int] | None = None  # durable ends of the other in-sync replicas; None unless leader
        self._is_enough = True  # leader only: enough replicas are in sync for the high watermark to advance
        self._leader_high_watermark = _NOWHERE  # follower only: as last reported by the leader
        self._leader_stable_offset = _NOWHERE  # follower only: as last reported by the leader
        self._leader_log_start = _NOWHERE  # follower only: as last reported by the leader
        self._announced_stable_offset = announced_stable_offset
        self.last_stable_offset = self._stable_end()

    @property
    def announced_stable_offset(self) -> int:
        """The highest last stable offset announced by a leader (this node or another) that this replica's own log confirms."""
        return max(self._announced_stable_offset, min(self.last_stable_offset, self._leader_stable_offset))

    def of(self, end: LogEnd) -> int:
        """The last stable offset, high watermark or log end offset; LOG_START also gives the log end offset."""
        if end is LogEnd.LAST_STABLE_OFFSET:
            return self.last_stable_offset
        return self.high_watermark if end is LogEnd.HIGH_WATERMARK else self.log_end_offset

    def bytes_below_end(self, end: LogEnd) -> int:
        """The bytes of all batches below the log end or, for the other ends, below the high watermark."""
        return self.appended_bytes if end is LogEnd.LOG_END else self.readable_bytes

    # Appends, flushes, cuts

    def written(self, next_offset: int, size_bytes: int) -> Moved:
        """A batch was written at the log end."""
        self.log_end_offset = next_offset
        self.appended_bytes += size_bytes
        unreadable = self._unreadable
        if len(unreadable) >= _COUNTED_MAX:  # with too few replicas in sync, acks=1 appends go on, and the high watermark stays
            first, newest = unreadable[0], unreadable[-1]
            unreadable.clear()
            unreadable.append((first[0], newest[1]))  # at once, so that a fetch that waits already is not answered late
            self.counted_from = newest[0]
        unreadable.append((next_offset, self.appended_bytes))
        return LOG_END_MOVED

    def truncated(self, log_end_offset: int, open_transactions: Mapping[int, int]) -> Moved:
        """The log, fully durable before, was cut at `log_end_offset`. `open_transactions`: as in `__init__`, after the cut."""
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
        """Everything below `offset` is durable on this replica."""
        self.durable_end = offset
        return self._advance()

    def bytes_below(self, offset: int) -> int:
        """The value of `readable_bytes` once the high watermark reaches `offset`, which must not lie below the high watermark."""
        below = self.readable_bytes
        for next_offset, appended_bytes in self._unreadable:
            if next_offset > offset:
                break
            below = appended_bytes
        return below

    # Replicas

    def lead(self) -> None:
        """Makes this node the leader. `in_sync` sets the followers."""
        self._replicas = {}
        self._leader_stable_offset, self._leader_log_start = _NO_LIMIT, _NOWHERE

    def follow(self) -> None:
        """Makes this node a non-leader. The high watermark follows the leader's. Holds are dropped, since the leader keeps them."""
        self._announced_stable_offset = self.announced_stable_offset
        self.held_back.clear()
        self.last_stable_offset = self._stable_end()
        self._replicas, self._is_enough = None, True
        self._leader_high_watermark = self._leader_stable_offset = self._leader_log_start = _NOWHERE

    def in_sync(self, followers: Iterable[int], *, is_enough: bool = True) -> Moved:
        """Sets the other in-sync replicas. A new one counts as having nothing durable until `replica_at`. The high watermark
        advances only if `is_enough`.
        """
        known, self._is_enough = self._replicas or {}, is_enough
        self._replicas = {node: known.get(node, _NOWHERE) for node in followers}
        return self._advance()

    def replica_at(self, node: int, durable_end: int) -> Moved:
        """Updates a follower's durable end; ignored unless it is in sync."""
        if self._replicas is None or node not in self._replicas:
            return NOTHING_MOVED
        self._replicas[node] = durable_end
        return self._advance()

    def leader_at(self, high_watermark: int, last_stable_offset: int, log_start_offset: int = _NOWHERE) -> Moved:
        """Updates the leader's high watermark, last stable offset and log start, on a follower."""
        self._leader_high_watermark = high_watermark
        self._leader_stable_offset = last_stable_offset
        self._leader_log_start = log_start_offset
        return self._advance()

    def _advance(self) -> Moved:
        """Advances the high watermark. On a follower, also advances the log start to the leader's, up to the high watermark."""
        moved = self._advance_high_watermark()
        start = min(self._leader_log_start, self.high_watermark)
        return (*moved, *self.set_log_start(start)) if start > self.log_start_offset else moved

    def _advance_high_watermark(self) -> Moved:
        """Advances the high watermark to the lowest durable end of the in-sync replicas. It never goes back."""
        known = (self._leader_high_watermark,) if self._replicas is None else self._replicas.values()
        end = min([self.durable_end, *known])
        if end <= self.high_watermark or not self._is_enough:
            return NOTHING_MOVED
        self.high_watermark = end
        unreadable = self._unreadable
        while unreadable and unreadable[0][0] <= end:
            self.readable_bytes = unreadable.popleft()[1]
        self._count_markers()
        return (LogEnd.HIGH_WATERMARK, *self._move_stable())

    def _count_markers(self) -> None:
        """Applies the markers below the high watermark."""
        if self._ended:
            self._ended = [ended for ended in self._ended if ended.marker_offset >= self.high_watermark]
        if self._unknown is not None and self.high_watermark >= self._unknown[1]:
            self._unknown = None

    # Transactions, and the log start

    def ended(self, first_offset: int, marker_offset: int) -> None:
        """A marker ended transactions. The earliest began at `first_offset`."""
        self._ended.append(_Ended(marker_offset, first_offset))

    def hold_back(self, commit: str, first_offset: int) -> Moved:
        """Keeps the last stable offset at or below `first_offset`, where the commit's data begins, until `release`. Moves nothing
        before the commit's first marker. After a restart it may lower the last stable offset: call it before the first read.
        """
        self.held_back[commit] = first_offset
        return self._move_stable()

    def release(self, commit: str) -> Moved:
        """Lets a commit's markers take effect. Call it once they are durable in all its partitions."""
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
        """The last stable offset: the high watermark, or the lowest first offset of an undecided transaction below it.

        It does not stop at damage: a streaming reader would wait there forever, and a batch read would take the damage for the end
        of the log. Instead, readers reach the damaged range and get LOG_DAMAGED.
        """
        end = next(iter(self._open.values()), self.high_watermark)
        if self._ended:
            end = min(end, *[ended.first_offset for ended in self._ended])
        if self.held_back:
            end = min(end, *self.held_back.values())
        if self._unknown is not None:
            end = min(end, self._unknown[0])
        return max(min(end, self.high_watermark), self.log_start_offset)
