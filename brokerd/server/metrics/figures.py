"""Figures of topics, partitions, transactions and the disk for /metrics. Pure, except for querying the file system."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from brokerd.datadir.log_manager import LogManager
from brokerd.groups.group_table import GroupTable
from brokerd.partition.partition_log import PartitionLog
from brokerd.server.metrics.counters import Traffic
from brokerd.transaction.coordinator import Coordinator

_NO_TRAFFIC = Traffic()


class TopicFigures(NamedTuple):
    """One topic; traffic is counted from the broker's start."""

    topic: str
    partition_count: int
    size_bytes: int
    messages_in: int
    bytes_in: int
    bytes_out: int


class PartitionFigures(NamedTuple):
    """One partition."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    size_bytes: int


class TransactionFigures(NamedTuple):
    """Transactions at one moment."""

    open_count: int  # executions with open members
    open_members: int
    prepared_count: int
    oldest_age_ms: int  # of the open members; 0 = none is open


class GroupFigures(NamedTuple):
    """One partition of a group. `lag`: offsets up to where readers of committed records see it end."""

    group: str
    topic: str
    partition: int
    offset: int
    lag: int


class DiskFigures(NamedTuple):
    """The file system that holds the data directory."""

    free_bytes: int  # for a process without privileges
    used_bytes: int


def topic_figures(logs: Iterable[PartitionLog], traffic: Mapping[bytes, Traffic]) -> tuple[TopicFigures, ...]:
    """One entry per topic that has logs."""
    found: dict[bytes, TopicFigures] = {}
    for log in logs:
        topic_id = log.tp.topic_id
        one = found.get(topic_id)
        if one is None:
            counted = traffic.get(topic_id, _NO_TRAFFIC)
            one = TopicFigures(log.topic, 0, 0, counted.messages_in, counted.bytes_in, counted.bytes_out)
        found[topic_id] = one._replace(partition_count=one.partition_count + 1, size_bytes=one.size_bytes + log.core.size_bytes)
    return tuple(found.values())


def partition_figures(logs: Iterable[PartitionLog]) -> tuple[PartitionFigures, ...]:
    """One entry per log."""
    return tuple(
        PartitionFigures(
            log.topic, log.tp.partition, log.log_start_offset, log.high_watermark, log.log_end_offset, log.core.size_bytes
        )
        for log in logs
    )


def group_figures(table: GroupTable, logs: LogManager, limit: int) -> tuple[GroupFigures, ...]:
    """One entry per partition of a group, `limit` at most: the oldest groups first. Some microseconds each."""
    found: list[GroupFigures] = []
    for group in table.groups.values():
        for tp in itertools.islice(group.partitions(), limit - len(found)):
            committed, log = group.offset(tp), logs.get(tp)
            if committed is not None and log is not None:
                lag = max(0, log.last_stable_offset - max(committed.offset, log.log_start_offset))
                found.append(GroupFigures(group.group_id, log.topic, tp.partition, committed.offset, lag))
        if len(found) >= limit:
            break
    return tuple(found)


def transaction_figures(coordinator: Coordinator, *, now_ms: int) -> TransactionFigures:
    """Some microseconds for each open member."""
    known = coordinator.open_members.values()
    return TransactionFigures(
        open_count=len({member.execution for member in known}),
        open_members=len(known),
        prepared_count=len(coordinator.prepared()),
        oldest_age_ms=max([now_ms - member.opened_ms for member in known], default=0),
    )


def disk_figures(directory: str) -> DiskFigures | None:
    """None if the file system does not report them. May block on the disk: do not call it in the event loop."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return DiskFigures(found.f_bavail * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize)
