"""Goal: records that one node does not know of are not lost. A Spark source on three nodes, one of which has lost the coordination
store and may have been deposed, reads each row once and reports no loss. Method: the readers that Spark drives, without a JVM.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd import Consumer, Producer
from brokerd.client import leases
from brokerd.client.blocking import BlockingClient
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.datasource.batch_reader import BrokerdBatchReader
from brokerd.datasource.options import SourceOptions, parse_source_options
from brokerd.datasource.partition_reader import read_partition
from brokerd.datasource.schema import arrow_schema
from brokerd.datasource.stream_reader import BrokerdStreamReader
from brokerd.sink.writer import plan_write
from brokerd.testing import Cluster
from tests.support.wait import DEADLINE_S, wait_until

SCHEMA = arrow_schema([("value", "binary", True)])
FAILS = pytest.mark.parametrize("fails", ["true", "false"])
SETTINGS = {"broker.session.timeout.ms": 8_000, "default.replication.factor": 3, "min.insync.replicas": 1}


class Query:
    """Spark's use of a source, micro-batch by micro-batch."""

    def __init__(self, servers: str, **options: str) -> None:
        leases._clients.close()  # a new process knows no nodes
        self._options = options_of(servers, is_streaming=True, startingoffsets="earliest", taskperpartition="true", **options)
        self._reader = BrokerdStreamReader(self._options, SCHEMA, SystemClock())
        self._at = self._reader.initialOffset()
        self.rows: Counter[str] = Counter()

    def restarted(self, servers: str, **options: str) -> Query:
        """A new driver on the same checkpoint."""
        query = Query(servers, **options)
        query._at, query.rows = self._at, self.rows
        return query

    def read_until(self, count: int) -> None:
        """Reads until there are `count` different rows, and three more micro-batches."""
        end_s, more = time.monotonic() + DEADLINE_S, 3
        while more and time.monotonic() < end_s:
            more -= len(self.rows) >= count
            offset = self._reader.latestOffset(self._at, ReadAllAvailable())
            if offset != self._at:
                self.rows.update(rows_of(self._reader.partitions(self._at, offset), self._options))
                self._at = offset
        assert (len(self.rows), set(self.rows.values())) == (count, {1}), self.rows.most_common(3)


def options_of(servers: str, *, is_streaming: bool, **options: str) -> SourceOptions:
    return parse_source_options({"bootstrap.servers": servers, **options}, is_streaming=is_streaming)


def rows_of(parts: object, options: SourceOptions) -> Iterator[str]:
    assert isinstance(parts, (list, tuple))
    for part in parts:
        assert isinstance(part, InputPartition)
        for batch in read_partition(part, options, SCHEMA):
            yield from (value.decode() for value in batch.column("value").to_pylist())


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3, SETTINGS) as cluster:
        yield cluster
    leases._clients.close()


def servers_of(cluster: Cluster, *nodes: int) -> str:
    return ",".join(cluster.nodes[node].bootstrap_servers for node in nodes)


def others_than(cluster: Cluster, node: int) -> str:
    return servers_of(cluster, *sorted(cluster.nodes.keys() - {node}))


def write(servers: str, values: list[str], **place: int) -> None:
    with Producer(bootstrap_servers=servers) as producer:
        for value in values:
            producer.send("t", value.encode(), **place)  # type: ignore[arg-type]


@FAILS
def test_a_topic_grows_where_one_node_does_not_hear_of_it(cluster: Cluster, fails: str) -> None:
    cluster.create_topic("t", partitions=1, replication_factor=2)
    write(cluster.bootstrap_servers, ["a"])
    query = Query(cluster.bootstrap_servers, subscribe="t", failondataloss=fails)
    query.read_until(1)
    cluster.isolate(3)
    cluster.expire(3)
    others = others_than(cluster, 3)
    with BlockingClient(ClientConfig(bootstrap_servers=others)) as client:
        wait_until(lambda: len(client.describe_cluster([]).nodes) == 2)
        client.create_partitions("t", 2)
    write(others, ["b", "c"], partition=1)
    query.read_until(3)


