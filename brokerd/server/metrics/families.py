"""All metrics of /metrics. Their names start with brokerd_, followed by Kafka's name where Kafka has the metric
(docs/monitoring.md has the table).

There are two steps: `families` reads the broker in the event loop, a few partitions per turn; `render` makes the text in a thread.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

import brokerd
from brokerd.coordinator.group_table import GroupTable
from brokerd.coordinator.transaction_coordinator import ExecutionKey
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_store import COORDINATOR, TopicStore
from brokerd.partition.partition import Partition
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.node import ClusterFigures, ClusterNode
from brokerd.server.coordinator.transactions import Transactions
from brokerd.server.metrics.counters import Traffic
from brokerd.server.paging import Pauses
from brokerd.server.replication.leading import ReplicationFigures
from brokerd.sharing import equal_shares

_MEMBERS_AT_ONCE = 1_000


async def families(broker: BrokerParts, *, stream_count: int) -> list[Metric]:
    """Reads the broker, a few partitions (some microseconds each) per turn, so the values are of slightly different moments."""
    pauses = Pauses(broker.turns)
    info = {"version": brokerd.__version__, "cluster_id": broker.cluster_id, "node_id": str(broker.node_id)}
    found: list[Metric] = [InfoMetricFamily("brokerd", "The broker.", value=info), *_broker_families(broker, stream_count)]
    logs = LogFamilies(broker.counters.topics, broker.config.metrics_max_partitions)
    for log in list(broker.partitions):
        logs.add(log)
        await pauses.after()
    found += logs.families()
    if isinstance(broker.cluster, ClusterNode):
        found += cluster_families(broker.cluster.figures())
        found += replication_families(await broker.cluster.replication_figures(pauses))
    transactions = broker.coordinator.local
    if transactions is not None:  # else another node reports them
        found += await transaction_families(transactions, pauses, now_ms=broker.clock.monotonic_ms())
        limit, cluster = broker.config.metrics_max_group_partitions, broker.cluster

        def is_current(log: Partition) -> bool:
            return log.is_leader or (isinstance(cluster, ClusterNode) and cluster.has_in_sync(log.tp))

        found += group_families(transactions.groups.table, broker.topics, broker.partitions, limit, is_current)
    return found


async def scrape(broker: BrokerParts, *, stream_count: int) -> bytes:
    """The text of /metrics."""
    found = await families(broker, stream_count=stream_count)
    return await asyncio.to_thread(render, found, broker.counters.registry, broker.config.data_dir)


def render(broker_families: Iterable[Metric], counters: CollectorRegistry, data_dir: str) -> bytes:
    """The text in Prometheus's format: these families, the counters, and the current state of disk and process. May block."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([*broker_families, *disk_families(data_dir), *map(_without_created, counters.collect())]))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Families:
    """A collector of the given families."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        return self._found


def _without_created(family: Metric) -> Metric:
    """`family` without the creation times that prometheus_client adds to each counter as a separate metric."""
    family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return family


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(f"brokerd_{name}", doc, value=value)


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(f"brokerd_{name}", doc, value=value)


def _broker_families(broker: BrokerParts, stream_count: int) -> Iterator[Metric]:
    doc = "Bytes appended but not yet on disk; at log.max.dirty.bytes producers are throttled."
    yield _gauge("dirty_bytes", doc, broker.dirty.used)
    yield _gauge("in_flight_bytes", "Bytes of produce requests in memory; max.in.flight.bytes.", broker.in_flight.used)
    doc = "Bytes of fetch responses in memory; max.fetch.bytes.in.flight."
    yield _gauge("fetch_in_flight_bytes", doc, broker.response_budget.used)
    yield _gauge("stream_count", "Open produce and fetch streams; max.streams.", stream_count)
    yield _gauge("response_queue_size", "Completed fetches whose response has not started.", len(broker.response_queue))
    waiting = GaugeMetricFamily("brokerd_purgatory_size", "Requests that wait for durability or for data.", labels=["request"])
    waiting.add_metric(["Produce"], len(broker.produce_purgatory))
    waiting.add_metric(["Fetch"], len(broker.fetch_purgatory))
    yield waiting
    led = sum(partition.is_leader for partition in broker.partitions.of_clients())
    yield _gauge("leader_count", "Partitions that this node leads.", led)
    total = broker.counters.total
    yield _counter("messages_in", "Records appended.", total.messages_in)
    yield _counter("bytes_in", "Bytes of record batches appended.", total.bytes_in)
    yield _counter("bytes_out", "Bytes of fetch responses.", total.bytes_out)


def cluster_families(figures: ClusterFigures) -> Iterator[Metric]:
    """Metrics of a node in a cluster."""
    yield _gauge("cluster_nodes", "Nodes of the cluster that are alive, as this one knows.", figures.nodes)
    doc = "Partitions of the cluster without a leader, as this node knows."
    yield _gauge("cluster_offline_partition_count", doc, figures.offline_partitions)
    doc = "1 on the node that holds the elections, while it is registered."
    yield _gauge("active_controller_count", doc, figures.is_controller)
    yield _gauge("cluster_registered", "1 while this node's registration lasts; 0 if its lease is lost.", figures.is_registered)
    yield _counter("coordination_requests", "Requests to etcd.", figures.calls)
    yield _counter("coordination_failed_requests", "Requests that etcd did not answer.", figures.failed_calls)
    yield _counter("coordination_request_seconds", "Time of the requests that etcd answered.", figures.call_seconds)


def replication_families(figures: ReplicationFigures) -> Iterator[Metric]:
    """Metrics of the replicas of partitions that this node leads, and of its own replicas."""
    doc = "Partitions that this node leads, and of which a replica is not in sync that was; not those that a move adds."
    yield _gauge("under_replicated_partition_count", doc, figures.under_replicated)
    doc = "Partitions that this node leads, and that take no acks=all: fewer replicas are in sync than min.insync.replicas."
    yield _gauge("under_min_isr_partition_count", doc, figures.under_min_isr)
    doc = "Partitions that this node leads, and that move to other nodes."
    yield _gauge("reassigning_partition_count", doc, figures.reassigning)
    doc = "Records that the slowest follower of what this node leads has not, in sync or not."
    yield _gauge("replica_lag_records", doc, figures.lag_records)
    doc = "Since the slowest in-sync follower of what this node leads has last had everything; 0 if all have."
    yield _gauge("replica_lag_seconds", doc, figures.lag_ms / 1_000)
    yield _counter("isr_shrinks", "Changes of in-sync replicas by this node, as leader, to fewer.", figures.isr_shrinks)
    yield _counter("isr_expands", "Changes of in-sync replicas by this node, as leader, to more.", figures.isr_expands)
    doc = "Leader epochs begun by this node as the controller: elections, also of no leader, and moves; not hand-overs by leaders."
    yield _counter("leader_elections", doc, figures.elections)
    yield _counter("replication_bytes_in", "Bytes of record batches copied from leaders.", figures.bytes_in)
    yield _counter("replication_bytes_out", "Bytes of record batches sent to followers.", figures.bytes_out)


class LogFamilies:
    """Metrics of topics and partitions, added log by log; partitions beyond `limit` count only towards their topic."""

    def __init__(self, traffic: Mapping[bytes, Traffic], limit: int) -> None:
        self._limit = limit
        self._traffic = traffic
        self._topics: dict[bytes, list[Partition]] = {}
        self._sizes: Counter[bytes] = Counter()
        self._count = self._producer_ids = self._offline = self._shown = 0
        by_partition = ("topic", "partition")
        self._partitions = [
            GaugeMetricFamily(f"brokerd_log_{name}", doc, labels=by_partition)
            for name, doc in (
                ("start_offset", "First offset of a partition."),
                ("high_watermark", "Where readers of a partition stop: everything below it is durable."),
                ("end_offset", "Offset that the next record of a partition gets."),
                ("size_bytes", "Bytes of a partition on disk."),
            )
        ]

    def add(self, log: Partition) -> None:
        """Adds one partition's log. The coordinator's log counts only if it has stopped."""
        self._offline += log.is_stopped
        if log.tp.topic_id == COORDINATOR.id:
            return
        ends, size_bytes = log.ends, log.size_bytes
        self._count += 1
        self._producer_ids += len(log.producers)
        self._topics.setdefault(log.tp.topic_id, []).append(log)
        self._sizes[log.tp.topic_id] += size_bytes
        if self._shown < self._limit:
            self._shown += 1
            labels = (log.topic, str(log.tp.partition))
            values = (ends.log_start_offset, ends.high_watermark, ends.log_end_offset, size_bytes)
            for family, value in zip(self._partitions, values, strict=True):
                family.add_metric(labels, value)

    def families(self) -> Iterator[Metric]:
        """The metrics of all logs added."""
        yield _gauge("topic_count", "Topics.", len(self._topics))
        yield _gauge("partition_count", "Partitions.", self._count)
        doc = "Partitions beyond metrics.max.partitions, without brokerd_log_ figures of their own."
        yield _gauge("partitions_left_out", doc, self._count - self._shown)
        doc = "Partitions, the coordinator's among them, that accept no appends: damaged, read-only, or their disk failed."
        yield _gauge("offline_partition_count", doc, self._offline)
        yield _gauge("producer_id_count", "Producer ids remembered, over all partitions.", self._producer_ids)
        yield from self._topic_families()
        yield from self._partitions

    def _topic_families(self) -> Iterator[Metric]:
        by_topic = ("topic",)
        counts = GaugeMetricFamily("brokerd_topic_partition_count", "Partitions of a topic.", labels=by_topic)
        sizes = GaugeMetricFamily("brokerd_topic_size_bytes", "Bytes of a topic on disk.", labels=by_topic)
        messages_in = CounterMetricFamily("brokerd_topic_messages_in", "Records appended to a topic.", labels=by_topic)
        bytes_in = CounterMetricFamily("brokerd_topic_bytes_in", "Bytes of record batches appended to a topic.", labels=by_topic)
        doc = "Bytes of a topic's record batches in fetch responses."
        bytes_out = CounterMetricFamily("brokerd_topic_bytes_out", doc, labels=by_topic)
        for topic_id, logs in self._topics.items():
            labels, traffic = (logs[0].topic,), self._traffic.get(topic_id, Traffic())
            counts.add_metric(labels, len(logs))
            sizes.add_metric(labels, self._sizes[topic_id])
            messages_in.add_metric(labels, traffic.messages_in)
            bytes_in.add_metric(labels, traffic.bytes_in)
            bytes_out.add_metric(labels, traffic.bytes_out)
        return iter((counts, sizes, messages_in, bytes_in, bytes_out))


async def transaction_families(transactions: Transactions, pauses: Pauses, *, now_ms: int) -> list[Metric]:
    """Metrics of transactions; takes about a microsecond per open member."""
    coordinator, outcomes = transactions.coordinator, transactions.outcomes
    known = list(coordinator.open_members.values())
    executions: set[ExecutionKey] = set()
    oldest_age_ms = 0
    for begin in range(0, len(known), _MEMBERS_AT_ONCE):
        piece = known[begin : begin + _MEMBERS_AT_ONCE]
        executions.update(member.execution for member in piece)
        oldest_age_ms = max(oldest_age_ms, *(now_ms - member.opened_ms for member in piece))
        await pauses.after(_MEMBERS_AT_ONCE // 10)
    return [
        _gauge("open_transaction_count", "Executions with open members.", len(executions)),
        _gauge("open_member_count", "Open members of transactions; max.open.members.", len(known)),
        _gauge(
            "oldest_open_transaction_age_seconds",
            "Since the oldest open member was opened, or the coordinator started.",
            oldest_age_ms / 1_000,
        ),
        _gauge(
            "prepared_transaction_count", "Commits that are decided and not visible everywhere yet.", len(coordinator.prepared())
        ),
        _gauge("transactional_id_count", "Transactional ids remembered; max.transactional.ids.", len(coordinator.states)),
        _counter("committed_transactions", "Versions committed.", outcomes.committed),
        _counter("aborted_transactions", "Requests that ended open members of a transaction without a commit.", outcomes.aborted),
        _counter("expired_transactions", "Executions whose members sent no heartbeat in time.", outcomes.expired),
        _gauge(
            "undecided_member_count",
            "Members whose end is lost to damage: readers wait before their records until an operator decides.",
            transactions.undecided_count,
        ),
    ]


def group_families(
    table: GroupTable, topics: TopicStore, known: PartitionTable, limit: int, is_current: Callable[[Partition], bool]
) -> list[Metric]:
    """Metrics of groups, and of each partition of their topics, with or without a committed offset: at most `limit` partitions,
    shared equally by principals, each principal's oldest groups first. `is_current`: false for a copy that may be out of date.
    Takes some microseconds per partition."""
    by_partition = ("group", "topic", "partition")
    offsets = GaugeMetricFamily("brokerd_group_offset", "Next offset that a group reads.", labels=by_partition)
    lags = GaugeMetricFamily(
        "brokerd_group_lag",
        "Offsets of a partition that a group has left to read, up to where readers of committed records see it end; all of them if "
        "it has committed none, of a topic that it reads. In a cluster, only of partitions that the coordinator's node leads or "
        "has in sync.",
        labels=by_partition,
    )
    groups = table.groups.values()
    counts = Counter[str]()
    for group in groups:
        partitions = group.partitions(count_of=topics.count_of)
        counts[group.principal] += sum(1 for _ in itertools.islice(partitions, limit - counts[group.principal]))
    left = dict(zip(counts, equal_shares(list(counts.values()), limit), strict=True))
    for group in groups:
        for tp in itertools.islice(group.partitions(count_of=topics.count_of), left[group.principal]):
            left[group.principal] -= 1
            committed, log, topic = group.offset(tp), known.get(tp), topics.any_by_id(tp.topic_id)
            if topic is None:
                continue
            labels = (group.group_id, topic.name, str(tp.partition))
            if committed is not None:
                offsets.add_metric(labels, committed.offset)
            if log is not None and is_current(log):
                next_offset = max(committed.offset if committed is not None else 0, log.ends.log_start_offset)
                lags.add_metric(labels, max(0, log.ends.last_stable_offset - next_offset))
    return [
        _gauge("group_count", "Groups whose offsets are kept; max.groups.", len(table.groups)),
        _gauge("group_offset_count", "Offsets of all groups.", table.offset_count),
        _gauge(
            "group_partitions_left_out",
            "Offsets of groups beyond metrics.max.group.partitions, without figures of their own.",
            table.offset_count - len(offsets.samples),
        ),
        offsets,
        lags,
    ]


def disk_families(directory: str) -> list[Metric]:
    """Metrics of the file system that holds `directory`; none if it reports none. May block: call it outside of the event loop."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return []
    free_bytes, used_bytes = found.f_bavail * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize
    return [
        _gauge("disk_free_bytes", "Free space on the disk of the data.", free_bytes),
        _gauge("disk_used_bytes", "Used space on the disk of the data.", used_bytes),
    ]
