"""Goal: after the last in-sync node lost its disk, an operator makes an older replica lead; its records are readable, and work
continues. A former replica that comes back with more records keeps them. Method: the command line, and three real nodes.
"""

from __future__ import annotations

import json
import shutil

import pytest

from brokerd import Consumer, Producer, TopicPartition
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import OutOfOrderSequenceError
from brokerd.ids import NO_LEADER
from brokerd.testing import Cluster
from tests.integration.conftest import Terminal
from tests.integration.test_cluster import PARTITIONS, Writer, producer_of, read_all
from tests.integration.test_cluster_replicas import NODES, SETTINGS, in_sync, logs, partitions, same_logs
from tests.support.wait import DEADLINE_S, wait_until


def kill(cluster: Cluster, *nodes: int) -> None:
    for node in nodes:
        cluster.kill(node)
        cluster.expire(node)


def test_the_last_in_sync_loses_its_disk_and_the_others_have_everything(terminal: Terminal) -> None:
    topics = {"orders": PARTITIONS, "moves": 1, COORDINATOR.name: 1}
    with Cluster(3, SETTINGS) as cluster, producer_of(cluster) as producer:
        terminal.use(cluster.bootstrap_servers)
        settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
        of_group, of_commits = {**settings, "group.id": "g"}, {**settings, "isolation.level": "read_committed"}
        move, order = TopicPartition("moves", 0), TopicPartition("orders", 0)
        for name in ("orders", "moves"):
            cluster.create_topic(name, topics[name])
        writer = Writer(producer)
        writer.send(50)
        writer.acknowledged()
        with Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "t"}) as mover:
            with mover.transaction():
                mover.send("moves", b"before")
            with Consumer(of_group) as consumer:
                consumer.commit({order: 20})
            in_sync(cluster, *NODES, topics=topics)
            kill(cluster, 1, 2)
            in_sync(cluster, 3, topics=topics)
            kill(cluster, 3)
            shutil.rmtree(cluster.nodes[3].directory / "data")
            writer.send(5)  # their fate is unknown until there are leaders again
            for node in NODES:
                cluster.restart(node)
            lost = (
                "they are on node 3's former directory; put it back, or accept the loss of what no other copy has ('brokerd cluster"
            )
            wait_until(lambda: terminal.run("cluster", "status")[1].count(lost) == PARTITIONS + 2)
            for name, count in topics.items():
                for number in range(count):
                    found = json.loads(terminal.run("cluster", "elect-unclean", name, str(number), "--dry-run", "--json")[1])
                    assert partitions(cluster, 1, name)[number].leader == NO_LEADER
                    code, out, err = terminal.run("cluster", "elect-unclean", name, str(number))
                    assert (code, out.splitlines()[0]) == (0, f"{name}-{number} is led by node {found['leader']}"), err
                    assert [copy["node_id"] for copy in found["copies"]] in ([1, 2], [2, 1]), (
                        "node 3 has no copy, not even an empty one"
                    )
                    code, _, err = terminal.run("cluster", "elect-unclean", name, str(number))
                    assert (code, "that is in sync is alive" in err) == (1, True)
            in_sync(cluster, *NODES, topics=topics)
            with Consumer(of_group) as consumer:
                committed = consumer.committed([order])[order]
                assert committed is not None
                assert committed.offset == 20
                consumer.commit({order: 30})
            with mover.transaction():
                mover.send("moves", b"after")
        writer.send(50)
        sent = writer.acknowledged()
        read_all(cluster, sent)
        with Consumer(of_commits) as consumer:
            consumer.assign([move])
            moved: list[bytes | None] = []
            while len(moved) < 2:
                moved += [record.value for record in consumer.poll(1_000)]
        assert moved == [b"before", b"after"]
        same_logs(cluster)


def test_a_former_copy_that_comes_back_and_has_more_loses_nothing(terminal: Terminal) -> None:
    settings = {**SETTINGS, "min.insync.replicas": 1}
    with (
        Cluster(3, settings) as cluster,
        producer_of(cluster) as before_the_loss,
        producer_of(cluster, enable_idempotence=False) as producer,
    ):
        terminal.use(cluster.bootstrap_servers)
        cluster.create_topic("orders", 1)

        def send(*numbers: int, by: Producer = producer) -> None:
            for future in [by.send("orders", b"%d" % number) for number in numbers]:
                future.result(DEADLINE_S)

        def has() -> list[bytes | None]:
            rows = sorted(cluster.topic("orders").rows(), key=lambda row: row.offset)
            return [row.value for row in rows]

        send(*range(20), by=before_the_loss)
        in_sync(cluster, *NODES)
        kill(cluster, 1, 2)
        in_sync(cluster, 3)
        send(*range(20, 30), by=before_the_loss)  # only node 3 has them
        kill(cluster, 3)
        cluster.restart(1)
        cluster.restart(2)
        wait_until(lambda: "they are on node 3, which is not alive; start it\n" in terminal.run("cluster", "status", "orders")[1])
        code, _, err = terminal.run("cluster", "reassign", "orders", "0", "--replicas", "1,2", "--wait")
        assert (code, "waits to move" in err) == (1, True)
        code, out, err = terminal.run("cluster", "elect-unclean", "orders", "0")
        assert code == 0, err
        lines = out.splitlines()
        assert lines[-2:] == [
            "  no copy on node 3, or no answer from there",
            "this copy ends at offset 20: what was acknowledged and is not in it is lost",
        ]
        with pytest.raises(OutOfOrderSequenceError):
            send(30, by=before_the_loss)  # the producer learns that records are lost
        send(*range(100, 150))
        in_sync(cluster, 1, 2)
        assert not partitions(cluster, 1, "orders")[0].target, "a move that began before would remove what only node 3 has"
        before = logs(cluster, 3)
        cluster.restart(3)
        refused = (
            "copying: orders-0 is not copied: orders-0: is not cut at offset 20, where the leader's log differs: an older copy"
        )
        wait_until(lambda: f" ERROR brokerd.server.replication.{refused}" in cluster.nodes[3].log)
        after = [b"%d" % number for number in (*range(20), *range(100, 150))]
        assert has() == after
        (name,) = [name for name in before if name in logs(cluster, 1) and not name.startswith(COORDINATOR.id.hex())]
        assert logs(cluster, 3)[name] == before[name]
        assert set(partitions(cluster, 1, "orders")[0].isr) == {1, 2}
        for nodes in ("1,2", "1,2,3"):
            code, _, err = terminal.run("cluster", "reassign", "orders", "0", "--replicas", nodes, "--wait")
            assert code == 0, err
        in_sync(cluster, *NODES)
        send(150)
        wait_until(lambda: logs(cluster, 3)[name] == logs(cluster, 1)[name])
        assert has() == [*after, b"150"]
