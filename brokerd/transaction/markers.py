"""The control records that end members: one for each partition that has their data, with winners and losers in it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from brokerd.transaction.model import PreparedCommit
from brokerd.wire.v1 import control_pb2

CONTROL_VERSION = 1

# The control record of a partition in which these members (producer ids) have open data; None if it concerns none of them. A
# partition whose marker is written has no open data left, so none is written twice.
RecordFor = Callable[[Collection[int]], control_pb2.ControlRecord | None]


def commit_records(transactional_id: str, prepared: PreparedCommit) -> RecordFor:
    """The control records of a commit."""
    return _records(transactional_id, prepared.execution.version, prepared.committed_ids, prepared.aborted_ids)


def again_records(transactional_id: str, version: int, producer_ids: Collection[int]) -> RecordFor:
    """The control records of a commit, for partitions that have lost theirs. The id is empty if nobody knows it any more."""
    return _records(transactional_id, version, producer_ids, ())


def abort_records(transactional_id: str, producer_ids: Collection[int]) -> RecordFor:
    """The control records that void these members' data. The id is empty if nobody knows it any more."""
    return _records(transactional_id, -1, (), producer_ids)


def _records(transactional_id: str, version: int, committed_ids: Collection[int], aborted_ids: Collection[int]) -> RecordFor:
    committed, aborted = frozenset(committed_ids), frozenset(aborted_ids)

    def record_for(open_ids: Collection[int]) -> control_pb2.ControlRecord | None:
        winners, losers = sorted(committed.intersection(open_ids)), sorted(aborted.intersection(open_ids))
        if not winners and not losers:
            return None
        return control_pb2.ControlRecord(
            version=CONTROL_VERSION,
            transactional_id=transactional_id,
            txn_version=version,
            committed_producer_ids=winners,
            aborted_producer_ids=losers,
        )

    return record_for
