"""Goal: a payload that rots on the leader's disk stops no reader while another replica is in sync. The leader finds the damage when
asked to check, and hands over; every record is read once, without an error. With one replica the reader gets an error, and the
broker knows of the damage. Method: real processes, and bits flipped in their files.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import brokerd
from brokerd import Consumer, Producer, TopicPartition
from brokerd.aio import Consumer as AioConsumer
from brokerd.client.blocking import BlockingClient
from brokerd.client.columns import CONSUMED_SCHEMA
from brokerd.client.fetching import FetchRange
from brokerd.config.client import ConsumerConfig
from brokerd.datadir.topic_store import COORDINATOR_LOG
from brokerd.datasource.options import parse_source_options
from brokerd.datasource.partition_reader import read_ranges
from brokerd.errors import CorruptMessageError, LogDamagedError
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.testing import Broker, Cluster
from tests.integration.conftest import Terminal
from tests.integration.test_cluster_replicas import partitions
from tests.support.wait import DEADLINE_S, wait_until

SETTINGS: Mapping[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "log.segment.bytes": 16_384,
    "log.checkpoint.interval.ms": 200,
}
RECORDS = 300
VALUES = [b"%0150d" % number for number in range(RECORDS)]
ROTTEN = 100  # an offset in a closed segment
LONG_MS = int(DEADLINE_S * 1000)
_SERVERS = "bootstrap.servers"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three nodes. Topic `t` has a partition for each way of reading, and one more."""
    with Cluster(3, SETTINGS) as cluster:
        fill(cluster, len(WAYS) + 1)
        yield cluster


def fill(broker: Broker | Cluster, count: int) -> None:
    """Writes some segments to each partition of the topic `t`, with a few records per batch."""
    broker.create_topic("t", count)
    with Producer({_SERVERS: broker.bootstrap_servers, "batch.size": 500}) as producer:
        for number in range(RECORDS):
            for partition in range(count):
                producer.send("t", VALUES[number], partition=partition)


def segments(broker: Broker, partition: int) -> list[Path]:
    found = (broker.directory / "data").glob(f"*-{partition}/*.log")
    return sorted(path for path in found if path.parent.name != COORDINATOR_LOG.directory_name)


def whole(path: Path) -> list[RecordBatch]:
    return list(walk_batches(pa.py_buffer(path.read_bytes())))


def rot(broker: Broker, partition: int, offset: int = ROTTEN) -> tuple[Path, int, int]:
    """Flips a bit in the payload of the batch that holds the offset; returns the segment, the batch's position in it, and its base
    offset."""
    for path in segments(broker, partition)[:-1]:
        position = 0
        for batch in whole(path):
            if batch.header.base_offset <= offset < batch.header.next_offset:
                change(path, position + batch.header.header_words * 8 + 60)
                return path, position, batch.header.base_offset
            position += batch.header.size
    raise AssertionError("the offset is in no closed segment")


def change(path: Path, position: int) -> None:
    """Flips a bit of this byte."""
    with path.open("r+b") as file:
        file.seek(position)
        (changed,) = file.read(1)
        file.seek(position)
        file.write(bytes([changed ^ 4]))


def place(path: Path, position: int) -> str:
    return f"{path.parent.name}/{path.name} from byte {position} on"


def in_sync(cluster: Cluster, partition: int, *nodes: int) -> None:
    wait_until(lambda: sorted(cluster.in_sync("t", partition)) == list(nodes), what=f"{nodes} are in sync")


