"""Goal: addresses are read strictly, with a sentence that names the bad one; answers become values."""

from __future__ import annotations

import pytest

from brokerd.client.metadata import Node, parse_bootstrap_servers, read_metadata
from brokerd.errors import ConfigError, UnknownTopicIdError, UnknownTopicOrPartitionError
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import metadata_pb2

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("localhost:9192", ("localhost:9192",)),
        (" a:1 , b:2,", ("a:1", "b:2")),
        ("[::1]:9192", ("[::1]:9192",)),
    ],
)
def test_bootstrap_servers(text: str, addresses: tuple[str, ...]) -> None:
    assert parse_bootstrap_servers(text) == addresses


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "localhost",
        "localhost:",
        ":9192",
        "localhost:http",
        "a:0",
        "a:65536",
        "::1:9192",
        "http://a:1",
        "a:0000080",
        "a:080",
    ],
)
def test_bootstrap_servers_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        parse_bootstrap_servers(text)


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
