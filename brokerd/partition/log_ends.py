"""How far one partition may be read, and which end an event has moved. Pure.

log_start_offset <= last_stable_offset <= high_watermark <= durable_end
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from brokerd.partition.open_transactions import OpenTransactions

_NOWHERE = -1


class LogEnd(enum.Enum):
    """Consumers wait for the high watermark or the last stable offset, followers for the log end; a log start that moves is for
    whoever waits below it.
    """

    LOG_START = "log start"
    LAST_STABLE_OFFSET = "last stable offset"
    HIGH_WATERMARK = "high watermark"
    LOG_END = "log end"


Moved = tuple[LogEnd, ...]  # by one event; whoever waits for one of them is to be woken

NOTHING_MOVED: Moved = ()
LOG_END_MOVED: Moved = (LogEnd.LOG_END,)


class LogEnds:
    """See the module. Each event says what it has moved."""

    def __init__(self, log_start_offset: int, durable_end: int, high_watermark: int, transactions: OpenTransactions) -> None:
        self.log_start_offset = log_start_offset
        self.durable_end = durable_end
        self.high_watermark = high_watermark
        self.transactions = transactions
        if high_watermark < durable_end:
            # Which transactions ended in between is not known: nothing of it is stable before all of it is.
            transactions.hold(high_watermark, until_offset=durable_end)
        self._replicas: dict[int, int] | None = {}  # durable ends of the other in-sync replicas; None = another node leads
        self._leader_high_watermark = _NOWHERE  # what a follower was told last
        self.last_stable_offset = self._stable_end()

    # How far it is durable

    def durable_to(self, offset: int) -> Moved:
        """This replica is durable up to there."""
        self.durable_end = offset
        return self._advance()

    def lead(self) -> None:
        """This node leads, alone until `in_sync` says otherwise."""
        self._replicas = {}

    def follow(self) -> None:
        """Another node leads."""
        self._replicas = None
        self._leader_high_watermark = _NOWHERE

    def in_sync(self, followers: Iterable[int]) -> Moved:
        """These other replicas count, those that are new with nothing durable until they say so."""
        known = self._replicas or {}
        self._replicas = {node: known.get(node, _NOWHERE) for node in followers}
        return self._advance()

    def replica_at(self, node: int, durable_end: int) -> Moved:
        """A follower says how far it is durable. One that does not count is ignored."""
        if self._replicas is None or node not in self._replicas:
            return NOTHING_MOVED
        self._replicas[node] = durable_end
        return self._advance()

    def leader_at(self, high_watermark: int) -> Moved:
        """The leader says how far all in-sync replicas are durable."""
        self._leader_high_watermark = high_watermark
        return self._advance()

    def _advance(self) -> Moved:
        """High watermark = what all in-sync replicas have durably. It never goes back."""
        known = (self._leader_high_watermark,) if self._replicas is None else self._replicas.values()
        end = min([self.durable_end, *known])
        if end <= self.high_watermark:
            return NOTHING_MOVED
        self.high_watermark = end
        self.transactions.settle(end)
        return (LogEnd.HIGH_WATERMARK, *self._move_stable())

    # What is decided, and where it begins

    def release_marker(self, offset: int) -> Moved:
        """All partitions of that transaction have their markers durably: the one here is held no longer."""
        self.transactions.release(offset)
        self.transactions.settle(self.high_watermark)
        return self._move_stable()

    def set_log_start(self, offset: int) -> Moved:
        """The log begins there."""
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
        """End of what is decided: below it no open transaction.

        It does not stop at damage. There it would tell a reader "nothing yet", for ever and in silence, and a batch read that
        the log ends there; so readers go on to the damaged range and are refused it.
        """
        first = self.transactions.first_undecided
        end = self.high_watermark if first is None else min(self.high_watermark, first)
        return max(end, self.log_start_offset)
