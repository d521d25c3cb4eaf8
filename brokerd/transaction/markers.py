"""Which partitions get which control record. One record for each partition that has open data, with winners and losers in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from brokerd.ids import TopicIdPartition
from brokerd.transaction.model import PreparedCommit
from brokerd.wire.v1 import control_pb2

CONTROL_VERSION = 1

OpenDataByPartition = Mapping[TopicIdPartition, Collection[int]]  # producer ids of the members that hold any


def commit_markers(
    transactional_id: str, prepared: PreparedCommit, data: OpenDataByPartition
) -> dict[TopicIdPartition, control_pb2.ControlRecord]:
    """The control records of a commit. A partition whose marker is written has no open data left, so none is written twice."""
    committed, aborted = frozenset(prepared.committed_ids), frozenset(prepared.aborted_ids)
    records = {}
    for partition, open_data in data.items():
        winners, losers = sorted(committed.intersection(open_data)), sorted(aborted.intersection(open_data))
        if winners or losers:
            records[partition] = control_pb2.ControlRecord(
                version=CONTROL_VERSION,
                transactional_id=transactional_id,
                txn_version=prepared.execution.version,
                committed_producer_ids=winners,
                aborted_producer_ids=losers,
            )
    return records


def abort_markers(
    transactional_id: str, producer_ids: Collection[int], data: OpenDataByPartition
) -> dict[TopicIdPartition, control_pb2.ControlRecord]:
    """The control records that void these members' data. The id is empty if nobody knows it any more."""
    aborted = frozenset(producer_ids)
    records = {}
    for partition, open_data in data.items():
        losers = sorted(aborted.intersection(open_data))
        if losers:
            records[partition] = control_pb2.ControlRecord(
                version=CONTROL_VERSION, transactional_id=transactional_id, txn_version=-1, aborted_producer_ids=losers
            )
    return records
