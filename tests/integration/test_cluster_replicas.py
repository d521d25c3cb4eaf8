"""Goal: with three replicas of each partition, a node may be killed, suspended, emptied or stopped: nothing acknowledged is lost,
no record is read twice, and producers and consumers continue. Method: real processes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from brokerd import Consumer, Producer, TopicPartition
from brokerd.datadir.checkpoint import CHECKPOINT_KIND, decode_checkpoint
from brokerd.errors import DeliveryTimeoutError
from brokerd.ids import TopicIdPartition
from brokerd.storage.checksummed_file import read_document
from brokerd.storage.files import RealFiles
from brokerd.storage.names import CHECKPOINT
from brokerd.testing import Cluster
from brokerd.wire.v1.metadata_pb2 import PartitionMetadata
from tests.integration.conftest import Terminal
from tests.integration.test_cluster import PARTITIONS, Writer, client_of, producer_of, read_all
from tests.support.wait import DEADLINE_S, wait_until

NODES = (1, 2, 3)
SETTINGS: Mapping[str, object] = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "log.segment.bytes": 65_536,
    "log.checkpoint.interval.ms": 200,
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes, each with a replica of the topic `orders`."""
    with Cluster(3, SETTINGS) as cluster:
        cluster.create_topic("orders", PARTITIONS)
        yield cluster


def partitions(cluster: Cluster, node: int, topic: str = "orders") -> list[PartitionMetadata]:
    """A topic's partitions in one node's metadata; the coordinator's topic is possible."""
    with client_of(cluster.nodes[node].bootstrap_servers) as client:
        (described,) = client.describe_cluster([topic], internal=True).topics
        return list(described.partitions)


def in_sync(cluster: Cluster, *nodes: int, topics: Iterable[str] = ("orders",)) -> None:
    """Waits until exactly these nodes are in sync for every partition, and lead."""
    wait_until(
        lambda: all(
            set(one.isr) == set(nodes) and one.leader in nodes for topic in topics for one in partitions(cluster, nodes[0], topic)
        ),
        what=f"{nodes} are in sync",
    )


def durable_end(data: Path, tp: TopicIdPartition) -> int:
    """The durable end of a log, from a directory's checkpoint."""
    with closing(RealFiles(str(data))) as files:
        entry = decode_checkpoint(read_document(files, CHECKPOINT, CHECKPOINT_KIND))[1].get(tp)
    return entry.durable_end if entry is not None else 0


def logs(cluster: Cluster, node: int) -> dict[str, bytes]:
    """The bytes of each partition's log on a node, from its first segment."""
    found: dict[str, bytes] = {}
    for path in sorted((cluster.nodes[node].directory / "data").glob("*-*/*.log")):
        found[path.parent.name] = found.get(path.parent.name, b"") + path.read_bytes()
    return found


def same_logs(cluster: Cluster) -> None:
    """Asserts that all replicas become equal, byte for byte."""
    wait_until(lambda: logs(cluster, 1) == logs(cluster, 2) == logs(cluster, 3), what="equal copies", pause_s=0.05)
    assert len(logs(cluster, 1)) >= PARTITIONS


