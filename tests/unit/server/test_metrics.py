"""Histograms against counting by hand, and what the rendered text looks like to a reader of Prometheus' format."""

from __future__ import annotations

import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from brokerd.server.metrics.collector import Gauge, Snapshot, render
from brokerd.server.metrics.counters import Counters, Phase
from brokerd.server.metrics.histogram import SECONDS, Histogram


def test_a_histogram_counts_as_by_hand() -> None:
    histogram = Histogram()
    chosen = random.Random(7)
    durations_ns = [chosen.randrange(0, 10 ** chosen.randrange(3, 12)) for _ in range(2_000)] + [round(s * 1e9) for s in SECONDS]
    for duration_ns in durations_ns:
        histogram.observe_ns(duration_ns)
    for bound, count in histogram.cumulative():
        assert count == sum(duration_ns / 1e9 <= bound for duration_ns in durations_ns)
    assert histogram.count == len(durations_ns)
    assert histogram.sum_seconds == pytest.approx(sum(durations_ns) / 1e9)


def test_calls_have_a_histogram_each() -> None:
    counters = Counters()
    counters.called("Metadata", 1)
    counters.called("Metadata", 2)
    counters.called("ListOffsets", 3)
    assert {name: histogram.count for name, histogram in counters.call_time.items()} == {"Metadata": 2, "ListOffsets": 1}


def test_the_text_is_what_prometheus_reads() -> None:
    histogram = Histogram()
    histogram.observe_ns(2_000_000)
    taken = Snapshot(
        info={"version": "1"},
        gauges=(Gauge("dirty_bytes", "Dirty.", 5),),
        topic_bytes={"t": 7, "u": 8},
        topic_partitions={"t": 1, "u": 2},
        counters=(("messages_in", "Records.", 3),),
        labelled=(("failed_fetch_requests_total", "Refused.", ("error",), ((("LOG_DAMAGED",), 2),)),),
        times=((("Produce", Phase.LOCAL.value), histogram.cumulative(), histogram.sum_seconds),),
        flush_time=(Histogram().cumulative(), 0.0),
    )
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render(taken).decode())
        for sample in family.samples
    }
    assert samples["brokerd_messages_in_total",] == 3
    assert samples["brokerd_dirty_bytes",] == 5
    assert samples["brokerd_log_size_bytes", ("topic", "u")] == 8
    assert samples["brokerd_topic_partition_count", ("topic", "u")] == 2
    assert samples["brokerd_failed_fetch_requests_total", ("error", "LOG_DAMAGED")] == 2
    local = (("phase", "local"), ("request", "Produce"))
    assert samples["brokerd_request_time_seconds_count", *local] == 1
    assert samples["brokerd_request_time_seconds_bucket", ("le", "0.001"), *local] == 0
    assert samples["brokerd_request_time_seconds_bucket", ("le", "0.0025"), *local] == 1
    assert samples["brokerd_request_time_seconds_bucket", ("le", "+Inf"), *local] == 1
    assert samples["brokerd_log_flush_time_seconds_count",] == 0
