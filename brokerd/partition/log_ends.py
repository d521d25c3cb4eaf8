"""The ends of one partition's log: how far it may be read, and which of them an event has moved. Pure.

log_start_offset <= last_stable_offset <= high_watermark <= durable_end
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from brokerd.partition.open_transactions import OpenTransactions

_NOWHERE = -1


class LogEnd(enum.Enum):
    """The ends that requests wait for: consumers for the high watermark or the last stable offset, followers for the log end. A log
    start that moves ends the waits below it.
    """

    LOG_START = "log start"
    LAST_STABLE_OFFSET = "last stable offset"
    HIGH_WATERMARK = "high watermark"
    LOG_END = "log end"


Moved = tuple[LogEnd, ...]  # by one event; requests that wait for one of them are to be woken

NOTHING_MOVED: Moved = ()
LOG_END_MOVED: Moved = (LogEnd.LOG_END,)


class LogEnds:
    """The ends of one log. Each event returns what it has moved."""

    def __init__(self, log_start_offset: int, durable_end: int, high_watermark: int, transactions: OpenTransactions) -> None:
        self.log_start_offset = log_start_offset
        self.durable_end = durable_end
        self.high_watermark = high_watermark
        self.transactions = transactions
        if high_watermark < durable_end:
            # It is not known which transactions ended in between: none of it is stable before all of it is.
            transactions.doubt(high_watermark, until_offset=durable_end)
        self._replicas: dict[int, int] | None = {}  # durable ends of the other in-sync replicas; None = another node leads
        self._leader_high_watermark = _NOWHERE  # on a follower: as the leader said last
        self.last_stable_offset = self._stable_end()

    # Durability

    def durable_to(self, offset: int) -> Moved:
        """All below `offset` is durable on this replica."""
        self.durable_end = offset
        return self._advance()

    def lead(self) -> None:
        """Makes this node the leader, without followers until `in_sync`."""
        self._replicas = {}

    def follow(self) -> None:
        """Makes another node the leader."""
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
        self.transactions.settle(end)
        return (LogEnd.HIGH_WATERMARK, *self._move_stable())

    # Transactions, and the log start

    def hold_back(self, commit: str, first_offset: int) -> Moved:
        """Keeps the last stable offset from passing `first_offset` until `release`: the commit's data begins there. Before its
        first marker this moves nothing; after a start it may go back, so nothing may have been read yet.
        """
        self.transactions.hold_back(commit, first_offset)
        return self._move_stable()

    def release(self, commit: str) -> Moved:
        """Lets the markers of a commit count: by now all its partitions have theirs durably."""
        self.transactions.release(commit)
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
        first = self.transactions.first_undecided
        end = self.high_watermark if first is None else min(self.high_watermark, first)
        return max(end, self.log_start_offset)