def by_consumer(servers: str, partition: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer({_SERVERS: servers, "auto.offset.reset": "earliest", "retry.backoff.max.ms": 100}) as consumer:
        consumer.assign([TopicPartition("t", partition)])
        while len(found) < RECORDS:
            found += [record.value for record in consumer.poll(LONG_MS)]
    return found


def by_aio(servers: str, partition: int) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        found: list[bytes | None] = []
        async with AioConsumer({_SERVERS: servers, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([TopicPartition("t", partition)])
            while len(found) < RECORDS:
                found += [record.value for record in await consumer.poll(LONG_MS)]
        return found

    return asyncio.run(read())


def by_read(servers: str, partition: int) -> list[bytes | None]:
    rows = brokerd.read("t", partitions=[partition], config={_SERVERS: servers}).to_reader().read_all()
    found: list[bytes | None] = rows.column("value").to_pylist()
    return found


def by_spark_task(servers: str, partition: int) -> list[bytes | None]:
    """Reads as a task of the Spark source does."""
    options = parse_source_options({_SERVERS: servers, "subscribe": "t"}, is_streaming=False)
    with BlockingClient(ConsumerConfig(bootstrap_servers=servers)) as client:
        tp = TopicIdPartition(client.metadata(["t"]).topic("t").topic_id, partition)
        rows = pa.Table.from_batches(read_ranges(client, [FetchRange(tp, 0, RECORDS, "t")], options, CONSUMED_SCHEMA))
    found: list[bytes | None] = rows.column("value").to_pylist()
    return found


WAYS = (by_consumer, by_aio, by_read, by_spark_task)


def test_readers_of_every_kind_go_on_with_a_copy_that_is_whole_and_producers_notice_nothing(cluster: Cluster) -> None:
    servers = cluster.bootstrap_servers
    with Producer({_SERVERS: servers, "linger.ms": 0, "retry.backoff.max.ms": 100}) as producer:
        for partition, way in enumerate(WAYS):
            in_sync(cluster, partition, 1, 2, 3)
            leader = cluster.leader("t", partition)
            path, position, _ = rot(cluster.nodes[leader], partition)
            sent = [producer.send("t", b"while it is damaged", partition=partition) for _ in range(20)]
            assert way(servers, partition)[:RECORDS] == VALUES, way.__name__
            sent += [producer.send("t", b"and later", partition=partition) for _ in range(20)]
            assert [future.result(DEADLINE_S).offset for future in sent] == list(range(RECORDS, RECORDS + 40))
            in_sync(cluster, partition, *({1, 2, 3} - {leader}))
            assert cluster.leader("t", partition) != leader
            said = f"(payload_crc does not match); run `brokerd doctor` for details (in {place(path, position)})"
            assert cluster.nodes[leader].log.count(said) == 1


def test_two_rotten_copies_leave_the_third(cluster: Cluster) -> None:
    number = len(WAYS)
    in_sync(cluster, number, 1, 2, 3)
    first, second, third = partitions(cluster, 1, "t")[number].replicas  # leaders are elected in this order
    assert cluster.leader("t", number) == first
    for node in (first, second):
        rot(cluster.nodes[node], number)
    assert by_consumer(cluster.bootstrap_servers, number) == VALUES
    in_sync(cluster, number, third)


def test_a_coordinator_with_a_rotten_log_hands_over_before_it_decides_anything(cluster: Cluster, terminal: Terminal) -> None:
    terminal.use(cluster.bootstrap_servers)
    cluster.create_topic("decided", 1)
    settings = {_SERVERS: cluster.bootstrap_servers, "transactional.id": "t"}
    with Producer(settings) as producer, producer.transaction():
        producer.send("decided", b"before")

    def log_of_coordinator() -> dict[str, Any]:
        (one,) = json.loads(terminal.run("cluster", "status", "__coordinator", "--json")[1])["partitions"]
        found: dict[str, Any] = one
        return found

    wait_until(lambda: len(log_of_coordinator()["isr"]) == 3, what="all copies of the coordinator's log are in sync")
    before = log_of_coordinator()
    second = next(node for node in before["replicas"] if node != before["leader"])
    path = next((cluster.nodes[second].directory / "data" / COORDINATOR_LOG.directory_name).glob("*.log"))
    change(path, 96 + 60)  # in the payload of the first batch
    assert terminal.run("cluster", "move-leader", "__coordinator", "0", str(second))[0] == 0
    wait_until(lambda: log_of_coordinator()["leader_epoch"] != before["leader_epoch"], what="the first leader hands over")
    with Producer(settings) as producer, producer.transaction():
        producer.send("decided", b"after")
    # The node that says so may hear of it later than the producer.
    wait_until(lambda: second not in (log_of_coordinator()["leader"], *log_of_coordinator()["isr"]), what="the second hands over")
    assert place(path, 0) in cluster.nodes[second].log


def test_the_only_copy_tells_its_damage() -> None:
    with Broker({"log.segment.bytes": 16_384}) as broker:
        fill(broker, 1)
        path, position, base_offset = rot(broker, 0)
        seen: list[bytes | None] = []
        with closing(Consumer({_SERVERS: broker.bootstrap_servers, "auto.offset.reset": "earliest"})) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            while len(seen) < base_offset:
                seen += [record.value for record in consumer.poll(LONG_MS)]
            wrong = rf"^t-0: batch at offset {base_offset}: payload_crc does not match; `brokerd doctor` shows"
            with pytest.raises(CorruptMessageError, match=wrong):
                consumer.poll(LONG_MS)
            with pytest.raises(LogDamagedError, match=f"offsets {base_offset} to .* were durable and are damaged"):
                consumer.poll(LONG_MS)
        assert seen == VALUES[:base_offset]
        assert f"(in {place(path, position)})" in broker.log
