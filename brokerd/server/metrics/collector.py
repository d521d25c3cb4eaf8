"""The counters, and gauges read off the running broker, as Prometheus families with Kafka's names where Kafka has one.

Two steps: `snapshot` runs in the event loop and copies numbers; `render` turns them into text and may run in a thread.
prometheus-client is imported by `render` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import brokerd
from brokerd.server.broker import Broker
from brokerd.server.metrics.counters import Counters, Phase

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Labels = tuple[str, ...]


class Gauge(NamedTuple):
    """A number as it is now."""

    name: str
    doc: str
    value: float


class Snapshot(NamedTuple):
    """Numbers of one moment."""

    info: Mapping[str, str]
    gauges: tuple[Gauge, ...]
    topic_bytes: Mapping[str, int]
    topic_partitions: Mapping[str, int]
    counters: tuple[tuple[str, str, int], ...]  # (name, doc, value)
    labelled: tuple[tuple[str, str, Labels, tuple[tuple[Labels, int], ...]], ...]  # (name, doc, label names, values)
    times: tuple[tuple[Labels, list[tuple[float, int]], float], ...]  # ((request, phase), buckets, sum)
    flush_time: tuple[list[tuple[float, int]], float]


def snapshot(broker: Broker, *, stream_count: int, refused_count: int) -> Snapshot:
    """Reads everything once. Its cost grows with the number of partitions: some microseconds each."""
    logs = broker.logs.partitions()
    topic_bytes: dict[str, int] = {}
    topic_partitions: dict[str, int] = {}
    producer_ids = offline = 0
    for log in logs:
        topic_bytes[log.topic] = topic_bytes.get(log.topic, 0) + log.size_bytes
        topic_partitions[log.topic] = topic_partitions.get(log.topic, 0) + 1
        producer_ids += log.producer_count
        offline += log.damage is not None or log.failure is not None
    replicas = broker.replicas
    gauges = (
        Gauge("topic_count", "Topics.", len(topic_partitions)),
        Gauge("partition_count", "Partitions.", len(logs)),
        Gauge("offline_partition_count", "Partitions that are damaged, or whose disk failed: no appends.", offline),
        Gauge("producer_id_count", "Producer ids remembered, over all partitions.", producer_ids),
        Gauge(
            "dirty_bytes",
            "Bytes appended and not yet on disk; log.max.dirty.bytes holds producers back.",
            replicas.dirty.used_bytes,
        ),
        Gauge("in_flight_bytes", "Bytes of produce requests in memory; max.in.flight.bytes.", broker.in_flight.used_bytes),
        Gauge(
            "fetch_in_flight_bytes",
            "Bytes of answers to fetches in memory; max.fetch.bytes.in.flight.",
            broker.answer_budget.used_bytes,
        ),
        Gauge("stream_count", "Produce and fetch streams that are open; max.streams.", stream_count),
        Gauge("answer_queue_size", "Completed fetches whose answer has not begun.", len(broker.answers)),
    )
    counters = broker.counters
    return Snapshot(
        info={"version": brokerd.__version__, "cluster_id": broker.logs.cluster_id, "node_id": str(broker.logs.node_id)},
        gauges=gauges,
        topic_bytes=topic_bytes,
        topic_partitions=topic_partitions,
        counters=(
            ("messages_in", "Records appended.", counters.messages_in),
            ("bytes_in", "Bytes of record batches appended.", counters.bytes_in),
            ("bytes_out", "Bytes of answers to fetches.", counters.bytes_out),
            ("authentication_failures", "Calls of callers that did not show who they are.", refused_count),
        ),
        labelled=_labelled(broker, counters),
        times=tuple(_times(counters)),
        flush_time=(replicas.flush_time.cumulative(), replicas.flush_time.sum_seconds),
    )


def _labelled(broker: Broker, counters: Counters) -> tuple[tuple[str, str, Labels, tuple[tuple[Labels, int], ...]], ...]:
    purgatories = ((("Produce",), len(broker.replicas.produce_purgatory)), (("Fetch",), len(broker.replicas.fetch_purgatory)))
    failed_produce = tuple(((code.name,), count) for code, count in counters.failed_produce.items())
    failed_fetch = tuple(((code.name,), count) for code, count in counters.failed_fetch.items())
    return (
        ("purgatory_size", "Requests that wait: for durability, or for data.", ("request",), purgatories),
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
    """The text that Prometheus reads. Raises ImportError without prometheus-client."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(taken))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    """What prometheus-client asks for families."""

    def __init__(self, taken: Snapshot) -> None:
        self._taken = taken

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry is used once."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily

        taken = self._taken
        yield InfoMetricFamily("brokerd", "The broker.", value=dict(taken.info))
        for gauge in taken.gauges:
            yield GaugeMetricFamily(f"brokerd_{gauge.name}", gauge.doc, value=gauge.value)
        size = GaugeMetricFamily("brokerd_log_size_bytes", "Bytes on disk.", labels=["topic"])
        partitions = GaugeMetricFamily("brokerd_topic_partition_count", "Partitions of a topic.", labels=["topic"])
        for topic, size_bytes in taken.topic_bytes.items():
            size.add_metric([topic], size_bytes)
            partitions.add_metric([topic], taken.topic_partitions[topic])
        yield from (size, partitions)
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


def _bounds(buckets: list[tuple[float, int]]) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in buckets]
