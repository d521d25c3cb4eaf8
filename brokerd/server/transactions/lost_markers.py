"""Markers that partitions have lost to damage: which to write again, and which need an operator's decision.

The search runs once, at the start: the outcome of members that end later is known to the running broker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from brokerd.datadir.decided_members import DecidedMembers
from brokerd.partition.partition import Partition
from brokerd.partition.unmarked import UnmarkedData, undecided_text, unmarked_data, with_lost_markers
from brokerd.transaction.markers import Ending, Outcome, endings
from brokerd.wire.v1.transaction_log_pb2 import TransactionLogRecord

logger = logging.getLogger(__name__)

_LOGGED_MAX = 100


class LostMarkers:
    """The outcome of ended members whose marker is missing, by producer id. The data of any other ended member is void."""

    def __init__(self) -> None:
        self._endings: dict[int, Ending] = {}

    def find(
        self,
        ended_ids: Collection[int],
        logs: Iterable[Partition],
        records: Iterable[TransactionLogRecord | None],
        decided: DecidedMembers,
    ) -> None:
        """Determines the outcomes. `ended_ids`: members with open data that are neither open nor in a prepared commit. `records`:
        the whole transaction log, read only if there are such members.
        """
        if not ended_ids:
            return
        wanted = frozenset(ended_ids)
        found = [(log, one) for log in logs for one in _unmarked(log) if one.producer_id in wanted]
        self._endings = endings(wanted, with_lost_markers(one for _, one in found), records, _outcomes(decided))
        unknown = [(log, one) for log, one in found if self._endings[one.producer_id].outcome is Outcome.UNKNOWN]
        for log, one in unknown[:_LOGGED_MAX]:
            logger.error("%s", undecided_text(log.name, one))
        if len(unknown) > _LOGGED_MAX:
            logger.error("and %d more: `brokerd doctor` lists them all", len(unknown) - _LOGGED_MAX)

    def committed(self, ended_ids: Iterable[int]) -> dict[Ending, list[int]]:
        """The committed ones of these members, by commit."""
        commits: dict[Ending, list[int]] = {}
        for producer_id in ended_ids:
            ending = self._endings.get(producer_id)
            if ending is not None and ending.outcome is Outcome.COMMITTED:
                commits.setdefault(ending, []).append(producer_id)
        return commits

    def undecided(self, ended_ids: Iterable[int]) -> list[int]:
        """Those of these members whose outcome is unknown."""
        unknown = Ending(Outcome.UNKNOWN)
        return [producer_id for producer_id in ended_ids if self._endings.get(producer_id) == unknown]

    def void(self, ended_ids: Iterable[int]) -> list[int]:
        """Those of these members whose data is void."""
        aborted = Ending(Outcome.ABORTED)
        return [producer_id for producer_id in ended_ids if self._endings.get(producer_id, aborted) == aborted]


def _unmarked(log: Partition) -> list[UnmarkedData]:
    return unmarked_data(log.producers, log.health.damaged, log.ends.log_start_offset)


def _outcomes(decided: DecidedMembers) -> dict[int, Outcome]:
    return {
        **dict.fromkeys(decided.aborted, Outcome.ABORTED),
        **dict.fromkeys(decided.committed, Outcome.COMMITTED),
    }
