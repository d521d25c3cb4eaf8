"""Goal: an operator adds replicas, moves partitions and leaders between nodes, and drains a node, while clients run; nothing
acknowledged is lost, and a node removes the replicas that it gives up. Method: the command line, and four real nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd import Consumer, Producer, TopicPartition
from brokerd.errors import InvalidReplicationFactorError, InvalidRequestError
from brokerd.testing import Cluster
from brokerd.wire.v1.metadata_pb2 import PartitionMetadata
from tests.integration.conftest import Terminal
from tests.integration.test_cluster import client_of
from tests.support.wait import DEADLINE_S, wait_until

pytestmark = pytest.mark.xdist_group("test_cluster_moves.py")  # one cluster for all


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Four nodes; two of them hold the coordinator's log."""
    settings = {"default.replication.factor": 2, "broker.session.timeout.ms": 600_000}  # a suspended node stays alive
    with Cluster(4, settings) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _bootstrap(cluster: Cluster, terminal: Terminal) -> None:
    terminal.use(cluster.bootstrap_servers)


def partitions(cluster: Cluster, topic: str) -> list[PartitionMetadata]:
    """A topic's partitions, from some node's metadata."""
    with client_of(cluster.bootstrap_servers) as client:
        return list(client.describe_cluster([topic]).topics[0].partitions)


def copies(cluster: Cluster, node: int, topic: str = "") -> list[str]:
    """The directories of a topic's partitions on a node; of all topics by default."""
    topic_id = ""
    if topic:
        with client_of(cluster.bootstrap_servers) as client:
            topic_id = client.metadata([topic]).topic(topic).topic_id.hex()
    return [path.name for path in (cluster.nodes[node].directory / "data").glob(f"{topic_id}*-*") if path.is_dir()]


def test_topics_get_as_many_copies_as_asked(cluster: Cluster, terminal: Terminal) -> None:
    assert (
        terminal.run("topics", "create", "three", "-p", "4", "-r", "3")[1]
        == "created topic 'three' with 4 partitions, each on 3 nodes\n"
    )
    info = terminal.run("info", "--json")[1]
    assert json.loads(info)["cluster_name"] == "testing"
    assert f" of cluster testing ({json.loads(info)['cluster_id']})\n" in terminal.run("info")[1]
    assert f"cluster testing ({json.loads(info)['cluster_id']}): 4 nodes" in terminal.run("cluster", "status")[1]
    assert terminal.run("topics", "create", "default", "-r", "0")[1] == "created topic 'default' with 1 partition\n"
    cluster.create_topic("one", 2, replication_factor=1)
    for name, count in (("three", 3), ("default", 2), ("one", 1)):
        assert {len(one.replicas) for one in partitions(cluster, name)} == {count}
        assert all(one.isr == one.replicas and not one.target for one in partitions(cluster, name))
    long = [line.split() for line in terminal.run("topics", "list", "--long")[1].splitlines()]
    assert long[0] == ["TOPIC", "PARTITIONS", "REPLICAS", "BEHIND", "OFFSETS", "SIZE"]
    assert {line[0]: line[1:4] for line in long[1:]} == {
        "three": ["4", "3", "0"],
        "default": ["1", "2", "0"],
        "one": ["2", "1", "0"],
    }
    too_few = "topic 'few' has 1 copy, fewer than min.insync.replicas=4: acks=all waits for all of them\n"
    code, _, err = terminal.run("topics", "create", "few", "-r", "1", "--config", "min.insync.replicas=4")
    assert (code, err) == (0, too_few)
    altered = [terminal.run("topics", "alter", "few", "--config", f"min.insync.replicas={least}")[2] for least in (1, 4)]
    assert altered == ["", too_few]
    terminal.run("topics", "delete", "few")
    first = partitions(cluster, "three")[0]
    described = terminal.run("topics", "describe", "three")[1].splitlines()
    assert described[2].split()[-3:] == [str(first.leader), *[",".join(map(str, first.replicas))] * 2]
    (document,) = json.loads(terminal.run("topics", "describe", "three", "--json")[1])
    assert document["partitions"][0]["replicas"] == list(first.replicas)


