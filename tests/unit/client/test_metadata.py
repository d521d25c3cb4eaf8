"""Goal: answers become values."""

from __future__ import annotations

import pytest

from brokerd.client.metadata import Node, read_metadata
from brokerd.errors import UnknownTopicIdError, UnknownTopicOrPartitionError
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