def test_a_topic_is_created_anew_where_its_leader_does_not_hear_of_it(cluster: Cluster) -> None:
    """The unread rows of the old topic are lost; the new topic's rows are read once, and the old one's not again."""
    cluster.create_topic("t", partitions=1, replication_factor=1)
    cluster.create_topic("u", partitions=1)
    write(cluster.bootstrap_servers, ["a"])
    query = Query(cluster.bootstrap_servers, subscribe="t,u", failondataloss="false")
    query.read_until(1)
    old = cluster.leader("t", 0)
    cluster.isolate(old)
    cluster.expire(old)
    with BlockingClient(ClientConfig(bootstrap_servers=others_than(cluster, old))) as client:
        wait_until(lambda: len(client.describe_cluster([]).nodes) == 2)
        client.delete_topics(["t"])
        client.create_topic("t", 1, {}, 1)
    write(others_than(cluster, old), ["b", "c"])
    query.read_until(3)


@pytest.fixture
def replaced(cluster: Cluster) -> tuple[str, str]:
    """Bootstrap servers without a deposed node, and with it in front. It led partition t-0 up to row 2 of 4, and does not know of
    the new leader."""
    cluster.create_topic("t", partitions=1, replication_factor=3)
    write(cluster.bootstrap_servers, ["a", "b"])
    old = cluster.leader("t", 0)
    cluster.isolate(old)
    cluster.expire(old)
    others = others_than(cluster, old)
    with BlockingClient(ClientConfig(bootstrap_servers=others)) as client:
        wait_until(lambda: client.metadata(["t"]).topic("t").leaders[0] not in (old, -1))
    write(others, ["c", "d"])
    return others, f"{servers_of(cluster, old)},{others}"


def test_a_consumer_leaves_a_leader_that_was_replaced_and_has_not_heard_of_it() -> None:
    with Cluster(3, {**SETTINGS, "replica.lag.time.max.ms": 2_000}) as cluster:
        cluster.create_topic("t", partitions=1)
        write(cluster.bootstrap_servers, ["a"])
        with Consumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            assert [record.value for record in consumer.poll(int(DEADLINE_S * 1000))] == [b"a"]
            old = cluster.leader("t", 0)
            cluster.isolate(old)
            cluster.expire(old)
            write(others_than(cluster, old), ["b"])
            assert [record.value for record in consumer.poll(int(DEADLINE_S * 1000))] == [b"b"]


@FAILS
def test_a_driver_starts_again_and_asks_the_former_leader_first(replaced: tuple[str, str], fails: str) -> None:
    others, former_first = replaced
    query = Query(others, subscribe="t", failondataloss=fails)
    query.read_until(4)
    query.restarted(former_first, subscribe="t", failondataloss=fails).read_until(4)


@FAILS
def test_a_task_asks_the_former_leader_first(replaced: tuple[str, str], fails: str) -> None:
    others, former_first = replaced
    driver = BrokerdStreamReader(
        options_of(others, is_streaming=True, subscribe="t", startingoffsets="earliest", taskperpartition="true"),
        SCHEMA,
        SystemClock(),
    )
    start = driver.initialOffset()
    parts = driver.partitions(start, driver.latestOffset(start, ReadAllAvailable()))
    leases._clients.close()
    options = options_of(former_first, is_streaming=True, subscribe="t", failondataloss=fails)
    assert sorted(rows_of(parts, options)) == ["a", "b", "c", "d"]


def test_a_batch_read_that_asks_the_former_leader_first_is_complete(replaced: tuple[str, str]) -> None:
    """Begins once that node knows that its lease is over: only `expire` makes the store end a lease earlier."""
    with BlockingClient(ClientConfig(bootstrap_servers=replaced[1].split(",")[0])) as client:
        wait_until(lambda: client.describe_cluster([]).is_cut_off)
    leases._clients.close()
    options = options_of(replaced[1], is_streaming=False, subscribe="t")
    assert sorted(rows_of(BrokerdBatchReader(options, SCHEMA, SystemClock()).partitions(), options)) == ["a", "b", "c", "d"]


def test_a_topic_is_written_that_one_node_has_not_heard_of(cluster: Cluster) -> None:
    cluster.isolate(1)
    cluster.expire(1)
    with BlockingClient(ClientConfig(bootstrap_servers=others_than(cluster, 1))) as client:
        wait_until(lambda: len(client.describe_cluster([]).nodes) == 2)
        client.create_topic("fresh", 1, {}, 1)
    leases._clients.close()
    plan_write({"bootstrap.servers": cluster.bootstrap_servers, "topic": "fresh"}, [("value", "string")], overwrite=False)