def test_more_copies_than_nodes_are_refused(cluster: Cluster, terminal: Terminal) -> None:
    text = "topic 'five' cannot have a replication factor of 5: 4 nodes of the cluster are alive"
    for more in ([], ["--dry-run"]):
        code, out, err = terminal.run("topics", "create", "five", "-r", "5", *more)
        assert (code, out, err.endswith(f"brokerd: {text}\n")) == (1, "", True)
    assert "--replication-factor must be at most 32, not 33" in terminal.run("topics", "create", "many", "-r", "33")[2]
    with pytest.raises(InvalidReplicationFactorError, match="replication factor of 5"):
        cluster.create_topic("five", 1, replication_factor=5)


def test_a_partition_moves_while_it_is_written_and_read(cluster: Cluster, terminal: Terminal) -> None:
    cluster.create_topic("moving", 1, {"min.insync.replicas": "2"}, replication_factor=1)
    (before,) = partitions(cluster, "moving")
    others = [node for node in cluster.nodes if node != before.leader][:2]
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "auto.offset.reset": "earliest"}
    with (
        Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "retry.backoff.max.ms": 100}) as producer,
        Consumer(settings) as consumer,
    ):
        sent = [producer.send("moving", b"%d" % number) for number in range(200)]
        consumer.assign([TopicPartition("moving", 0)])
        read: list[bytes] = []

        def has_read_all() -> bool:
            read.extend(record.value or b"" for record in consumer.poll(20))
            return len(read) >= len(sent)

        def go_on() -> None:
            sent.append(producer.send("moving", b"%d" % len(sent)))
            sent[-1].result(DEADLINE_S)
            has_read_all()

        for replicas in (others, [before.leader]):
            wanted = ",".join(map(str, replicas))
            code, out, _ = terminal.run("cluster", "reassign", "moving", "0", "--replicas", wanted)
            assert (code, out) == (0, f"moving-0 moves to node{'s' if len(replicas) > 1 else ''} {wanted}\n")

            def is_done(replicas: list[int] = replicas) -> bool:
                go_on()
                (now,) = partitions(cluster, "moving")
                return list(now.replicas) == list(now.isr) == replicas and now.leader == replicas[0] and not now.target

            wait_until(is_done)
            for node in {before.leader, *others} - set(replicas):
                wait_until(lambda node=node: not copies(cluster, node, "moving"), what=f"node {node} has removed its copy")  # type: ignore[misc]
            assert all(copies(cluster, node, "moving") for node in replicas)
        wait_until(has_read_all)
    assert read == [b"%d" % number for number in range(len(sent))], "each record once, in order"


def test_a_log_whose_records_are_all_deleted_keeps_its_offsets_and_its_producers(cluster: Cluster, terminal: Terminal) -> None:
    """The new replicas have no record that states them, and are killed at once."""
    cluster.create_topic("emptied", 1, {"min.insync.replicas": "2"}, replication_factor=2)
    (before,) = partitions(cluster, "emptied")
    others = [node for node in cluster.nodes if node not in before.replicas]
    tp = TopicPartition("emptied", 0)
    with Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "retry.backoff.max.ms": 100}) as producer:
        for number in range(5):
            producer.send("emptied", b"%d" % number).result(DEADLINE_S)
        assert terminal.run("topics", "trim", "emptied", "--before", "5")[0] == 0
        assert terminal.run("cluster", "reassign", "emptied", "0", "--replicas", ",".join(map(str, others)), "--wait")[0] == 0
        for node in others:
            cluster.kill(node)
        for node in others:
            cluster.restart(node)
        assert producer.send("emptied", b"5").result(DEADLINE_S).offset == 5
    with Consumer({"bootstrap.servers": cluster.bootstrap_servers}) as consumer:
        assert (consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]) == (5, 6)


def test_a_node_that_is_added_again_is_not_taken_for_what_it_was(cluster: Cluster, terminal: Terminal) -> None:
    topic = cluster.create_topic("again", 1, replication_factor=2)
    first, second = partitions(cluster, "again")[0].replicas
    topic.append([b"a", b"b", b"c"])
    assert terminal.run("cluster", "reassign", "again", "0", "--replicas", str(first), "--wait")[0] == 0
    assert terminal.run("cluster", "reassign", "again", "0", "--replicas", f"{second},{first}", "--wait")[0] == 0
    wait_until(lambda: cluster.leader("again", 0) == second)  # the cluster's own client may ask a node that hears of it later
    assert [row.value for row in topic.rows()] == [b"a", b"b", b"c"]


