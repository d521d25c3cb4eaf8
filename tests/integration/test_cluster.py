"""Goal: three nodes, as real processes, serve a topic's partitions together. A fault of one affects only its own partitions:
nothing acknowledged is lost, and the others continue.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from brokerd import Consumer, Producer, TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from brokerd.errors import NotReadyError
from brokerd.ids import NO_LEADER, TopicInfo
from brokerd.producer.futures import RecordFuture
from brokerd.testing import Cluster
from tests.support.child import ROOT
from tests.support.clock import HastyClock
from tests.support.wait import DEADLINE_S, wait_until

PARTITIONS = 6
LEADERS = [1, 2, 3, 1, 2, 3]
KEYS = 50
_QUICK: dict[str, object] = {
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.max.ms": 100,
    "linger.ms": 1,
    "max.in.flight.batches.per.partition": 5,
    "delivery.timeout.ms": 60_000,
}

Sent = dict[int, list[bytes]]  # values by partition, in their order


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes with the topic `orders`."""
    with Cluster() as cluster:
        cluster.create_topic("orders", PARTITIONS)
        yield cluster


@contextmanager
def client_of(servers: str) -> Iterator[BlockingClient]:
    with BlockingClient(ClientConfig(bootstrap_servers=servers, api_timeout_ms=30_000)) as client:
        yield client


def seen_by(cluster: Cluster, node: int, topic: str = "orders") -> TopicInfo:
    """A topic in one node's metadata."""
    with client_of(cluster.nodes[node].bootstrap_servers) as client:
        return client.metadata([topic]).topic(topic)


def wait_for_leaders(cluster: Cluster, leaders: list[int], by: Iterable[int]) -> None:
    """Waits until all these nodes return these leaders."""
    for node in by:
        wait_until(lambda node=node: list(seen_by(cluster, node).leaders) == leaders, what=f"node {node} tells {leaders}")  # type: ignore[misc]


def without(node: int) -> list[int]:
    """The leaders of `orders`, with none for one node's partitions."""
    return [NO_LEADER if leader == node else leader for leader in LEADERS]


def producer_of(cluster: Cluster, **settings: object) -> Producer:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, **_QUICK, **given})


