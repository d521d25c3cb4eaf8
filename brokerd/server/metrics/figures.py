"""Figures of topics, partitions, transactions and the disk for /metrics. Pure, but for pauses and querying the file system."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_store import TopicStore
from brokerd.groups.group_table import GroupTable
from brokerd.partition.partition import Partition
from brokerd.server.metrics.counters import Traffic
from brokerd.server.waiting.pauses import Pauses
from brokerd.transaction.coordinator import Coordinator, ExecutionKey

_NO_TRAFFIC = Traffic()
_MEMBERS_AT_ONCE = 1_000
_NO_OFFSET = -1


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
    id_count: int  # transactional ids remembered


class GroupFigures(NamedTuple):
    """One partition of a group. `lag`: offsets up to where readers of committed records see it end; all of them if it has none
    (`offset` -1)."""

    group: str
    topic: str
    partition: int
    offset: int
    lag: int


class DiskFigures(NamedTuple):
    """The file system that holds the data directory."""

    free_bytes: int  # for a process without privileges
    used_bytes: int


class LogFigures:
    """The figures of all logs, one after the other; those of partitions for the first `limit`."""

    def __init__(self, traffic: Mapping[bytes, Traffic], limit: int) -> None:
        self.count = 0
        self.producer_ids = 0
        self.offline = 0  # logs that take no appends
        self.partitions: list[PartitionFigures] = []
        self._limit = limit
        self._traffic = traffic
        self._topics: dict[bytes, list[Partition]] = {}
        self._sizes: Counter[bytes] = Counter()

    def add(self, log: Partition) -> None:
        """Reads one log."""
        size_bytes = log.size_bytes
        self.count += 1
        self.producer_ids += len(log.producers)
        self.offline += log.damage is not None or log.health.failure is not None
        self._topics.setdefault(log.tp.topic_id, []).append(log)
        self._sizes[log.tp.topic_id] += size_bytes
        if len(self.partitions) < self._limit:
            ends = log.ends
            self.partitions.append(
                PartitionFigures(
                    log.topic, log.tp.partition, ends.log_start_offset, ends.high_watermark, ends.log_end_offset, size_bytes
                )
            )

    def topics(self) -> tuple[TopicFigures, ...]:
        """One entry per topic that has logs."""
        found = []
        for topic_id, logs in self._topics.items():
            counted = self._traffic.get(topic_id, _NO_TRAFFIC)
            traffic = (counted.messages_in, counted.bytes_in, counted.bytes_out)
            found.append(TopicFigures(logs[0].topic, len(logs), self._sizes[topic_id], *traffic))
        return tuple(found)


def group_figures(table: GroupTable, topics: TopicStore, known: PartitionTable, limit: int) -> tuple[GroupFigures, ...]:
    """One entry per partition of a group, also for those of its topics that it has not read, `limit` at most: each principal has
    its share, its oldest groups first. Some microseconds each.
    """
    found: list[GroupFigures] = []
    groups = table.groups.values()
    counts = Counter[str]()
    for group in groups:
        partitions = group.partitions(count_of=topics.count_of)
        counts[group.principal] += sum(1 for _ in itertools.islice(partitions, limit - counts[group.principal]))
    left = equal_shares(counts, limit)
    for group in groups:
        for tp in itertools.islice(group.partitions(count_of=topics.count_of), left[group.principal]):
            left[group.principal] -= 1
            committed, log = group.offset(tp), known.get(tp)
            offset = committed.offset if committed is not None else _NO_OFFSET
            if log is not None:
                lag = max(0, log.ends.last_stable_offset - max(offset, log.ends.log_start_offset))
                found.append(GroupFigures(group.group_id, log.topic, tp.partition, offset, lag))
    return tuple(found)


def equal_shares(wanted: Mapping[str, int], limit: int) -> dict[str, int]:
    """Shares of `limit`: each gets what it wants, or as much as any other that wants more than it gets."""
    shares: dict[str, int] = {}
    for number, (name, count) in enumerate(sorted(wanted.items(), key=lambda one: one[1])):
        shares[name] = min(count, limit // (len(wanted) - number))
        limit -= shares[name]
    return shares


async def transaction_figures(coordinator: Coordinator, pauses: Pauses, *, now_ms: int) -> TransactionFigures:
    """About a microsecond for each open member."""
    known = list(coordinator.open_members.values())
    executions: set[ExecutionKey] = set()
    oldest_age_ms = 0
    for begin in range(0, len(known), _MEMBERS_AT_ONCE):
        piece = known[begin : begin + _MEMBERS_AT_ONCE]
        executions.update(member.execution for member in piece)
        oldest_age_ms = max(oldest_age_ms, *(now_ms - member.opened_ms for member in piece))
        await pauses.after(_MEMBERS_AT_ONCE // 10)
    return TransactionFigures(len(executions), len(known), len(coordinator.prepared()), oldest_age_ms, len(coordinator.states))


def disk_figures(directory: str) -> DiskFigures | None:
    """None if the file system does not report them. May block on the disk: do not call it in the event loop."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return DiskFigures(found.f_bavail * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize)
