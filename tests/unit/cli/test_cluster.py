"""Output of `brokerd cluster`: nodes, roles and racks, offline and under-replicated partitions, and the progress of moves."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from brokerd.cli import cluster as command
from brokerd.cli import main
from brokerd.cli import topics as topics_command
from brokerd.cli.parser import UsageError, parse
from brokerd.client.blocking import BlockingClient
from brokerd.errors import ClientError, InvalidRequestError, NotLeaderError, TopicAuthorizationFailedError, WireError
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import metadata_pb2 as pb
from brokerd.wire.v1 import topics_pb2
from tests.support.fake_broker import FakeBroker, fake_cluster, unknown_partition

NO_LEADER = NotLeaderError("no leader at present")


def answer(broker: FakeBroker, **answers: Any) -> None:
    """Sets the broker's responses by method name: a message, or a function from the request to a message."""
    for name, given in answers.items():
        setattr(broker, f"_{name}", given if callable(given) else lambda _, given=given: given)


def metadata_of(broker: FakeBroker, *partitions: pb.PartitionMetadata) -> pb.MetadataResponse:
    """Metadata of a cluster of this one broker, with one topic."""
    nodes = [pb.Node(node_id=1, host="127.0.0.1", port=broker.port)]
    topic = pb.TopicMetadata(name="t", topic_id=b"t" * 16, partitions=partitions)
    return pb.MetadataResponse(cluster_id="c", nodes=nodes, topics=[topic])


def answer_for_two_nodes(broker: FakeBroker, *, is_cut_off: bool = False) -> None:
    """Two nodes; one healthy partition, one under-replicated, one without a leader."""
    nodes = [
        pb.Node(node_id=1, host="one", port=1, rack="east", feature_level=2),
        pb.Node(node_id=2, host="::1", port=2, feature_level=2),
    ]
    partitions = [
        pb.PartitionMetadata(partition=0, leader=1, leader_epoch=4, replicas=[1, 2], isr=[1, 2]),
        pb.PartitionMetadata(
            partition=1, leader=2, leader_epoch=5, replicas=[2, 1], isr=[2], under_replicated=True, under_min_isr=True
        ),
        pb.PartitionMetadata(
            partition=2,
            leader=-1,
            leader_epoch=6,
            replicas=[2, 1],
            isr=[2],
            target=[1, 3],
            under_replicated=True,
            error=to_proto(NO_LEADER),
        ),
    ]
    topics = [pb.TopicMetadata(name="t", topic_id=bytes(16), partitions=partitions)]
    response = pb.MetadataResponse(cluster_id="c", cluster_name="prod", nodes=nodes, topics=topics, controller_id=-1)
    response.is_cut_off = is_cut_off
    answer(broker, Metadata=response, FindCoordinator=pb.FindCoordinatorResponse(coordinator=nodes[1]))


def takes_moves(asked: list[topics_pb2.PartitionReassignment], **refused: WireError) -> Callable[[Any], Message]:
    """A handler that appends each reassignment to `asked`, and refuses those of the topics in `refused`."""

    def reassign(request: topics_pb2.AlterPartitionReassignmentsRequest) -> Message:
        (one,) = request.partitions
        asked.append(one)
        result = topics_pb2.PartitionReassignmentResult(name=one.name, partition=one.partition)
        if one.name in refused:
            result.error.CopyFrom(to_proto(refused[one.name]))
        return topics_pb2.AlterPartitionReassignmentsResponse(results=[result])

    return reassign


def run(broker: FakeBroker, *words: str) -> None:
    args: argparse.Namespace = parse([*words, "-b", f"127.0.0.1:{broker.port}"])
    getattr(command, args.run.split(".")[1])(args)


