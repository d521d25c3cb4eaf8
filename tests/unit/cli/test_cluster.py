"""Goal: what `brokerd cluster` prints of several nodes: roles, racks, partitions without a leader or behind."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from brokerd.cli import cluster as command
from brokerd.cli.parser import parse
from brokerd.errors import NotLeaderError
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import metadata_pb2 as pb
from tests.support.fake_broker import FakeBroker, fake_cluster

NO_LEADER = NotLeaderError("no leader at present")


def answer(broker: FakeBroker) -> None:
    """Two nodes; a healthy partition, one that is behind, one without a leader."""
    nodes = [pb.Node(node_id=1, host="one", port=1, rack="east"), pb.Node(node_id=2, host="::1", port=2)]
    partitions = [
        pb.PartitionMetadata(partition=0, leader=1, leader_epoch=4, replicas=[1, 2], isr=[1, 2]),
        pb.PartitionMetadata(partition=1, leader=2, leader_epoch=5, replicas=[2, 1], isr=[2]),
        pb.PartitionMetadata(partition=2, leader=-1, leader_epoch=6, replicas=[2, 1], isr=[2], error=to_proto(NO_LEADER)),
    ]
    topics = [pb.TopicMetadata(name="t", topic_id=bytes(16), partitions=partitions)]
    response = pb.MetadataResponse(cluster_id="c", nodes=nodes, topics=topics, controller_id=-1)
    for name, given in (("Metadata", response), ("FindCoordinator", pb.FindCoordinatorResponse(coordinator=nodes[1]))):
        setattr(broker, f"_{name}", lambda _, given=given: given)


def run(broker: FakeBroker, *words: str) -> None:
    args: argparse.Namespace = parse([*words, "-b", f"127.0.0.1:{broker.port}"])
    getattr(command, args.run.split(".")[1])(args)


def test_status_for_people(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer(broker)
    run(broker, "cluster", "status")
    assert capsys.readouterr().out == (
        "cluster c: 2 nodes, 3 partitions, 1 without a leader, 2 with replicas that are not in sync\n"
        "  NODE  ADDRESS  RACK  ROLE\n"
        "     1  one:1    east  -\n"
        "     2  [::1]:2  -     coordinator\n"
        "  TOPIC  PARTITION  LEADER  EPOCH  REPLICAS  ISR\n"
        "  t              0  1           4  1,2       1,2\n"
        "  t              1  2           5  2,1       2\n"
        "  t              2  -           6  2,1       2\n"
        "  t-2: no leader at present\n"
    )


def test_status_for_programs(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer(broker)
    run(broker, "cluster", "status", "--json")
    status: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (status["cluster_id"], status["controller_id"], status["coordinator_id"]) == ("c", None, 2)
    assert [node["rack"] for node in status["nodes"]] == ["east", None]
    assert [node["is_coordinator"] for node in status["nodes"]] == [False, True]
    last = status["partitions"][-1]
    assert (last["leader"], last["leader_epoch"], last["replicas"], last["isr"]) == (None, 6, [2, 1], [2])
    assert last["error"] == "no leader at present"


def test_nodes_are_printed_while_there_is_no_coordinator(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cluster() as cluster:
        cluster.elect_coordinator(None)
        run(cluster.nodes[0], "cluster", "nodes")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert not any("coordinator" in line for line in lines)
