"""Figures of topics, partitions, transactions and the disk for /metrics. Pure, except for querying the file system."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
