"""Nodes and topics as values, read from responses to Metadata. Makes no calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.client.response_checks import senseless
from brokerd.errors import UnknownTopicIdError, UnknownTopicOrPartitionError, WireError, fresh
from brokerd.ids import HOST, NO_EPOCH, TopicIdPartition, TopicInfo, TopicPartition, address_of, topic_name_problem
from brokerd.wire.errors import from_proto
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import metadata_pb2

NOTHING_KNOWN: Mapping[bytes, int] = {}  # of any topic
_TOPIC_ID_BYTES = 16
_PORT_MAX = 65_535
_VALUE_MAX_CHARACTERS = 60


class Node(NamedTuple):
    """A broker that serves partitions."""

    node_id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        """host:port, as gRPC takes it."""
        return address_of(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Metadata:
    """A node's view of the cluster."""

    nodes: Mapping[int, Node]
    topics: Mapping[str, TopicInfo]  # by name
    errors: Mapping[str, WireError] = field(default_factory=dict)  # by name; by id in hex if requested by id
    is_cut_off: bool = False  # the node does not reach the coordination store: all this may be old

    def topic(self, name: str) -> TopicInfo:
        """The topic of this name. Raises the WireError that the broker returned for it."""
        if name in self.errors:
            raise fresh(self.errors[name])
        return self.topics[name]

    def topic_by_id(self, topic_id: bytes) -> TopicInfo:
        """The topic of this id. Raises the WireError that the broker returned for it."""
        if topic_id.hex() in self.errors:
            raise fresh(self.errors[topic_id.hex()])
        for topic in self.topics.values():
            if topic.topic_id == topic_id:
                return topic
        raise UnknownTopicIdError(f"the broker returned nothing for topic id {topic_id.hex()}")


def id_of(topic: TopicInfo, number: int) -> TopicIdPartition:
    """The topic's partition of this number. Raises UnknownTopicOrPartitionError."""
    if number >= topic.partition_count:
        raise UnknownTopicOrPartitionError(
            f"topic '{topic.name}' has no partition {number}, it has 0 to {topic.partition_count - 1}"
        )
    return TopicIdPartition(topic.topic_id, number)


def ids_in(metadata: Metadata, tps: Iterable[TopicPartition]) -> dict[TopicPartition, TopicIdPartition]:
    """The ids of partitions. Raises UnknownTopicOrPartitionError."""
    return {tp: id_of(metadata.topic(tp.topic), tp.partition) for tp in tps}


def read_metadata(response: metadata_pb2.MetadataResponse) -> Metadata:
    """The response as values."""
    what = "Metadata"
    topics = {}
    errors = {}
    for topic in response.topics:
        if topic.HasField("error"):
            errors[topic.name or topic.topic_id.hex()] = from_proto(topic.error)
            continue
        check_topic(what, topic.name, topic.topic_id)
        if any(partition.partition != number for number, partition in enumerate(topic.partitions)):
            raise senseless(what, f"the partitions of topic '{topic.name}' are not numbered from 0")
        leaders = tuple(partition.leader for partition in topic.partitions)
        problems = {one.partition: from_proto(one.error).message for one in topic.partitions if one.HasField("error")}
        epochs = tuple(max(NO_EPOCH, partition.leader_epoch) for partition in topic.partitions)
        topics[topic.name] = TopicInfo(topic.topic_id, leaders, problems, epochs, topic.name)
    nodes = {node.node_id: read_node(what, node) for node in response.nodes}
    return Metadata(nodes, topics, errors, response.is_cut_off)


def read_node(what: str, node: metadata_pb2.Node) -> Node:
    """A node in a response to `what`. Raises UnknownServerError for an address that a client cannot, or should not, connect to."""
    if not HOST.fullmatch(node.host) or not 0 < node.port <= _PORT_MAX:
        raise senseless(what, f"a node at '{plain_text(node.host, _VALUE_MAX_CHARACTERS)}', port {node.port}")
    return Node(node.node_id, node.host, node.port)


def check_topic(what: str, name: str, topic_id: bytes) -> None:
    """Raises UnknownServerError for an invalid topic name or id."""
    problem = topic_name_problem(name, internal=True)
    if problem is not None:
        raise senseless(what, f"a topic named '{plain_text(name, _VALUE_MAX_CHARACTERS)}': {problem}")
    if len(topic_id) != _TOPIC_ID_BYTES:
        raise senseless(what, f"topic '{name}' has an id of {len(topic_id)} bytes, but must have {_TOPIC_ID_BYTES}")
