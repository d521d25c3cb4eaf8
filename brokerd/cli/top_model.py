"""The model of `brokerd top`: computes rates and sorted rows from two samples of a broker. Pure: no I/O, no clock, no drawing.

A row is a dict with the names that --json prints. A value is None if the broker does not know it, or if a rate has no earlier
sample.

    topics        topic, partitions, offsets (from start to end; markers of transactions take some), offsets_per_s and bytes_per_s
                  (written), size_bytes, held_back (offsets that readers of committed records do not see), unhealthy (partitions)
    groups        group_id, partitions, lag, lag_bytes, lag_ms (the longest), offsets_per_s
    transactions  transactional_id, state, open_members, age_ms (of the oldest open member), owner
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brokerd.cli.output import known
from brokerd.client.groups import lag_of, partition_of
from brokerd.client.topics import offset_count
from brokerd.client.transactions import state_name
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.offsets_pb2 import DescribeGroupResponse
from brokerd.wire.v1.topics_pb2 import PartitionDescription, TopicDescription
from brokerd.wire.v1.transaction_pb2 import TransactionListing

_MS_PER_S = 1_000
Offsets = Mapping[TopicIdPartition, int]
Partitions = Mapping[TopicIdPartition, PartitionDescription]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """A sample of the broker. `groups` are those that committed last, out of `group_count`."""

    monotonic_ms: int
    wall_ms: int
    version: str
    cluster_id: str
    topics: tuple[TopicDescription, ...] = ()
    groups: tuple[DescribeGroupResponse, ...] = ()
    group_count: int = 0
    transactions: tuple[TransactionListing, ...] = ()


@dataclass(frozen=True, slots=True)
class Screen:
    """One screen. `tables` has version, cluster_id, topics, groups, group_count and transactions, and is empty before the first
    answer. While the broker is unreachable, it has the last answer; `unreachable_since_ms` and `problem` are set then."""

    tables: Mapping[str, Any]
    now_wall_ms: int
    unreachable_since_ms: int | None = None
    problem: str = ""


def tables_of(before: Look | None, now: Look) -> dict[str, Any]:
    """The rows of `now`, with rates since `before`; topics are sorted by rate, groups by lag, transactions by age."""
    elapsed_ms = 0 if before is None else now.monotonic_ms - before.monotonic_ms
    partitions = {tp: one for topic in (before.topics if before else ()) for tp, one in _partitions_of(topic).items()}
    committed = {group.group.group_id: _committed_of(group) for group in (before.groups if before else ())}
    topics = [_topic(topic, partitions, elapsed_ms) for topic in now.topics]
    groups = [_group(group, committed.get(group.group.group_id, {}), elapsed_ms) for group in now.groups]
    transactions = [_transaction(one) for one in now.transactions]
    return {
        "version": now.version,
        "cluster_id": now.cluster_id,
        "topics": sorted(topics, key=lambda one: (-(one["offsets_per_s"] or 0), -one["size_bytes"], one["topic"])),
        "group_count": now.group_count,
        "groups": sorted(groups, key=lambda one: (-(one["lag"] or 0), one["group_id"])),
        "transactions": sorted(transactions, key=lambda one: (-(one["age_ms"] or 0), one["transactional_id"])),
    }


def rate(before: Offsets, now: Offsets, elapsed_ms: int) -> float | None:
    """Offsets or bytes per second over the partitions in both samples; None if there are none, no time has passed, or a value
    decreased."""
    steps = [now[one] - before[one] for one in now if one in before]
    if elapsed_ms <= 0 or not steps or min(steps) < 0:
        return None
    return sum(steps) * _MS_PER_S / elapsed_ms


def document(screen: Screen) -> dict[str, Any]:
    """A screen as a JSON document."""
    nothing: Row = {"version": None, "cluster_id": None, "topics": [], "group_count": 0, "groups": [], "transactions": []}
    return {
        "time_ms": screen.now_wall_ms,
        "unreachable_since_ms": screen.unreachable_since_ms,
        "problem": screen.problem or None,
        **nothing,
        **screen.tables,
    }


def _partitions_of(topic: TopicDescription) -> Partitions:
    return {TopicIdPartition(topic.topic_id, one.partition): one for one in topic.partitions}


def _ends_of(partitions: Partitions) -> Offsets:
    return {tp: one.high_watermark for tp, one in partitions.items()}


def _written_per_s(before: Partitions, now: Partitions, elapsed_ms: int) -> float | None:
    """The growth of logs in bytes per second; None if records may have been deleted meanwhile, which hides growth."""
    if any(_has_lost(one, now[tp]) for tp, one in before.items()):
        return None
    return rate({tp: one.size_bytes for tp, one in before.items()}, {tp: one.size_bytes for tp, one in now.items()}, elapsed_ms)


def _has_lost(before: PartitionDescription, now: PartitionDescription) -> bool:
    """True if records or segments were deleted; a segment's file may go later than its records."""
    return now.log_start_offset != before.log_start_offset or now.segment_count < before.segment_count


def _committed_of(group: DescribeGroupResponse) -> dict[TopicIdPartition, int]:
    return {partition_of(one.committed): one.committed.offset for one in group.partitions if one.committed.offset >= 0}


def _topic(topic: TopicDescription, partitions_before: Partitions, elapsed_ms: int) -> Row:
    now = _partitions_of(topic)
    before = {tp: partitions_before[tp] for tp in now if tp in partitions_before}
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "offsets": sum(map(offset_count, topic.partitions)),
        "offsets_per_s": rate(_ends_of(before), _ends_of(now), elapsed_ms),
        "bytes_per_s": _written_per_s(before, now, elapsed_ms),
        "size_bytes": sum(one.size_bytes for one in topic.partitions),
        "held_back": sum(one.high_watermark - one.last_stable_offset for one in topic.partitions),
        "unhealthy": sum(one.HasField("error") for one in topic.partitions),
    }


def _group(group: DescribeGroupResponse, before: Offsets, elapsed_ms: int) -> Row:
    return {
        "group_id": group.group.group_id,
        "partitions": len(group.partitions),
        "lag": _sum(map(lag_of, group.partitions)),
        "lag_bytes": _sum(one.lag_bytes for one in group.partitions),
        "lag_ms": max((one.lag_ms for one in group.partitions if one.lag_ms >= 0), default=None),
        "offsets_per_s": rate(before, _committed_of(group), elapsed_ms),
    }


def _transaction(one: TransactionListing) -> Row:
    return {
        "transactional_id": one.transactional_id,
        "state": state_name(one.state),
        "open_members": one.open_members,
        "age_ms": known(one.age_ms),
        "owner": one.owner,
    }


def _sum(values: Any) -> int | None:
    """The sum of the known values (-1 is the wire's value for unknown); None if there are none."""
    known = [value for value in values if value >= 0]
    return sum(known) if known else None