def test_a_leader_moves_and_a_move_stops(cluster: Cluster, terminal: Terminal) -> None:
    topic = cluster.create_topic("led", 1, replication_factor=3)
    with client_of(cluster.bootstrap_servers) as client:
        one = client.describe_cluster().controller_id  # the controller must not be suspended, or nothing would move
    two, three, outside = set(cluster.nodes) - {one}
    assert terminal.run("cluster", "reassign", "led", "0", "--replicas", f"{one},{two},{three}", "--wait")[0] == 0
    assert terminal.run("cluster", "move-leader", "led", "0", str(three), "--wait")[:2] == (0, f"led-0 is led by node {three}\n")
    topic.append([b"row"])
    code, out, _ = terminal.run("cluster", "move-leader", "led", "0", str(two), "--wait", "--json")
    assert (code, json.loads(out)) == (0, {"topic": "led", "partition": 0, "target": [two, three, one], "is_done": True})
    with client_of(cluster.bootstrap_servers) as client:  # as if it had been moved meanwhile
        now = f"led-0 is on nodes {two}, {three}, {one}, or moves there, not on nodes {one}, {two}: look where it is now"
        with pytest.raises(InvalidRequestError, match=now):
            client.reassign_partition("led", 0, [one, two], is_order_only=True)
    has_no_copy = f"node {outside} has no copy of led-0, which is on {two},{three},{one}: give it one with"
    assert has_no_copy in terminal.run("cluster", "move-leader", "led", "0", str(outside))[2]
    cluster.pause(outside)
    try:
        assert terminal.run("cluster", "reassign", "led", "0", "--replicas", str(outside))[0] == 0
        waiting = terminal.run("cluster", "reassign", "led", "0", "--replicas", str(outside), "--wait", "--timeout-ms", "300")
        assert waiting[:2] == (1, "")
        assert "brokerd: not done within 300 ms, and going on: led-0: " in waiting[2]
        wait_until(lambda: f"{two},{three},{one},{outside} -> {outside}" in terminal.run("cluster", "status", "led")[1])
        assert "0 below" not in terminal.run("cluster", "status", "led")[1]
        assert terminal.run("cluster", "reassign", "led", "0", "--stop", "--wait")[:2] == (0, "led-0 stays where it is\n")
        wait_until(lambda: list(partitions(cluster, "led")[0].replicas) == [two, three, one])
    finally:
        cluster.resume(outside)
    wait_until(lambda: not copies(cluster, outside, "led"))
    wait_until(lambda: "removed the copy of partition led-0: this node" in cluster.nodes[outside].log)
    log = "".join(node.log for node in cluster.nodes.values())
    assert f"moved the lead of partition 'led-0' to node {three} " in log
    assert f"moved partition 'led-0' to node {outside} " in log
    assert "leads 1 partition from now on: led-0" in log
    assert [row.value for row in topic.rows()] == [b"row"]


def test_preferred_leaders_lead_again(cluster: Cluster, terminal: Terminal) -> None:
    cluster.create_topic("balanced", 4, replication_factor=2)
    before = [one.leader for one in partitions(cluster, "balanced")]
    cluster.restart(before[0])  # it hands over its partitions
    wait_until(lambda: all(len(one.isr) == 2 for one in partitions(cluster, "balanced")))
    moved = [f"balanced-{n} is led by node {before[0]}" for n in range(4) if before[n] == before[0]]
    code, out, _ = terminal.run("cluster", "elect-leaders", "balanced", "--wait")
    assert (code, out.splitlines()) == (0, moved)
    assert [one.leader for one in partitions(cluster, "balanced")] == before
    code, out, _ = terminal.run("cluster", "elect-leaders", "balanced")
    assert (code, out) == (0, "every partition is led by its preferred leader\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["reassign", "wrong", "0", "--replicas", "1,77"],
            "node 77 cannot get a copy: it is not alive, but nodes 1, 2, 3, 4 are (see 'brokerd cluster nodes')",
        ),
        (["reassign", "wrong", "3", "--replicas", "1"], "topic 'wrong' has partitions 0 to 0, not 3"),
        (["reassign", "wrogn", "0", "--replicas", "1"], "there is no topic 'wrogn': did you mean 'wrong'?"),
        (["move-leader", "wrong", "3", "1"], "topic 'wrong' has partitions 0 to 0, not 3"),
        (["drain", "77"], "node 77 has no partition, and is not alive: 'brokerd cluster nodes' prints the nodes that are"),
    ],
)
def test_what_cannot_be_moved(cluster: Cluster, terminal: Terminal, words: list[str], text: str) -> None:
    terminal.run("topics", "create", "wrong", "--if-not-exists")
    code, out, err = terminal.run("cluster", *words)
    assert (code, out, err.endswith(f"brokerd: {text}\n")) == (1, "", True)


