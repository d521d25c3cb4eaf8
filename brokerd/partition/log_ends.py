"""The ends of one partition's log: how far it is written, durable and readable. Each event returns the ends that it moved. No I/O.

    log_start_offset <= last_stable_offset <= high_watermark <= durable_end <= log_end_offset

A transaction is open from a member's first batch until its marker, which takes effect once it lies below the high watermark. A
commit also holds back the last stable offset of each of its partitions, from the decision until all of them have durable markers. A
replica that starts with its high watermark below its log end cannot tell which transactions ended in between. So its last stable
offset stays at the one that a leader announced until the high watermark has passed all of that range.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# In `held_back`, in place of a commit: it is not known yet which commits hold back what. No transactional id is empty.
UNSETTLED = ""
_NOWHERE = -1
_NO_LIMIT = 2**63 - 1


class LogEnd(enum.Enum):
    """The ends that requests wait for: consumers for the high watermark or the last stable offset, followers for the log end. When
    the log start moves, every waiting request is checked again.
    """

    LOG_START = "log start"
    LAST_STABLE_OFFSET = "last stable offset"
    HIGH_WATERMARK = "high watermark"
    LOG_END = "log end"

    __hash__ = object.__hash__  # hashed on every append: Enum.__hash__ is a Python function


Moved = tuple[LogEnd, ...]  # the ends that one event moved: wake the requests that wait for them

NOTHING_MOVED: Moved = ()
LOG_END_MOVED: Moved = (LogEnd.LOG_END,)


class _Ended(NamedTuple):
    """Transactions ended by one marker that is not yet below the high watermark; `first_offset` is their lowest."""

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
        """`open_transactions`: first offsets of transactions without a marker, ascending; a live view, read on every event."""
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.durable_end = log_end_offset
        self.log_end_offset = log_end_offset
        self.appended_bytes = 0  # since the start
        self.readable_bytes = 0  # the part below the high watermark; a fetch with min_bytes compares two readings
        self.counted_from = log_end_offset  # batches below are not in these numbers: they were there before the start
        self._unreadable: deque[tuple[int, int]] = deque()  # (next offset of a batch, appended_bytes with it)
        self.held_back: dict[str, int] = {}  # commit -> first offset
        self._open = open_transactions
        self._ended: list[_Ended] = []
        # (stable, until): what limits the last stable offset until the high watermark has reached `until`; see the module.
        stable = min(high_watermark, announced_stable_offset)
        self._unknown = (stable, log_end_offset) if high_watermark < log_end_offset else None
        self._replicas: dict[int, int] | None = None  # durable ends of the other in-sync replicas; None unless leader
        self._is_enough = True  # of a leader: so many are in sync that the high watermark may move
        self._leader_high_watermark = _NOWHERE  # on a follower: the leader's last reported one
        self._leader_stable_offset = _NOWHERE  # on a follower: the leader's last reported one
        self._leader_log_start = _NOWHERE  # on a follower: the leader's last reported one
        self._announced_stable_offset = announced_stable_offset
        self.last_stable_offset = self._stable_end()

    @property
    def announced_stable_offset(self) -> int:
        """The highest last stable offset that a leader has announced, this node or another, and that this replica confirms."""
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
        self._unreadable.append((next_offset, self.appended_bytes))
        return LOG_END_MOVED

    def truncated(self, log_end_offset: int, open_transactions: Mapping[int, int]) -> Moved:
        """The log, fully durable before, was cut at `log_end_offset`. `open_transactions`: as in `__init__`, for what is left."""
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
        """The value `readable_bytes` will have when the high watermark reaches `offset`, which must not lie below it."""
        below = self.readable_bytes
        for next_offset, appended_bytes in self._unreadable:
            if next_offset > offset:
                break
            below = appended_bytes
        return below

    # Replicas

    def lead(self) -> None:
        """Makes this node the leader; followers are set by `in_sync`."""
        self._replicas = {}
        self._leader_stable_offset, self._leader_log_start = _NO_LIMIT, _NOWHERE

    def follow(self) -> None:
        """Makes this node a non-leader: the high watermark follows the leader's, and the leader knows what commits hold back."""
        self._announced_stable_offset = self.announced_stable_offset
        self.held_back.clear()
        self.last_stable_offset = self._stable_end()
        self._replicas, self._is_enough = None, True
        self._leader_high_watermark = self._leader_stable_offset = self._leader_log_start = _NOWHERE

    def in_sync(self, followers: Iterable[int], *, is_enough: bool = True) -> Moved:
        """Sets the other in-sync replicas. A new one counts as having nothing durable until `replica_at`. The high watermark stays
        where it is while they are not enough.
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
        """Advances the high watermark, and on a follower the log start to the leader's, as far as the high watermark lets it."""
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
        """A marker ended transactions, the earliest of which began at `first_offset`."""
        self._ended.append(_Ended(marker_offset, first_offset))

    def hold_back(self, commit: str, first_offset: int) -> Moved:
        """Keeps the last stable offset at or below `first_offset`, where the commit's data begins, until `release`. Before the
        commit's first marker this moves nothing; after a restart it may move back, so call it before the first read.
        """
        self.held_back[commit] = first_offset
        return self._move_stable()

    def release(self, commit: str) -> Moved:
        """Lets a commit's markers take effect, once all its partitions have theirs durably."""
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

        It does not stop at damage: a streaming reader would wait there forever, and a batch read would take it for the end of the
        log. Instead, readers reach the damaged range and get LOG_DAMAGED.
        """
        end = next(iter(self._open.values()), self.high_watermark)
        if self._ended:
            end = min(end, *[ended.first_offset for ended in self._ended])
        if self.held_back:
            end = min(end, *self.held_back.values())
        if self._unknown is not None:
            end = min(end, self._unknown[0])
        return max(min(end, self.high_watermark), self.log_start_offset)
