"""Nodes and topics as values, read from Metadata responses; and the nodes that a client knows and asks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.client.response_checks import senseless
from brokerd.errors import BrokerUnreachableError, UnknownTopicIdError, UnknownTopicOrPartitionError, WireError, fresh
from brokerd.ids import (
    HOST,
    NO_EPOCH,
    TopicIdPartition,
    TopicInfo,
    TopicPartition,
    address_of,
    missing_topic_remedy,
    topic_name_problem,
)
from brokerd.wire.errors import from_proto
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import metadata_pb2

ANY_NODE = -1  # as a node id: any node that can be reached
NOTHING_KNOWN: Mapping[bytes, int] = {}  # for a client that has seen no topic
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
    is_cut_off: bool = False  # the node cannot reach the coordination store: its view may be stale

    def topic(self, name: str) -> TopicInfo:
        """The topic of this name. Raises the WireError that the broker returned for it; for a topic that does not exist, with the
        remedy."""
        if name in self.errors:
            error = fresh(self.errors[name])
            if isinstance(error, UnknownTopicOrPartitionError):
                error.message = f"there is no topic '{name}': {missing_topic_remedy(name)}"
            raise error
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


class Nodes:
    """Addresses (host:port) of a cluster's nodes, from bootstrap.servers and from the newest metadata."""

    def __init__(self, bootstrap: Sequence[str]) -> None:
        """`bootstrap`: at least one address."""
        self._bootstrap = tuple(bootstrap)
        self._by_id: dict[int, str] = {}
        self._ids: dict[str, int] = {}  # node ids by address, of nodes that answered; a node may have several addresses
        self.any = self._bootstrap[0]  # the target of calls that any node can answer
        self.coordinator: str | None = None
        self.is_coordinator_lost = False  # look it up first; if False, `any` is asked, which may be the coordinator

    @property
    def addresses(self) -> tuple[str, ...]:
        """All known addresses, those of bootstrap.servers first."""
        return tuple(dict.fromkeys((*self._bootstrap, *self._by_id.values())))

    @property
    def are_several(self) -> bool:
        """True if the newest metadata lists more than one node."""
        return len(self._by_id) > 1

    def address(self, node_id: int) -> str:
        """A node's address; `any` for ANY_NODE, and while no nodes are known. Raises BrokerUnreachableError for a node that is not
        alive: any other node would refuse its requests for ever."""
        if node_id == ANY_NODE or not self._by_id:
            return self.any
        if node_id not in self._by_id:
            raise BrokerUnreachableError(f"node {node_id} is not alive, as the other nodes say")
        return self._by_id[node_id]

    def id_at(self, address: str) -> int | None:
        """The id of the node that answered at an address; None if none did."""
        return self._ids.get(address)

    def answered(self, address: str, node_id: int) -> None:
        """Notes which node is at an address."""
        self._ids[address] = node_id

    def found(self, addresses: Mapping[int, str]) -> None:
        """Takes the nodes of new metadata. A node that is missing there is no longer asked, and an old address no longer used."""
        self._by_id = dict(addresses)
        if self.any not in self.addresses:
            self.any = next(iter(self._by_id.values()), self._bootstrap[0])

    def failed(self, address: str) -> None:
        """Moves on from an address that did not answer: `any` becomes the next one, of another node if possible."""
        if self.coordinator == address:
            self.coordinator_lost(address)
        self.ask_another(address)

    def ask_another(self, address: str) -> None:
        """Makes `any` another node than the one at `address`, if there is one."""
        if self._is_same_node(self.any, address):
            addresses = self.addresses
            at = addresses.index(self.any)
            others = (*addresses[at + 1 :], *addresses[:at])
            self.any = next((one for one in others if not self._is_same_node(one, address)), (*others, address)[0])

    def coordinator_lost(self, address: str) -> None:
        """Notes that this node is not, or no longer, the coordinator."""
        if self.coordinator in (None, address):
            self.coordinator, self.is_coordinator_lost = None, True

    def coordinator_found(self, address: str) -> None:
        """Notes which node is the coordinator."""
        self.coordinator, self.is_coordinator_lost = address, False

    def unused(self, addresses: Iterable[str]) -> list[str]:
        """The `addresses` that belong to no known node."""
        known = {*self.addresses, self.coordinator}
        return [address for address in addresses if address not in known]

    def _is_same_node(self, one: str, other: str) -> bool:
        return one == other or (one in self._ids and self._ids[one] == self._ids.get(other))