def test_status_for_people(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer_for_two_nodes(broker)
    run(broker, "cluster", "status")
    assert capsys.readouterr().out == (
        "cluster prod (c): 2 nodes, 3 partitions, 1 without a leader, 2 with replicas that are not in sync, "
        "1 below min.insync.replicas, 1 moving\n"
        "  NODE  ADDRESS  RACK  STATE  COPIES  LEVEL  ROLE\n"
        "     1  one:1    east  up          3      2  -\n"
        "     2  [::1]:2  -     up          3      2  coordinator\n"
        "  TOPIC  PARTITION  LEADER  EPOCH  REPLICAS    ISR\n"
        "  t              0  1           4  1,2         1,2\n"
        "  t              1  2           5  2,1         2 (too few)\n"
        "  t              2  -           6  2,1 -> 1,3  2\n"
        "  t-2: no leader at present\n"
    )


def test_nodes_that_are_down_or_whose_disks_refuse(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [pb.Node(node_id=2, host="two", port=2, feature_level=1), pb.Node(node_id=4, host="four", port=4, disk_refuses=True)]
    partitions = [
        pb.PartitionMetadata(partition=0, leader=2, leader_epoch=4, replicas=[3, 2], isr=[2]),
        pb.PartitionMetadata(partition=1, leader=2, leader_epoch=4, replicas=[2, 3, 1], isr=[2]),
    ]
    topics = [pb.TopicMetadata(name="t", topic_id=bytes(16), partitions=partitions)]
    response = pb.MetadataResponse(cluster_id="c", cluster_name="prod", nodes=nodes, topics=topics, controller_id=2)
    answer(broker, Metadata=response, FindCoordinator=pb.FindCoordinatorResponse(coordinator=nodes[0]))
    run(broker, "cluster", "nodes")
    assert capsys.readouterr().out == (
        "NODE  ADDRESS  RACK  STATE         COPIES  LEVEL  ROLE\n"
        "   1  -        -     down               1  -      -\n"
        "   2  two:2    -     up                 2  1      controller, coordinator\n"
        "   3  -        -     down               2  -      -\n"
        "   4  four:4   -     disk refuses       0  -      -\n"
    )
    run(broker, "cluster", "status")
    assert "cluster prod (c): 4 nodes (2 down), 2 partitions" in capsys.readouterr().out
    run(broker, "cluster", "nodes", "--json")
    one, *_, four = json.loads(capsys.readouterr().out)
    assert (one["node_id"], one["state"], one["copies"], one["host"], one["port"]) == (1, "down", 1, None, None)
    assert (four["state"], four["copies"], four["feature_level"]) == ("disk refuses", 0, None)


@pytest.mark.parametrize("what", ["status", "nodes"])
def test_an_answer_that_may_be_old_says_so(broker: FakeBroker, capsys: pytest.CaptureFixture[str], what: str) -> None:
    for is_cut_off in (False, True):
        answer_for_two_nodes(broker, is_cut_off=is_cut_off)
        run(broker, "cluster", what)
        assert ("the node that answered is cut off from etcd" in capsys.readouterr().out) is is_cut_off


def test_status_for_programs(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer_for_two_nodes(broker)
    run(broker, "cluster", "status", "--json")
    status: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (status["cluster_name"], status["cluster_id"]) == ("prod", "c")
    assert (status["controller_id"], status["coordinator_id"]) == (None, 2)
    assert [node["rack"] for node in status["nodes"]] == ["east", None]
    assert [node["is_coordinator"] for node in status["nodes"]] == [False, True]
    last = status["partitions"][-1]
    assert (last["leader"], last["leader_epoch"], last["replicas"], last["isr"]) == (None, 6, [2, 1], [2])
    assert last["error"] == "no leader at present"
    assert last["target"] == [1, 3]
    assert [one["under_min_isr"] for one in status["partitions"]] == [False, True, False]


@pytest.mark.parametrize(
    ("flags", "numbers"),
    [
        (["--under-replicated"], [1, 2]),
        (["--under-min-isr"], [1]),
        (["--unavailable"], [2]),
        (["--unavailable", "--under-replicated"], [1, 2]),
    ],
)
def test_status_of_some_partitions(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], flags: list[str], numbers: list[int]
) -> None:
    answer_for_two_nodes(broker)
    run(broker, "cluster", "status", "--json", *flags)
    assert [one["partition"] for one in json.loads(capsys.readouterr().out)["partitions"]] == numbers
    run(broker, "cluster", "status", *flags)
    assert "2 nodes, 3 partitions, 1 without" in capsys.readouterr().out, "the first line is of all"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["reassign", "t", "0", "--replicas", "1,x"], "--replicas takes node ids such as 1,2,3, not '1,x'"),
        (["reassign", "t", "0", "--replicas", "1,3000000000"], "--replicas takes node ids such as 1,2,3, not '1,3000000000'"),
        (["reassign", "t", "0", "--replicas", ""], "--replicas takes node ids such as 1,2,3, not ''"),
        (["reassign", "t", "0", "--replicas", "1,2,1"], "--replicas names a node twice in '1,2,1'"),
        (["reassign", "t", "0", "--replicas", "1", "--wait", "--timeout-ms=-7"], "--timeout-ms must not be negative, as -7 is"),
        (["reassign", "t", "0", "--stop", "--timeout-ms", "7"], "--timeout-ms says how long to --wait: give both"),
        (["move-leader", "t", "0", "1", "--timeout-ms", "7"], "--timeout-ms says how long to --wait: give both"),
        (["drain", "1", "--timeout-ms", "7"], "--timeout-ms says how long to --wait: give both"),
        (["drain", "-1"], "a node id is 0 or more, not -1"),
        (["drain", "1", "--dry-run", "--wait"], "--dry-run moves nothing that --wait could wait for"),
    ],
)
def test_a_wrong_command_is_a_sentence(broker: FakeBroker, words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)):
        run(broker, "cluster", *words)


