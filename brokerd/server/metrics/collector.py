"""The counters and gauges of the running broker as Prometheus families. All names start with brokerd_, followed by Kafka's name
where Kafka has the metric (docs/monitoring.md has the table).

There are two steps: `snapshot` runs in the event loop and copies numbers, a few in each turn; `render` turns them into text and may
run in a thread. Only `render` imports prometheus-client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import brokerd
from brokerd.server.broker import Broker
from brokerd.server.metrics.counters import Counters, Phase
from brokerd.server.metrics.figures import (
    GroupFigures,
    LogFigures,
    PartitionFigures,
    TopicFigures,
    TransactionFigures,
    disk_figures,
    group_figures,
    transaction_figures,
)
from brokerd.server.waiting.pauses import Pauses

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Labels = tuple[str, ...]
_TOPIC_FAMILIES = (  # fields of TopicFigures
    ("partition_count", "Partitions of a topic.", "gauge"),
    ("size_bytes", "Bytes of a topic on disk.", "gauge"),
    ("messages_in", "Records appended to a topic.", "counter"),
    ("bytes_in", "Bytes of record batches appended to a topic.", "counter"),
    ("bytes_out", "Bytes of a topic's record batches in fetch responses.", "counter"),
)
_LOG_FAMILIES = (  # fields of PartitionFigures
    ("log_start_offset", "start_offset", "First offset of a partition."),
    ("high_watermark", "high_watermark", "Where readers of a partition stop: everything below it is durable."),
    ("log_end_offset", "end_offset", "Offset that the next record of a partition gets."),
    ("size_bytes", "size_bytes", "Bytes of a partition on disk."),
)


class Gauge(NamedTuple):
    """A current value."""

    name: str
    doc: str
    value: float


class Snapshot(NamedTuple):
    """All numbers at one moment."""

    info: Mapping[str, str]
    gauges: tuple[Gauge, ...]
    topics: tuple[TopicFigures, ...]
    partitions: tuple[PartitionFigures, ...]  # at most metrics.max.partitions
    data_dir: str
    counters: tuple[tuple[str, str, int], ...]  # (name, doc, value)
    labelled: tuple[tuple[str, str, Labels, tuple[tuple[Labels, int], ...]], ...]  # (name, doc, label names, values)
    times: tuple[tuple[Labels, list[tuple[float, int]], float], ...]  # ((request, phase), buckets, sum)
    flush_time: tuple[list[tuple[float, int]], float]


async def snapshot(broker: Broker, *, stream_count: int, refused_count: int) -> Snapshot:
    """Reads everything once, some microseconds for each partition, a few at a time: each is as of its own moment."""
    pauses = Pauses(broker.turns)
    found = LogFigures(broker.counters.topics, broker.config.metrics_max_partitions)
    for log in broker.partitions.of_clients():
        found.add(log)
        await pauses.after()
    topics, partitions = found.topics(), tuple(found.partitions)
    groups = group_figures(broker.groups.table, broker.logs.topics, broker.partitions, broker.config.metrics_max_group_partitions)
    transactions = await transaction_figures(broker.transactions.coordinator, pauses, now_ms=broker.clock.monotonic_ms())
    gauges = (
        Gauge("topic_count", "Topics.", len(topics)),
        Gauge("partition_count", "Partitions.", found.count),
        Gauge(
            "partitions_left_out",
            "Partitions beyond metrics.max.partitions, without brokerd_log_ figures of their own.",
            found.count - len(partitions),
        ),
        Gauge("offline_partition_count", "Partitions that are damaged, or whose disk failed: no appends.", found.offline),
        Gauge("producer_id_count", "Producer ids remembered, over all partitions.", found.producer_ids),
        Gauge(
            "dirty_bytes",
            "Bytes appended but not yet on disk; at log.max.dirty.bytes producers are throttled.",
            broker.dirty.used,
        ),
        Gauge("in_flight_bytes", "Bytes of produce requests in memory; max.in.flight.bytes.", broker.in_flight.used),
        Gauge(
            "fetch_in_flight_bytes",
            "Bytes of fetch responses in memory; max.fetch.bytes.in.flight.",
            broker.response_budget.used,
        ),
        Gauge("stream_count", "Open produce and fetch streams; max.streams.", stream_count),
        Gauge("response_queue_size", "Completed fetches whose response has not started.", len(broker.response_queue)),
    )
    counters = broker.counters
    outcomes = broker.transactions.outcomes
    return Snapshot(
        info={"version": brokerd.__version__, "cluster_id": broker.logs.cluster_id, "node_id": str(broker.logs.node_id)},
        gauges=(
            *gauges,
            *_transaction_gauges(broker, transactions),
            *_group_gauges(broker, sum(one.offset >= 0 for one in groups)),
        ),
        topics=topics,
        partitions=partitions,
        data_dir=broker.config.data_dir,
        counters=(
            ("messages_in", "Records appended.", counters.messages_in),
            ("bytes_in", "Bytes of record batches appended.", counters.bytes_in),
            ("bytes_out", "Bytes of fetch responses.", counters.bytes_out),
            ("authentication_failures", "Calls without valid credentials.", refused_count),
            ("committed_transactions", "Versions committed.", outcomes.committed),
            ("aborted_transactions", "Requests that ended open members of a transaction without a commit.", outcomes.aborted),
            ("expired_transactions", "Executions that ended because nobody gave a sign of life.", outcomes.expired),
        ),
        labelled=(*_labelled(broker, counters), *_group_families(groups)),
        times=tuple(_times(counters)),
        flush_time=(broker.counters.flush_time.cumulative(), broker.counters.flush_time.sum_seconds),
    )


def _transaction_gauges(broker: Broker, figures: TransactionFigures) -> tuple[Gauge, ...]:
    return (
        Gauge("open_transaction_count", "Executions with open members.", figures.open_count),
        Gauge("open_member_count", "Open members of transactions; max.open.members.", figures.open_members),
        Gauge("prepared_transaction_count", "Commits that are decided and not visible everywhere yet.", figures.prepared_count),
        Gauge(
            "undecided_member_count",
            "Members whose end is lost to damage: readers wait before their records until an operator decides.",
            broker.transactions.undecided_count,
        ),
        Gauge("oldest_open_transaction_age_seconds", "Since the oldest open member was opened.", figures.oldest_age_ms / 1000),
        Gauge("transactional_id_count", "Transactional ids remembered; max.transactional.ids.", figures.id_count),
    )


def _group_gauges(broker: Broker, shown: int) -> tuple[Gauge, ...]:
    table = broker.groups.table
    return (
        Gauge("group_count", "Groups whose offsets are kept; max.groups.", len(table.groups)),
        Gauge("group_offset_count", "Offsets of all groups.", table.offset_count),
        Gauge(
            "group_partitions_left_out",
            "Offsets of groups beyond metrics.max.group.partitions, without figures of their own.",
            table.offset_count - shown,
        ),
    )


def _group_families(groups: Iterable[GroupFigures]) -> Iterator[tuple[str, str, Labels, tuple[tuple[Labels, int], ...]]]:
    labels = ("group", "topic", "partition")
    names = [(one, (one.group, one.topic, str(one.partition))) for one in groups]
    committed = tuple((values, one.offset) for one, values in names if one.offset >= 0)
    yield "group_offset", "Next offset that a group reads.", labels, committed
    doc = (
        "Offsets of a partition that a group has left to read, up to where readers of committed records see it end; all of them if "
        "it has committed none, of a topic that it reads."
    )
    yield "group_lag", doc, labels, tuple((values, one.lag) for one, values in names)


def _labelled(broker: Broker, counters: Counters) -> tuple[tuple[str, str, Labels, tuple[tuple[Labels, int], ...]], ...]:
    purgatories = ((("Produce",), len(broker.produce_purgatory)), (("Fetch",), len(broker.fetch_purgatory)))
    failed_produce = tuple(((code.name,), count) for code, count in counters.failed_produce.items())
    failed_fetch = tuple(((code.name,), count) for code, count in counters.failed_fetch.items())
    return (
        ("purgatory_size", "Requests that wait for durability or for data.", ("request",), purgatories),
        ("failed_produce_requests_total", "Batches or whole requests that were refused.", ("error",), failed_produce),
        ("failed_fetch_requests_total", "Partitions or whole fetches that were refused.", ("error",), failed_fetch),
        (
            "request_errors_total",
            "Calls and streams that ended with a status other than OK.",
            ("request", "status"),
            tuple(counters.request_errors.items()),
        ),
    )


def _times(counters: Counters) -> Iterator[tuple[Labels, list[tuple[float, int]], float]]:
    for request, histograms in (("Produce", counters.produce_time), ("Fetch", counters.fetch_time)):
        for phase, histogram in histograms.items():
            yield (request, phase.value), histogram.cumulative(), histogram.sum_seconds
    for method, histogram in counters.call_time.items():
        yield (method, Phase.TOTAL.value), histogram.cumulative(), histogram.sum_seconds


def render(taken: Snapshot) -> bytes:
    """The text in Prometheus's format. Raises ImportError without prometheus-client."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(taken))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    """The object that prometheus-client collects families from."""

    def __init__(self, taken: Snapshot) -> None:
        self._taken = taken

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: the registry is used once."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

        taken = self._taken
        yield InfoMetricFamily("brokerd", "The broker.", value=dict(taken.info))
        for gauge in taken.gauges:
            yield GaugeMetricFamily(f"brokerd_{gauge.name}", gauge.doc, value=gauge.value)
        yield from self._topics()
        yield from self._partitions()
        disk = disk_figures(taken.data_dir)
        if disk is not None:
            yield GaugeMetricFamily("brokerd_disk_free_bytes", "Free space on the disk of the data.", value=disk.free_bytes)
            yield GaugeMetricFamily("brokerd_disk_used_bytes", "Used space on the disk of the data.", value=disk.used_bytes)
        for name, doc, value in taken.counters:
            yield CounterMetricFamily(f"brokerd_{name}", doc, value=value)
        for name, doc, label_names, values in taken.labelled:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"brokerd_{name.removesuffix('_total')}", doc, labels=list(label_names))
            for labels, value in values:
                family.add_metric(list(labels), value)
            yield family
        times = HistogramMetricFamily("brokerd_request_time_seconds", "Time of requests by phase.", labels=["request", "phase"])
        for labels, buckets, total in taken.times:
            times.add_metric(list(labels), _bounds(buckets), total)
        yield times
        flush = HistogramMetricFamily("brokerd_log_flush_time_seconds", "Time of flushes to disk.", labels=[])
        flush.add_metric([], _bounds(taken.flush_time[0]), taken.flush_time[1])
        yield flush

    def _topics(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for name, doc, kind in _TOPIC_FAMILIES:
            family = (CounterMetricFamily if kind == "counter" else GaugeMetricFamily)(
                f"brokerd_topic_{name}", doc, labels=["topic"]
            )
            for figures in self._taken.topics:
                family.add_metric([figures.topic], getattr(figures, name))
            yield family

    def _partitions(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        for field, name, doc in _LOG_FAMILIES:
            family = GaugeMetricFamily(f"brokerd_log_{name}", doc, labels=["topic", "partition"])
            for figures in self._taken.partitions:
                family.add_metric([figures.topic, str(figures.partition)], getattr(figures, field))
            yield family


def _bounds(buckets: list[tuple[float, int]]) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in buckets]