class Writer:
    """Sends numbered records with keys, and records their acknowledgements."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._number = 0
        self._futures: list[tuple[bytes, RecordFuture]] = []

    def send(self, count: int, partitions: Iterable[int] = range(PARTITIONS)) -> list[RecordFuture]:
        """Sends `count` records to each of these partitions."""
        futures = []
        for _ in range(count):
            for partition in partitions:
                value = b"%d" % self._number
                future = self._producer.send("orders", value, key=b"%d" % (self._number % KEYS), partition=partition)
                self._number += 1
                self._futures.append((value, future))
                futures.append(future)
        return futures

    def acknowledged(self) -> Sent:
        """All values sent; waits for their acknowledgements."""
        found: dict[int, dict[int, bytes]] = defaultdict(dict)
        for value, future in self._futures:
            metadata = future.result(DEADLINE_S)
            assert metadata.offset not in found[metadata.partition], "two records at one offset"
            found[metadata.partition][metadata.offset] = value
        return {partition: [values[offset] for offset in sorted(values)] for partition, values in found.items()}


def read_all(cluster: Cluster, sent: Sent) -> None:
    """Asserts that a fresh consumer reads exactly the acknowledged values, each partition in order."""
    expected = sum(map(len, sent.values()))
    found: Sent = defaultdict(list)
    with Consumer({"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("orders", partition) for partition in range(PARTITIONS)])
        ends = consumer.end_offsets([TopicPartition("orders", partition) for partition in range(PARTITIONS)])
        assert sum(ends.values()) == expected
        while sum(map(len, found.values())) < expected:
            for record in consumer.poll(int(DEADLINE_S * 1000)):
                assert record.value is not None
                found[record.partition].append(record.value)
    assert found == sent
    assert all(values == sorted(values, key=int) for values in found.values()), "as they were sent"


def test_topics_are_spread_and_every_node_tells_and_changes_them(cluster: Cluster) -> None:
    for node in cluster.nodes:
        assert list(seen_by(cluster, node).leaders) == LEADERS
        with client_of(cluster.nodes[node].bootstrap_servers) as client:
            client.create_topic(f"by-{node}", 3)
            client.create_partitions(f"by-{node}", 5)
    for node in cluster.nodes:
        wait_until(lambda node=node: _topics(cluster, node) == {"orders": 6, "by-1": 5, "by-2": 5, "by-3": 5})  # type: ignore[misc]
    with client_of(cluster.nodes[3].bootstrap_servers) as client:
        client.delete_topics(["by-1"])
    for node in cluster.nodes:
        wait_until(lambda node=node: _topics(cluster, node) == {"orders": 6, "by-2": 5, "by-3": 5})  # type: ignore[misc]


def _topics(cluster: Cluster, node: int) -> Mapping[str, int]:
    with client_of(cluster.nodes[node].bootstrap_servers) as client:
        return {name: topic.partition_count for name, topic in client.metadata().topics.items()}


def test_producers_and_consumers_work_over_all_leaders(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        writer.send(500)
        sent = writer.acknowledged()
    assert {len(values) for values in sent.values()} == {500}
    read_all(cluster, sent)


def test_any_node_alone_leads_a_client_to_all(cluster: Cluster) -> None:
    with Producer({"bootstrap.servers": cluster.nodes[2].bootstrap_servers, **_QUICK}) as producer:
        writer = Writer(producer)
        writer.send(10)
        sent = writer.acknowledged()
    read_all(cluster, sent)


def test_a_node_that_is_killed_concerns_its_partitions_alone(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        writer.send(100)
        writer.acknowledged()
        cluster.kill(2)
        cluster.expire(2)
        wait_for_leaders(cluster, without(2), [1, 3])
        for future in writer.send(100, [0, 2, 3, 5]):  # the other partitions accept records
            future.result(DEADLINE_S)
        waiting = writer.send(100, [1, 4])
        with client_of(cluster.nodes[3].bootstrap_servers) as client:
            client.create_topic("meanwhile", 4)
        wait_until(lambda: "meanwhile" in _topics(cluster, 1))  # another node learns of it a moment later
        assert set(seen_by(cluster, 1, "meanwhile").leaders) == {1, 3}
        assert not any(future.done() for future in waiting)
        cluster.restart(2)
        wait_for_leaders(cluster, LEADERS, [1, 2, 3])
        sent = writer.acknowledged()
    assert len(sent[1]) == len(sent[0]) == 200
    read_all(cluster, sent)
    wait_until(lambda: "meanwhile" in _topics(cluster, 2))


def test_all_nodes_are_killed_and_come_back(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        writer.send(100)
        writer.acknowledged()
        for node in cluster.nodes:
            cluster.kill(node)
        writer.send(100)
        for node in cluster.nodes:
            cluster.restart(node)
        sent = writer.acknowledged()
    wait_for_leaders(cluster, LEADERS, cluster.nodes)
    read_all(cluster, sent)


def test_a_node_whose_lease_ended_while_it_was_suspended_comes_back(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        writer.send(100)
        writer.acknowledged()
        epochs = seen_by(cluster, 1).leader_epochs
        cluster.pause(2)
        waiting = writer.send(100, [1, 4])
        wait_for_leaders(cluster, without(2), [1, 3])  # after its lease has expired
        for future in writer.send(100, [0, 2, 3, 5]):
            future.result(DEADLINE_S)
        assert not any(future.done() for future in waiting)
        cluster.resume(2)
        wait_for_leaders(cluster, LEADERS, cluster.nodes)
        sent = writer.acknowledged()
    later = seen_by(cluster, 2).leader_epochs
    assert [now > before for now, before in zip(later, epochs, strict=True)] == [leader == 2 for leader in LEADERS]
    read_all(cluster, sent)


def test_an_isolated_node_serves_its_clients_and_is_reconciled(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        writer.send(10)
        writer.acknowledged()
        cluster.isolate(3)
        cluster.expire(3)
        wait_for_leaders(cluster, without(3), [1, 2])
        with client_of(cluster.nodes[1].bootstrap_servers) as client:
            client.create_topic("meanwhile", 2)
        assert "meanwhile" not in _topics(cluster, 3)
        writer.send(100)
        cluster.heal(3)
        wait_for_leaders(cluster, LEADERS, cluster.nodes)
        sent = writer.acknowledged()
    wait_until(lambda: "meanwhile" in _topics(cluster, 3))
    read_all(cluster, sent)


def test_a_commit_of_rows_in_a_topic_that_the_coordinator_has_not_heard_of(cluster: Cluster) -> None:
    with client_of(cluster.bootstrap_servers) as client:
        coordinator = client.find_coordinator()
    servers = cluster.nodes[coordinator % 3 + 1].bootstrap_servers
    for topic in ("new", "newer"):  # the coordinator counts the first topic again, and its markers are written late
        cluster.isolate(coordinator)
        with client_of(servers) as client:
            client.create_topic(topic, 3)
            partition = next(number for number in range(3) if client.metadata([topic]).topic(topic).leaders[number] != coordinator)
        with (
            Producer({"bootstrap.servers": servers, "transactional.id": topic, "retry.backoff.max.ms": 100}) as producer,
            ThreadPoolExecutor(1) as pool,
        ):
            transaction = producer.transaction()
            transaction.__enter__()
            producer.send(topic, b"row", partition=partition)
            ended = pool.submit(transaction.__exit__, None, None, None)
            try:
                with pytest.raises(TimeoutError):
                    ended.result(1)
            finally:
                cluster.heal(coordinator)
            ended.result(DEADLINE_S)
        assert len(cluster.topic(topic).rows()) == 1


def test_a_group_that_reads_a_topic_that_the_coordinator_has_not_heard_of(cluster: Cluster) -> None:
    with client_of(cluster.bootstrap_servers) as client:
        coordinator = client.find_coordinator()
    servers = cluster.nodes[coordinator % 3 + 1].bootstrap_servers
    cluster.isolate(coordinator)
    with client_of(servers) as client:
        client.create_topic("new", 3)
        partition = next(number for number in range(3) if client.metadata(["new"]).topic("new").leaders[number] != coordinator)
    with Producer({"bootstrap.servers": servers, "enable.idempotence": False}) as producer:
        producer.send("new", b"row", partition=partition)
    settings = {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer(settings) as consumer, ThreadPoolExecutor(1) as pool:
        consumer.assign([TopicPartition("new", partition)])
        polled = pool.submit(consumer.poll, int(DEADLINE_S * 1000))
        try:
            with pytest.raises(TimeoutError):
                polled.result(1)
        finally:
            cluster.heal(coordinator)
        assert [record.value for record in polled.result(DEADLINE_S)] == [b"row"]
        consumer.commit()


def test_without_coordination_clients_go_on_and_topics_stay_as_they_are(cluster: Cluster) -> None:
    with producer_of(cluster) as producer:
        writer = Writer(producer)
        writer.send(10)
        writer.acknowledged()
        cluster.stop_coordination()
        writer.send(100)
        read_all(cluster, writer.acknowledged())
        text = r"does not answer .*: topics cannot be changed at present"
        config = ClientConfig(bootstrap_servers=cluster.nodes[2].bootstrap_servers)
        with BlockingClient(config, HastyClock(step_ms=40_000)) as client, pytest.raises(NotReadyError, match=text):
            client.create_topic("new", 3)  # the node waits for coordination for some seconds before it answers
        cluster.start_coordination()  # the last attempt may still take effect, since its fate was unknown
        assert cluster.create_topic("after", 3).name == "after"
        writer.send(100)
        sent = writer.acknowledged()
    for node in cluster.nodes:
        wait_until(lambda node=node: set(_topics(cluster, node)) - {"new"} == {"orders", "after"})  # type: ignore[misc]
    read_all(cluster, sent)


@pytest.mark.parametrize("has_etcd", [True, False])
def test_the_example_for_one_machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, *, has_etcd: bool) -> None:
    port = 20_000 + os.getpid() % 500 * 20  # below the ephemeral ports
    path = os.environ["PATH"] if has_etcd else str(without_etcd(tmp_path_factory.mktemp("bin")))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{path}", "TMPDIR": str(tmp_path)}
    command = [str(ROOT / "examples" / "cluster.sh"), str(port)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--- node 2 is back, and all of the 1000 records were read" in done.stdout
    assert list(tmp_path.iterdir()) == []


def without_etcd(directory: Path) -> Path:
    """A directory with all commands but etcd."""
    for each in map(Path, os.environ["PATH"].split(os.pathsep)):
        for command in each.iterdir() if each.is_dir() else ():
            if command.name != "etcd" and not (directory / command.name).is_symlink():
                (directory / command.name).symlink_to(command)
    return directory
