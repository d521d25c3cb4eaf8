"""Histograms against counting by hand, and what the rendered text looks like to a reader of Prometheus' format."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_store import TopicStore
from brokerd.groups.group_table import GroupTable, Limits
from brokerd.ids import TopicIdPartition
from brokerd.server.metrics.collector import Gauge, Snapshot, render
from brokerd.server.metrics.counters import SECONDS, Counters, Histogram, Phase, Traffic
from brokerd.server.metrics.figures import PartitionFigures, TopicFigures, disk_figures, equal_shares, group_figures
from brokerd.sharing.shares import Shares
from tests.support.group_offsets import committed


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
        topics=(TopicFigures("t", 1, 7, 10, 70, 700), TopicFigures("u", 2, 8, 11, 80, 800)),
        partitions=(PartitionFigures("u", 1, 3, 5, 6, 8),),
        data_dir="/no/such/directory",
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
    assert samples["brokerd_topic_size_bytes", ("topic", "u")] == 8
    traffic = [samples[f"brokerd_topic_{name}_total", ("topic", "u")] for name in ("messages_in", "bytes_in", "bytes_out")]
    assert traffic == [11, 80, 800]
    one = (("partition", "1"), ("topic", "u"))
    offsets = [samples[f"brokerd_log_{name}", *one] for name in ("start_offset", "high_watermark", "end_offset", "size_bytes")]
    assert offsets == [3, 5, 6, 8]
    assert ("brokerd_disk_free_bytes",) not in samples
    assert samples["brokerd_topic_partition_count", ("topic", "u")] == 2
    assert samples["brokerd_failed_fetch_requests_total", ("error", "LOG_DAMAGED")] == 2
    local = (("phase", "local"), ("request", "Produce"))
    assert samples["brokerd_request_time_seconds_count", *local] == 1
    assert samples["brokerd_request_time_seconds_bucket", ("le", "0.001"), *local] == 0
    assert samples["brokerd_request_time_seconds_bucket", ("le", "0.0025"), *local] == 1
    assert samples["brokerd_request_time_seconds_bucket", ("le", "+Inf"), *local] == 1
    assert samples["brokerd_log_flush_time_seconds_count",] == 0


def test_traffic_is_kept_by_topic_until_it_is_deleted() -> None:
    counters = Counters()
    counters.appended(b"t", messages=2, size_bytes=10)
    counters.appended(b"t", messages=3, size_bytes=20)
    counters.appended(b"u", messages=1, size_bytes=5)
    counters.fetched(b"t", 7)
    assert counters.topics == {b"t": Traffic(5, 30, 7), b"u": Traffic(1, 5, 0)}
    counters.forget(b"t")
    counters.forget(b"t")
    assert counters.topics == {b"u": Traffic(1, 5, 0)}
    assert (counters.messages_in, counters.bytes_in) == (6, 35)


def test_figures_of_the_disk(tmp_path: Path) -> None:
    found = disk_figures(str(tmp_path))
    assert found is not None
    assert found.free_bytes > 0
    assert found.used_bytes > 0
    assert disk_figures(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("wanted", "limit", "expected"),
    [
        ({}, 5, {}),
        ({"a": 3}, 5, {"a": 3}),
        ({"a": 9}, 5, {"a": 5}),
        ({"first": 1_000, "second": 2}, 10, {"first": 8, "second": 2}),
        ({"a": 1_000, "b": 1_000, "c": 1}, 10, {"a": 4, "b": 5, "c": 1}),
        ({"a": 1, "b": 1}, 0, {"a": 0, "b": 0}),
    ],
)
def test_nobody_takes_the_figures_of_others(wanted: dict[str, int], limit: int, expected: dict[str, int]) -> None:
    assert equal_shares(wanted, limit) == expected


def test_groups_beyond_the_limit_are_not_even_counted() -> None:
    """Thousands of groups of a topic with thousands of partitions would hold up everything else."""
    asked: list[bytes] = []

    def count_of(topic_id: bytes) -> int:
        asked.append(topic_id)
        return 1_000

    table = GroupTable(Limits(Shares(1_000), Shares(1_000)))
    for number in range(100):
        offsets = [committed(TopicIdPartition(bytes(16), 0))]
        table.apply(table.commit(f"g{number}", "ann", offsets))
    topics = cast("TopicStore", SimpleNamespace(count_of=count_of))
    group_figures(table, topics, PartitionTable(topics), 10)
    assert len(asked) == 2, "one group has all that there is room for: it is counted, and shown"
