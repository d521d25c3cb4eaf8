"""The metrics text as Prometheus' own parser reads it, and the figures in it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from brokerd.coordinator.group_table import GroupTable
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_store import TopicStore
from brokerd.ids import TopicIdPartition
from brokerd.server.metrics.counters import Counters, Traffic
from brokerd.server.metrics.families import families, group_families, render
from brokerd.sharing import Shares, equal_shares
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.group_offsets import committed
from tests.support.inner_broker import running


def samples(text: bytes) -> dict[tuple[object, ...], float]:
    """Every sample by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_the_text_is_what_prometheus_reads(tmp_path: Path) -> None:
    counters = Counters()
    counters.produce_time.observe(local_ns=2_000_000, remote_ns=0, send_ns=1_000)
    counters.failed_fetch.labels("LOG_DAMAGED").inc(2)
    dirty = GaugeMetricFamily("brokerd_dirty_bytes", "Dirty.", value=5)
    text = render([dirty], counters.registry, str(tmp_path))
    found = samples(text)
    assert found["brokerd_dirty_bytes",] == 5
    assert found["brokerd_failed_fetch_requests_total", ("error", "LOG_DAMAGED")] == 2
    local = (("phase", "local"), ("request", "Produce"))
    assert found["brokerd_request_time_seconds_count", *local] == 1
    assert found["brokerd_request_time_seconds_bucket", ("le", "0.001"), *local] == 0
    assert found["brokerd_request_time_seconds_bucket", ("le", "0.0025"), *local] == 1
    assert found["brokerd_request_time_seconds_bucket", ("le", "+Inf"), *local] == 1
    assert found["brokerd_request_time_seconds_sum", ("phase", "total"), ("request", "Produce")] == pytest.approx(0.002001)
    assert found["brokerd_request_time_seconds_count", ("phase", "total"), ("request", "Fetch")] == 0
    assert found["brokerd_log_flush_time_seconds_count",] == 0
    assert found["brokerd_disk_free_bytes",] > 0 < found["brokerd_disk_used_bytes",]
    assert b"_created" not in text
    assert ("brokerd_disk_free_bytes",) not in samples(render([], counters.registry, str(tmp_path / "none")))


def test_traffic_is_kept_by_topic() -> None:
    counters = Counters()
    counters.appended(b"t", messages=2, size_bytes=10)
    counters.appended(b"t", messages=3, size_bytes=20)
    counters.appended(b"u", messages=1, size_bytes=5)
    counters.topics[b"t"].bytes_out += 7
    assert counters.total == Traffic(6, 35, 0)
    assert counters.topics == {b"t": Traffic(5, 30, 7), b"u": Traffic(1, 5, 0)}


@pytest.mark.parametrize(
    ("wanted", "limit", "expected"),
    [
        ([], 5, []),
        ([3], 5, [3]),
        ([9], 5, [5]),
        ([1_000, 2], 10, [8, 2]),
        ([1_000, 1_000, 1], 10, [4, 5, 1]),
        ([1, 1], 0, [0, 0]),
        ([5, 5], -1, [0, 0]),
    ],
)
def test_nobody_takes_the_figures_of_others(wanted: list[int], limit: int, expected: list[int]) -> None:
    assert equal_shares(wanted, limit) == expected


async def test_a_partition_that_accepts_no_appends_is_offline() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        for tp, reason in zip(await broker.topic(), ("", "the directory is read-only"), strict=True):
            broker.log(tp).health.read_only_reason = reason
        found = {family.name: family for family in await families(broker.broker, stream_count=0)}
        assert found["brokerd_offline_partition_count"].samples[0].value == 1


async def test_a_coordinators_log_that_accepts_no_appends_is_offline_and_counts_as_nothing_else() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        await broker.topic()
        await broker.transactions.log.make()
        broker.coordinator_log.health.read_only_reason = "the directory is read-only"
        found = {family.name: family for family in await families(broker.broker, stream_count=0)}
        assert found["brokerd_offline_partition_count"].samples[0].value == 1
        assert found["brokerd_partition_count"].samples[0].value == 2
        assert {sample.labels["topic"] for sample in found["brokerd_log_end_offset"].samples} == {"t"}


def test_groups_beyond_the_limit_are_not_even_counted() -> None:
    """Counting thousands of groups of a topic with thousands of partitions would delay all other work."""
    asked: list[bytes] = []

    def count_of(topic_id: bytes) -> int:
        asked.append(topic_id)
        return 1_000

    table = GroupTable(Shares(1_000), Shares(1_000))
    for number in range(100):
        offsets = [committed(TopicIdPartition(bytes(16), 0))]
        table.apply(table.commit(f"g{number}", "ann", offsets))
    topics = cast("TopicStore", SimpleNamespace(count_of=count_of, any_by_id=lambda _: None))
    group_families(table, topics, PartitionTable(topics), 10, lambda log: log.is_leader)
    assert len(asked) == 2, "one group has all that there is room for: it is counted, and shown"


def test_a_principal_with_many_groups_leaves_the_figures_of_others_to_them() -> None:
    table = GroupTable(Shares(1_000), Shares(1_000))
    names = [f"a{number}" for number in range(20)] + ["b0", "b1", "b2"]
    for name in names:
        table.apply(table.commit(name, name[0], [committed(TopicIdPartition(bytes(16), 0))]))
    topics = cast("TopicStore", SimpleNamespace(count_of=lambda _: 1, any_by_id=lambda _: SimpleNamespace(name="t")))
    found = {family.name: family for family in group_families(table, topics, PartitionTable(topics), 10, lambda _: True)}
    shown = [sample.labels["group"] for sample in found["brokerd_group_offset"].samples]
    assert shown == [*names[:7], "b0", "b1", "b2"]
    assert found["brokerd_group_partitions_left_out"].samples[0].value == 13


async def test_what_is_committed_is_told_of_a_partition_whose_end_is_known_elsewhere() -> None:
    """The partition's leader reports the lag. A copy on this node may be behind."""
    async with running(MemoryFiles(), ManualClock()) as broker:
        tps = await broker.topic()
        await broker.groups.commit("g", "ann", [committed(tp, 7) for tp in tps])
        table, topics, here = broker.groups.table, broker.logs.topics, broker.logs.partitions

        def shown(known: PartitionTable, *, is_current: bool = True) -> dict[str, list[float]]:
            found = {family.name: family for family in group_families(table, topics, known, 10, lambda _: is_current)}
            assert all(sample.labels["group"] == "g" for sample in found["brokerd_group_offset"].samples)
            return {name: [sample.value for sample in found[f"brokerd_group_{name}"].samples] for name in ("offset", "lag")}

        assert shown(PartitionTable(topics)) == shown(here, is_current=False) == {"offset": [7, 7], "lag": []}
        assert shown(here) == {"offset": [7, 7], "lag": [0, 0]}