def test_a_node_is_emptied_and_may_go(cluster: Cluster, terminal: Terminal) -> None:
    topic = cluster.create_topic("kept", 8, replication_factor=2)
    topic.append([{"key": b"%d" % number, "value": b"v"} for number in range(100)])
    with client_of(cluster.bootstrap_servers) as client:
        victim = client.find_coordinator()
    would = terminal.run("cluster", "drain", str(victim), "--dry-run")[1]
    first, *going = would.splitlines()
    assert first == f"node {victim}: {len(going)} partitions would move to other nodes"
    assert "  __coordinator-0 would move" in going
    assert not any(one.target for one in partitions(cluster, "kept"))
    code, out, _ = terminal.run("cluster", "drain", str(victim), "--wait", "--json")
    drained: dict[str, Any] = json.loads(out)
    nothing = {"moving": 0, "staying": [], "staying_count": 0, "waiting": [], "waiting_count": 0}
    assert (code, drained) == (0, {"node_id": victim, **nothing})
    wait_until(lambda: not copies(cluster, victim), what="its directory is empty")
    assert all(victim not in one.replicas and len(one.isr) == 2 for one in partitions(cluster, "kept"))
    assert len(topic.rows()) == 100
    with client_of(cluster.bootstrap_servers) as client:
        wait_until(lambda: client.find_coordinator() not in (victim, -1))
    with Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g"}) as consumer:
        consumer.assign([TopicPartition("kept", 0)])
        consumer.commit()
    terminal.run("topics", "create", "everywhere", "-r", "4")
    code, out, err = terminal.run("cluster", "drain", str(victim))
    line = "  everywhere-0 stays: every other node that is alive has it already\n"
    assert (code, out) == (1, f"node {victim}: 0 partitions move to other nodes\n{line}")
    assert "give it fewer copies with 'brokerd cluster reassign', or add a node first" in err


def test_the_log_of_transactions_and_groups_is_shown_and_moved(cluster: Cluster, terminal: Terminal) -> None:
    def log() -> dict[str, Any]:
        (found,) = json.loads(terminal.run("cluster", "status", "__coordinator", "--json")[1])["partitions"]
        return dict(found)

    with client_of(cluster.bootstrap_servers) as client:
        client.find_coordinator()  # creates the log
    wait_until(lambda: len(log()["isr"]) == 2)
    assert any(line.split()[:2] == ["__coordinator", "0"] for line in terminal.run("cluster", "status")[1].splitlines())
    first, second = log()["replicas"]
    assert terminal.run("cluster", "move-leader", "__coordinator", "0", str(second), "--wait")[0] == 0
    assert log()["leader"] == second
    # A replica is removed from a node, as a damaged one is, and the log grows back to two replicas.
    code, out, _ = terminal.run("cluster", "reassign", "__coordinator", "0", "--replicas", str(second), "--wait")
    assert (code, out) == (0, f"__coordinator-0 is on node {second}\n")
    wait_until(lambda: len(log()["isr"]) == 2)
    assert log()["leader"] == second
    spare = next(node for node in cluster.nodes if node not in (first, second))
    assert terminal.run("cluster", "reassign", "__coordinator", "0", "--replicas", f"{second},{spare}", "--wait")[0] == 0
    assert "there is no topic" in terminal.run("topics", "delete", "__coordinator")[2]