def test_a_node_that_is_killed_is_not_missed(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        for victim in NODES:
            in_sync(cluster, *NODES)
            writer.send(100)
            cluster.kill(victim)
            cluster.expire(victim)
            writer.send(100)
            writer.acknowledged()  # while it is away
            in_sync(cluster, *[node for node in NODES if node != victim])
            cluster.restart(victim)
        sent = writer.acknowledged()
    in_sync(cluster, *NODES)
    read_all(cluster, sent)
    same_logs(cluster)


def test_all_nodes_are_killed_at_once(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        for _ in range(2):
            writer.send(100)
            for node in NODES:
                cluster.kill(node)
            for node in NODES:
                cluster.restart(node)
        sent = writer.acknowledged()
    read_all(cluster, sent)
    in_sync(cluster, *NODES)
    same_logs(cluster)


def test_a_suspended_leader_has_acknowledged_nothing_since(cluster: Cluster) -> None:
    with producer_of(cluster, request_timeout_ms=2_000) as producer:
        writer = Writer(producer)
        writer.send(100)
        writer.acknowledged()
        cluster.pause(1)
        cluster.expire(1)
        writer.send(100)
        sent = writer.acknowledged()
        assert all(one.leader != 1 for one in partitions(cluster, 2))
        cluster.resume(1)
        in_sync(cluster, *NODES)
    read_all(cluster, sent)
    same_logs(cluster)


def test_a_node_is_replaced_by_an_empty_one(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        writer.send(500)
        writer.acknowledged()
        cluster.kill(3)
        cluster.expire(3)
        shutil.rmtree(Path(cluster.nodes[3].directory) / "data")
        writer.send(100)
        cluster.restart(3)
        writer.send(100)
        sent = writer.acknowledged()
    in_sync(cluster, *NODES)
    read_all(cluster, sent)
    same_logs(cluster)


def test_an_empty_node_begins_where_the_others_do(cluster: Cluster) -> None:
    value = b"%0200d"
    with producer_of(cluster) as producer, client_of(cluster.bootstrap_servers) as client:
        for number in range(2_000):  # writes several segments
            producer.send("orders", value % number, partition=0)
        producer.flush()
        cluster.kill(3)
        cluster.expire(3)
        shutil.rmtree(Path(cluster.nodes[3].directory) / "data")
        wait_until(lambda: set(partitions(cluster, 1)[0].isr) == {1, 2})
        tp = TopicIdPartition(client.metadata(["orders"]).topic("orders").topic_id, 0)
        assert client.delete_records({tp: 1_500}) == {tp: 1_500}
        cluster.restart(3)
        in_sync(cluster, *NODES)
        for number in range(2_000, 2_100):
            producer.send("orders", value % number, partition=0)
        producer.flush()
    for node in (1, 2):  # so that the new node leads
        cluster.kill(node)
        cluster.expire(node)
        wait_until(lambda node=node: partitions(cluster, 3)[0].leader not in range(node + 1))  # type: ignore[misc]
    with Consumer({"bootstrap.servers": cluster.nodes[3].bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        found: list[bytes | None] = []
        cluster.restart(1)  # for min.insync.replicas
        while len(found) < 600:
            found += [record.value for record in consumer.poll(int(DEADLINE_S * 1000))]
    assert found == [value % number for number in range(1_500, 2_100)]


def test_a_copy_that_somebody_has_removed_is_damaged_and_not_an_empty_one(cluster: Cluster) -> None:
    """The node's directory is still the one that was in sync."""
    with producer_of(cluster) as producer, client_of(cluster.bootstrap_servers) as client:
        writer = Writer(producer)
        writer.send(50)
        writer.acknowledged()
        removed = partitions(cluster, 1)[0].leader
        others = [node for node in NODES if node != removed]
        topic_id = client.metadata(["orders"]).topic("orders").topic_id
        data = cluster.nodes[removed].directory / "data"
        tps = [TopicIdPartition(topic_id, partition) for partition in range(PARTITIONS)]
        wait_until(lambda: all(durable_end(data, tp) == 50 for tp in tps))  # else a new replica would be as good as the old one
        cluster.kill(removed)
        for copy in data.glob(f"{topic_id.hex()}-*"):
            shutil.rmtree(copy)
        cluster.restart(removed)
        in_sync(cluster, *others)
        writer.send(50)
        sent = writer.acknowledged()
    read_all(cluster, sent)
    assert "were durable and are damaged (bytes are missing)" in cluster.nodes[removed].log


def test_a_consumer_commits_what_it_has_read_while_nodes_come_and_go(cluster: Cluster) -> None:
    tps = [TopicPartition("orders", partition) for partition in range(PARTITIONS)]
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "none", "enable.auto.commit": "false"}
    with producer_of(cluster) as producer, Consumer({**settings, "group.id": "g"}) as consumer:
        consumer.assign(tps)
        for tp in tps:
            consumer.seek(tp, 0)
        writer, read = Writer(producer), [list[bytes]() for _ in tps]

        def read_and_commit() -> None:
            for record in consumer.poll(int(DEADLINE_S * 1000)):
                assert record.offset == len(read[record.partition]), "each once, in order"
                read[record.partition].append(record.value or b"")
            consumer.commit()
            found = consumer.committed(tps)
            assert [one.offset for tp in tps if (one := found[tp]) is not None] == [consumer.position(tp) for tp in tps]

        for node in (*NODES, *NODES):
            writer.send(20)
            cluster.kill(node)
            cluster.expire(node)
            read_and_commit()
            cluster.restart(node)
            in_sync(cluster, *NODES)
            read_and_commit()
        sent = writer.acknowledged()
        while sum(map(len, read)) < sum(map(len, sent.values())):
            read_and_commit()
        assert dict(enumerate(read)) == sent
        assert list(consumer.end_offsets(tps).values()) == [len(values) for values in read]


def test_with_too_few_in_sync_nothing_is_taken(cluster: Cluster, terminal: Terminal) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        writer.send(20)
        sent = writer.acknowledged()
    for node in (1, 2):
        cluster.kill(node)
        cluster.expire(node)
    wait_until(lambda: all(one.leader == 3 for one in partitions(cluster, 3)))
    wait_until(lambda: all(list(one.isr) == [3] for one in partitions(cluster, 3)))
    only = cluster.nodes[3].bootstrap_servers
    terminal.use(only)
    nodes = json.loads(terminal.run("cluster", "nodes", "--json")[1])
    assert [(node["node_id"], node["state"], node["copies"]) for node in nodes] == [(1, "down", 7), (2, "down", 7), (3, "up", 7)]
    settings = {"bootstrap.servers": only, "delivery.timeout.ms": 3_000, "request.timeout.ms": 1_000, "enable.idempotence": False}
    with Producer(settings) as producer:
        future = producer.send("orders", b"refused", partition=0)
        text = r"1 of 3 replicas are in sync, fewer than min\.insync\.replicas \(2\)"
        with pytest.raises(DeliveryTimeoutError, match=text):
            future.result(DEADLINE_S)
    cluster.restart(1)
    cluster.restart(2)
    in_sync(cluster, *NODES)
    read_all(cluster, sent)


def test_a_transaction_survives_its_coordinator(cluster: Cluster) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "t", "retry.backoff.max.ms": 100}
    with client_of(cluster.bootstrap_servers) as client:
        wait_until(lambda: client.find_coordinator() in NODES)
    with Producer(settings) as producer:
        for number in range(3):
            with client_of(cluster.bootstrap_servers) as client:
                coordinator = client.find_coordinator()
            with producer.transaction():
                for partition in range(PARTITIONS):
                    producer.send("orders", b"%d" % number, partition=partition)
                producer.flush()
                cluster.kill(coordinator)
                cluster.expire(coordinator)
            cluster.restart(coordinator)
            in_sync(cluster, *NODES)
    rows = cluster.topic("orders").rows()
    assert sorted(row.value for row in rows if row.value is not None) == sorted(
        b"%d" % n for n in range(3) for _ in range(PARTITIONS)
    )


def test_a_node_that_stops_hands_over_first(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        for node in NODES:
            writer.send(50)
            cluster.restart(node)
            writer.send(50)
            writer.acknowledged()  # without waiting for a lease
            in_sync(cluster, *NODES)
        sent = writer.acknowledged()
    read_all(cluster, sent)
    same_logs(cluster)


def test_an_outage_of_the_store_that_outlasts_the_registrations_stops_no_copies() -> None:
    with Cluster(3, {**SETTINGS, "broker.session.timeout.ms": 8_000}) as cluster:
        cluster.create_topic("orders", PARTITIONS)
        in_sync(cluster, *NODES)
        with producer_of(cluster) as producer:
            writer = Writer(producer)
            writer.send(50)
            cluster.stop_coordination()
            ended = "the registration of node"
            wait_until(lambda: all(ended in node.log for node in cluster.nodes.values()), what="all registrations have ended")
            writer.send(50)
            writer.acknowledged()
            cluster.start_coordination()
            in_sync(cluster, *NODES)
            writer.send(50)
            sent = writer.acknowledged()
        read_all(cluster, sent)
        same_logs(cluster)
