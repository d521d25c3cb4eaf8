"""Goal: metadata responses become values, and a client asks the right node, or one that is alive. Method: `Nodes` by itself."""

from __future__ import annotations

import pytest

from brokerd.client.metadata import ANY_NODE, Node, Nodes, read_metadata
from brokerd.errors import BrokerUnreachableError, UnknownTopicIdError, UnknownTopicOrPartitionError
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import metadata_pb2

TOPIC_ID = bytes(range(16))


def test_node_address_brackets_ipv6() -> None:
    assert Node(0, "::1", 9192).address == "[::1]:9192"
    assert Node(0, "host", 9192).address == "host:9192"


def test_metadata_tells_topics_from_errors() -> None:
    answer = metadata_pb2.MetadataResponse(cluster_id="c")
    answer.nodes.add(node_id=7, host="h", port=1)
    topic = answer.topics.add(name="t", topic_id=TOPIC_ID)
    topic.partitions.add(partition=0, leader=7)
    topic.partitions.add(partition=1, leader=-1)
    answer.topics.add(name="gone", error=to_proto(UnknownTopicOrPartitionError("no topic 'gone'")))
    answer.topics.add(topic_id=b"x" * 16, error=to_proto(UnknownTopicIdError("no such id")))
    metadata = read_metadata(answer)
    assert metadata.nodes == {7: Node(7, "h", 1)}
    assert metadata.topic("t").leaders == (7, -1)
    assert metadata.topic("t").partition_count == 2
    assert metadata.topic_by_id(TOPIC_ID).name == "t"
    with pytest.raises(UnknownTopicOrPartitionError, match="gone"):
        metadata.topic("gone")
    with pytest.raises(UnknownTopicIdError, match="no such id"):
        metadata.topic_by_id(b"x" * 16)
    with pytest.raises(UnknownTopicIdError):
        metadata.topic_by_id(b"y" * 16)


# --- which node to ask


def test_the_next_address_is_asked_after_a_failure_and_the_first_again_after_the_last() -> None:
    nodes = Nodes(("a:1", "b:1"))
    asked = [nodes.any]
    for _ in range(2):
        nodes.failed(nodes.any)
        asked.append(nodes.any)
    assert asked == ["a:1", "b:1", "a:1"]


def test_a_failure_elsewhere_changes_nothing() -> None:
    nodes = Nodes(("a:1", "b:1"))
    nodes.failed("b:1")
    assert nodes.any == "a:1"


def test_nodes_that_metadata_names_are_asked_beside_those_of_bootstrap_servers() -> None:
    nodes = Nodes(("a:1",))
    nodes.found({0: "a:1", 1: "b:1", 2: "c:1"})
    assert nodes.addresses == ("a:1", "b:1", "c:1")
    nodes.failed("a:1")
    assert nodes.any == "b:1"


def test_a_node_that_moved_is_found_at_its_new_address_only() -> None:
    nodes = Nodes(("a:1",))
    nodes.found({0: "a:1", 1: "b:1"})
    nodes.failed("a:1")
    nodes.found({0: "a:1", 1: "b:2"})
    assert nodes.address(1) == "b:2"
    assert nodes.any == "a:1", "no node has the address b:1 any more"
    assert nodes.unused(["a:1", "b:1", "b:2"]) == ["b:1"]


def test_a_node_that_left_is_not_asked_again() -> None:
    nodes = Nodes(("a:1",))
    nodes.found({0: "a:1", 1: "b:1"})
    nodes.found({0: "a:1"})
    assert nodes.addresses == ("a:1",)
    assert not nodes.are_several
    with pytest.raises(BrokerUnreachableError, match="node 1 is not alive"):
        nodes.address(1)
    assert nodes.address(ANY_NODE) == "a:1"


def test_an_unknown_node_is_any_node() -> None:
    assert Nodes(("a:1",)).address(7) == "a:1"


@pytest.mark.parametrize(("others", "failed", "expected"), [(("b:1",), "127.0.0.1:1", "b:1"), ((), "localhost:1", "127.0.0.1:1")])
def test_another_name_of_the_node_that_failed_is_next_only_if_it_is_alone(
    others: tuple[str, ...], failed: str, expected: str
) -> None:
    nodes = Nodes(("localhost:1", "127.0.0.1:1", *others))
    nodes.answered("localhost:1", 0)
    nodes.answered("127.0.0.1:1", 0)
    nodes.failed(failed)
    assert nodes.any == expected


def test_a_coordinator_that_does_not_answer_is_looked_up() -> None:
    nodes = Nodes(("a:1", "b:1"))
    assert not nodes.is_coordinator_lost, "any node is asked first"
    nodes.coordinator_found("b:1")
    nodes.failed("a:1")
    states = [(nodes.coordinator, nodes.is_coordinator_lost)]
    nodes.failed("b:1")
    states.append((nodes.coordinator, nodes.is_coordinator_lost))
    assert states == [("b:1", False), (None, True)]


def test_an_old_failure_does_not_hide_the_new_coordinator() -> None:
    nodes = Nodes(("a:1", "b:1"))
    nodes.coordinator_found("b:1")
    nodes.coordinator_lost("a:1")
    assert nodes.coordinator == "b:1"
