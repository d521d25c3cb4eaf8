"""The control records (markers) that end members, one per partition with their data, and the outcome of members whose marker is
lost.

In an undamaged partition no marker is lost: open data of a member that is neither open nor in a prepared commit is void. In a
damaged partition a missing marker proves nothing. The outcome then comes from the coordinator's log while it is recorded there
(always for the last commit of an id), or from an operator's decision; otherwise it is unknown and the data stays open.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from brokerd.coordinator.transactional_id import NO_VERSION
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.control_pb2 import ControlRecord
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord

# Maps the producer ids with open data in a partition to the partition's control record; None if the decision concerns none of them.
# A partition whose marker is written has no such data left, so no marker is written twice.
RecordFor = Callable[[Collection[int]], ControlRecord | None]


def control_records(
    transactional_id: str, version: int, *, committed: Collection[int] = (), aborted: Collection[int] = ()
) -> RecordFor:
    """The control records of a decision on these members. The id is empty if it is no longer known; an abort has version -1."""
    all_committed, all_aborted = frozenset(committed), frozenset(aborted)

    def record_for(open_ids: Collection[int]) -> ControlRecord | None:
        winners, losers = sorted(all_committed.intersection(open_ids)), sorted(all_aborted.intersection(open_ids))
        if not winners and not losers:
            return None
        return ControlRecord(
            transactional_id=transactional_id,
            txn_version=version,
            committed_producer_ids=winners,
            aborted_producer_ids=losers,
        )

    return record_for


class Outcome(enum.Enum):
    """The outcome of a member."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Ending(NamedTuple):
    """How a member ended, with the id and version of its commit where they are known. `partitions`: the partitions whose data the
    commit counted."""

    outcome: Outcome
    transactional_id: str = ""
    version: int = NO_VERSION
    partitions: frozenset[TopicIdPartition] = frozenset()


def endings(
    producer_ids: Collection[int],
    lost: Collection[int],
    records: Iterable[CoordinatorRecord | None],
    decided: Mapping[int, Outcome],
) -> dict[int, Ending]:
    """How these members ended. `lost`: members whose marker may be lost. `records`: the whole log. `decided`: an operator's
    decisions."""
    found = _recorded(frozenset(producer_ids), records)
    for producer_id in producer_ids:
        if producer_id not in found:
            presumed = Outcome.UNKNOWN if producer_id in lost else Outcome.ABORTED
            found[producer_id] = Ending(decided.get(producer_id, presumed))
    return found


def _recorded(producer_ids: Collection[int], records: Iterable[CoordinatorRecord | None]) -> dict[int, Ending]:
    found: dict[int, Ending] = {}
    for record in records if producer_ids else ():
        if record is None:
            continue
        commit, version = record.commit_prepared, record.commit_prepared.txn_version
        counted = frozenset(TopicIdPartition(one.topic_id, one.partition) for one in commit.held_back)
        ending = Ending(Outcome.COMMITTED, record.transactional_id, version, counted)
        aborted = (*commit.aborted_producer_ids, *record.members_aborted.producer_ids)
        found.update((producer_id, ending) for producer_id in commit.committed_producer_ids if producer_id in producer_ids)
        found.update((producer_id, Ending(Outcome.ABORTED)) for producer_id in aborted if producer_id in producer_ids)
    return found