def test_a_move_that_is_waited_for_says_what_is_left(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = pb.PartitionMetadata(partition=0, leader=1, replicas=[1, 2, 3], isr=[1, 2], target=[2, 3])
    done = pb.PartitionMetadata(partition=0, leader=2, replicas=[2, 3], isr=[2, 3])
    stages = [moving, moving, moving, done]
    monkeypatch.setattr(command, "_LOOK_S", 0)
    asked: list[topics_pb2.PartitionReassignment] = []

    def metadata(_request: object) -> Message:
        return metadata_of(broker, stages.pop(0) if len(stages) > 1 else stages[0])

    answer(broker, Metadata=metadata, AlterPartitionReassignments=takes_moves(asked))
    run(broker, "cluster", "reassign", "t", "0", "--replicas", "2,3", "--wait")
    out, err = capsys.readouterr()
    assert (out, err) == ("t-0 is on nodes 2,3\n", "t-0: 1,2,3 -> 2,3, not in sync yet: 3\n")
    stages[:] = [moving]
    with pytest.raises(ClientError, match="not done within 0 ms, and going on: t-0: 1,2,3 -> 2,3, not in sync yet: 3"):
        run(broker, "cluster", "reassign", "t", "0", "--replicas", "2,3", "--wait", "--timeout-ms", "0")
    told: list[str] = []

    def interrupted(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "note", interrupted)
    assert main(["cluster", "reassign", "t", "0", "--replicas", "2,3", "--wait", "-b", f"127.0.0.1:{broker.port}"]) == 130
    assert told[1:] == ["only the wait has ended, the move goes on: 'brokerd cluster reassign t 0 --stop' would stop it"]
    monkeypatch.setattr(command, "_REPLACED_MS", -1)
    for instead, text in (
        (pb.PartitionMetadata(partition=0, leader=1, replicas=[1, 2, 3], isr=[1, 2], target=[1]), "it moves to 1"),
        (pb.PartitionMetadata(partition=0, leader=1, replicas=[1, 2], isr=[1, 2]), "it is on 1,2, led by 1"),
    ):
        stages[:] = [moving, moving, instead]
        with pytest.raises(ClientError, match=f"t-0 does not move to 2,3 any more: {text}"):
            run(broker, "cluster", "reassign", "t", "0", "--replicas", "2,3", "--wait")
        del asked[-1]
    stages[:] = [done]
    run(broker, "cluster", "move-leader", "t", "0", "3", "--json")
    assert json.loads(capsys.readouterr().out) == {"topic": "t", "partition": 0, "target": [3, 2], "is_done": False}
    assert [list(one.replicas) for one in asked] == [[2, 3], [2, 3], [2, 3], [3, 2]]
    with pytest.raises(ClientError, match="node 1 has no copy of t-0, which is on 2,3"):
        run(broker, "cluster", "move-leader", "t", "0", "1")


def test_preferred_leaders_that_cannot_lead_are_named(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = pb.PartitionMetadata
    response = metadata_of(
        broker,
        of(partition=0, leader=1, replicas=[1, 2], isr=[1, 2]),
        of(partition=1, leader=2, replicas=[1, 2], isr=[1, 2]),
        of(partition=2, leader=2, replicas=[1, 2], isr=[2]),
        of(partition=3, leader=-1, replicas=[1, 2], isr=[2]),
        of(partition=4, leader=2, replicas=[1, 2], isr=[1, 2], target=[3, 2]),
    )
    asked: list[topics_pb2.PartitionReassignment] = []
    reassign = takes_moves(asked)
    answer(broker, Metadata=response, AlterPartitionReassignments=reassign)
    staying = "3 partitions cannot be led by the preferred leader now: try again later"
    with pytest.raises(ClientError, match=staying):
        run(broker, "cluster", "elect-leaders")
    assert [(one.partition, list(one.replicas)) for one in asked] == [(1, [])]
    assert capsys.readouterr().out.splitlines() == [
        "t-1 will be led by node 1",
        "t-2 stays with node 2: node 1 is not in sync",
        "t-3 stays without a leader: node 1 is not in sync",
        "t-4 stays with node 2: it moves to 3,2",
    ]
    with pytest.raises(ClientError, match="not done within 0 ms, and going on: 1 partition left: t-1"):
        run(broker, "cluster", "elect-leaders", "t", "--wait", "--timeout-ms", "0")
    monkeypatch.setattr(command, "_REPLACED_MS", -1)
    for instead in ([], [3, 2]):  # the move is stopped, or replaced

        def reassigned(request: Any, instead: list[int] = instead) -> Message:
            response.topics[0].partitions[1].target[:] = instead
            return reassign(request)

        answer(broker, AlterPartitionReassignments=reassigned)
        with pytest.raises(ClientError, match=r"4 partitions cannot be led .* now: the move was stopped"):
            run(broker, "cluster", "elect-leaders", "t", "--wait", "--timeout-ms", "10000")
        del response.topics[0].partitions[1].target[:]
    assert "t-1 stays with node 2: the move was stopped or replaced, or its disk refuses" in capsys.readouterr().out
    with pytest.raises(ClientError, match=staying):
        run(broker, "cluster", "elect-leaders", "--json")
    assert json.loads(capsys.readouterr().out) == {
        "moving": [{"topic": "t", "partition": 1, "leader": 1}],
        "staying": [
            {"topic": "t", "partition": 2, "leader": 2},
            {"topic": "t", "partition": 3, "leader": None},
            {"topic": "t", "partition": 4, "leader": 2},
        ],
        "is_done": False,
    }


def test_preferred_leaders_of_a_topic_that_is_refused_stop_no_others(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [pb.Node(node_id=1, host="127.0.0.1", port=broker.port)]
    topics = [
        pb.TopicMetadata(
            name=name, topic_id=name.encode() * 16, partitions=[pb.PartitionMetadata(leader=2, replicas=[1, 2], isr=[1, 2])]
        )
        for name in "ab"
    ]

    answer(
        broker,
        Metadata=pb.MetadataResponse(cluster_id="c", nodes=nodes, topics=topics),
        AlterPartitionReassignments=takes_moves([], a=TopicAuthorizationFailedError("you may not administer topic 'a'")),
    )
    with pytest.raises(ClientError, match="cannot be led by the preferred leader now: you may not administer topic 'a'"):
        run(broker, "cluster", "elect-leaders")
    assert capsys.readouterr().out.splitlines() == [
        "b-0 will be led by node 1",
        "a-0 stays with node 2: you may not administer topic 'a'",
    ]


def test_preferred_leaders_lead_though_etcd_has_forgotten_a_topic(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    """A topic created after the snapshot that etcd was restored from is listed without replicas."""
    response = metadata_of(
        broker,
        pb.PartitionMetadata(partition=0, leader=-1, leader_epoch=-1, error=to_proto(NO_LEADER)),
        pb.PartitionMetadata(partition=1, leader=2, replicas=[1, 2], isr=[1, 2]),
    )
    answer(broker, Metadata=response, AlterPartitionReassignments=takes_moves([]))
    with pytest.raises(ClientError, match="1 partition cannot be led by the preferred leader now"):
        run(broker, "cluster", "elect-leaders")
    assert capsys.readouterr().out.splitlines() == [
        "t-1 will be led by node 1",
        "t-0 stays without a leader: etcd names no replicas of it",
    ]


def test_an_unclean_election_says_what_leads_and_what_is_lost(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    answer_for_two_nodes(broker)
    copies = [
        topics_pb2.CopyEnd(node_id=2, leader_epoch=5, log_end_offset=90),
        topics_pb2.CopyEnd(node_id=3, leader_epoch=-1, log_end_offset=0, has_stopped=True),
    ]
    asked = []

    def elect(request: topics_pb2.ElectUncleanLeaderRequest) -> Message:
        asked.append((request.name, request.partition, request.validate_only))
        return topics_pb2.ElectUncleanLeaderResponse(copies=copies)

    answer(broker, ElectUncleanLeader=elect)
    for flags, led, lost in (([], "is led", "is lost"), (["--dry-run"], "would be led", "would be lost")):
        run(broker, "cluster", "elect-unclean", "t", "2", *flags)
        assert capsys.readouterr().out == (
            f"t-2 {led} by node 2\n"
            "  NODE  EPOCH  END  DAMAGED\n"
            "     2  5       90  -\n"
            "     3  -        0  yes\n"
            "  no copy on node 1, or no answer from there\n"
            f"this copy ends at offset 90: what was acknowledged and is not in it {lost}\n"
        )
    run(broker, "cluster", "elect-unclean", "t", "2", "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out) == {
        "topic": "t",
        "partition": 2,
        "leader": 2,
        "log_end_offset": 90,
        "copies": [
            {"node_id": 2, "leader_epoch": 5, "log_end_offset": 90, "is_damaged": False},
            {"node_id": 3, "leader_epoch": None, "log_end_offset": 0, "is_damaged": True},
        ],
        "missing": [1],
        "is_done": False,
    }
    assert asked == [("t", 2, False), ("t", 2, True), ("t", 2, True)]


def test_a_drain_that_is_waited_for_ends_with_what_its_last_look_saw(
    broker: FakeBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition created during the drain may have nowhere to go. A dead node without partitions is unknown: its drain is done."""
    why = "no other node is alive"
    staying = topics_pb2.DrainNodeResponse(staying=[topics_pb2.NamedPartition(name="t", partition=7, reason=why)])
    answers = [topics_pb2.DrainNodeResponse(moving=4), staying]

    def drain_node(_client: BlockingClient, node_id: int, *, validate_only: bool) -> Message:
        if not answers:
            raise InvalidRequestError(f"node {node_id} has no partition, and is not alive")
        return answers.pop(0)

    monkeypatch.setattr(BlockingClient, "drain_node", drain_node)
    with pytest.raises(ClientError, match="1 partition of node 2 cannot move"):
        run(broker, "cluster", "drain", "2", "--wait")
    assert capsys.readouterr().out == f"node 2: 4 partitions moved to other nodes\n  t-7 stays: {why}\n"
    answers.append(topics_pb2.DrainNodeResponse(moving=4))
    run(broker, "cluster", "drain", "2", "--wait")
    assert capsys.readouterr().out == "node 2: 4 partitions moved to other nodes\n"


def test_what_stays_on_a_drained_node_is_an_error(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    named, why = topics_pb2.NamedPartition, "every other node that is alive has it already"
    response = topics_pb2.DrainNodeResponse(moving=4, staying=[named(name="t", partition=7, reason=why)])
    answer(broker, DrainNode=response)
    for flags, line in (([], "move to other nodes"), (["--dry-run"], "would move to other nodes")):
        with pytest.raises(ClientError, match="1 partition of node 2 cannot move: give it fewer copies with 'brokerd"):
            run(broker, "cluster", "drain", "2", *flags)
        assert capsys.readouterr().out == f"node 2: 4 partitions {line}\n  t-7 stays: {why}\n"
    response.going.extend([named(name="t", partition=number) for number in (2, 3)])
    response.more_going = 2
    with pytest.raises(ClientError):
        run(broker, "cluster", "drain", "2", "--dry-run")
    assert capsys.readouterr().out.splitlines()[1:4] == ["  t-2 would move", "  t-3 would move", "  and 2 more"]


def test_nodes_are_printed_while_there_is_no_coordinator(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cluster() as cluster:
        cluster.elect_coordinator(None)
        run(cluster.nodes[0], "cluster", "nodes")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert not any("coordinator" in line for line in lines)


LOST = "no copy with all records is alive: they are on node 2's former directory; put it back, or delete the topic"


def test_a_wait_ends_if_no_copy_is_alive(broker: FakeBroker, capsys: pytest.CaptureFixture[str]) -> None:
    error = to_proto(NotLeaderError(f"t-0 has no leader at present: {LOST}"))
    lost = pb.PartitionMetadata(partition=0, leader=-1, replicas=[2], isr=[2], target=[1], error=error, no_copy_alive=True)
    metadata = metadata_of(broker, lost)
    waiting = topics_pb2.NamedPartition(name="t", partition=0, reason=LOST)
    unknown = unknown_partition(NotLeaderError("not on this node"))
    described = topics_pb2.TopicDescription(name="t", topic_id=b"t" * 16, partitions=[unknown])
    answer(
        broker,
        Metadata=metadata,
        AlterPartitionReassignments=takes_moves([]),
        DrainNode=topics_pb2.DrainNodeResponse(moving=1, waiting=[waiting]),
        DescribeTopics=topics_pb2.DescribeTopicsResponse(topics=[described]),
    )
    with pytest.raises(ClientError, match=re.escape(f"t-0 waits to move from 2 to 1: t-0 has no leader at present: {LOST}")):
        run(broker, "cluster", "reassign", "t", "0", "--replicas", "1", "--wait")
    with pytest.raises(ClientError, match="t-0 waits to move from 2 to 1: t-0 has no leader"):
        run(broker, "cluster", "move-leader", "t", "0", "1", "--wait")
    (partition,) = metadata.topics[0].partitions
    del partition.target[:]
    for words in (("move-leader", "t", "0", "2"), ("reassign", "t", "0", "--replicas", "2")):
        with pytest.raises(ClientError, match="t-0 waits for node 2 to lead it: t-0 has no leader"):
            run(broker, "cluster", *words, "--wait")
    partition.target.append(1)
    first = f"1 partition of node 2 cannot be moved at present, the first is t-0: {LOST}"
    with pytest.raises(ClientError, match=re.escape(first)):
        run(broker, "cluster", "drain", "2", "--wait")
    capsys.readouterr()
    run(broker, "cluster", "drain", "2")
    assert f"  t-0 waits: {LOST}\n" in capsys.readouterr().out
    run(broker, "cluster", "status")
    assert capsys.readouterr().out.endswith(f"\n  t-0 has no leader at present: {LOST}\n")
    topics_command.describe_topics(parse(["topics", "describe", "t", "-b", f"127.0.0.1:{broker.port}"]))
    printed = capsys.readouterr().out
    assert printed.splitlines()[2].split() == ["0", *["-"] * 7]
    assert printed.endswith(f"  partition 0 is not healthy: t-0 has no leader at present: {LOST}\n")
    topics_command.describe_topics(parse(["topics", "describe", "t", "--json", "-b", f"127.0.0.1:{broker.port}"]))
    (printed_one,) = json.loads(capsys.readouterr().out)[0]["partitions"]
    assert (printed_one["high_watermark"], printed_one["size_bytes"]) == (None, None)
