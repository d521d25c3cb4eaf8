"""The keys of a cluster in its coordination store, below `/brokerd/<cluster>/`, and the format of their values.

    cluster-id                      random, written once; a data directory belongs to one cluster id and refuses another
    nodes/<node id>                 a node's registration, under its lease
    names/<topic name>              the topic's id; written last, so a topic exists only once all its partitions do
    topics/<topic id>               name, partition count and settings
    partitions/<topic id>/<number>  replicas, in-sync set, leader and leader epoch
    tombstones/<topic id>           a deleted topic whose data may remain in some directories
    controller                      the id of the node that is the controller, under its lease
    producer-ids                    the lowest producer number that no coordinator has been given
    feature-level                   known to all nodes; the controller raises it, and a version below it cannot join; absent = 1

Nodes, topics, partitions and tombstones are JSON objects, whose unknown fields are ignored, and lost when the value is rewritten.
The other values are plain text. All are validated as external input: a mistyped or hostile value must not stop a node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from brokerd.config.topic import REPLICAS_MAX
from brokerd.ids import HOST, NO_LEADER, TOPIC_NAME_MAX_LENGTH, TopicIdPartition, topic_name_problem

NODE_ID_MAX = 2**31 - 1
# Version of these keys, of the calls between nodes and of the files that nodes exchange. Increment it for each change that an older
# version would not understand, and use the change only once the cluster's level (ClusterImage.feature_level) has reached it. A new
# field of a value needs a default for when it is absent: older nodes do not write it.
FEATURE_LEVEL = 1
_LEVEL_MAX = 1_000_000
OUT_OF_SYNC_MAX = 4 * REPLICAS_MAX
PARTITIONS_MAX = 100_000  # per topic; the upper limit of max.partitions.per.topic
VALUE_MAX_BYTES = 64 * 1024
_EPOCH_MAX = 2**31 - 1
_REVISION_MAX = 2**63 - 1
_TOPIC_ID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,11}")
_DIRECTORY_ID_MAX = 64  # characters
_AUTH_MAX = 64  # characters
_TOKEN = re.compile(r"[A-Za-z0-9._-]{0,64}")  # sent in a gRPC header


class EntryError(Exception):
    """An invalid key or value; the message gives the reason."""


class Registration(NamedTuple):
    """A live node."""

    host: str  # the address for clients
    port: int
    directory_id: str  # of its data directory; an emptied disk gets a new one
    rack: str = ""
    token: str = ""  # a secret drawn at each start; a caller that presents it can read the store, so it is a node
    auth: str = ""  # a hash of its auth file, which should be the same on all nodes; "" = no auth file
    refuses: bool = False  # its disk is full or failing: other replicas lead where possible
    feature_level: int = FEATURE_LEVEL  # the highest that its version supports


class TopicEntry(NamedTuple):
    """A topic. `configs` holds only overridden settings."""

    name: str
    partition_count: int
    configs: Mapping[str, str]


ANY_DIRECTORY = ""  # the directory is unknown: the node was down when its copy was given up


class InSyncReplica(NamedTuple):
    """A copy with everything below the high watermark. The directory is part of its identity: the node's disk may be replaced."""

    node_id: int
    directory_id: str


class PartitionEntry(NamedTuple):
    """A partition's replicas, in-sync set and leader."""

    replicas: tuple[int, ...]  # node ids; the first is the preferred leader
    isr: tuple[InSyncReplica, ...]  # never empty: the last member stays, even while its node is down
    leader: int = NO_LEADER
    leader_node_epoch: int = 0  # of the leader's registration; a node that registers again gets another one
    leader_epoch: int = 0  # raised by each election
    # Directories that have or had a copy and are not in sync; ANY_DIRECTORY stands for every directory of the node. A directory
    # whose node is no longer a replica removes its copy.
    out_of_sync: tuple[InSyncReplica, ...] = ()
    target: tuple[int, ...] = ()  # the wanted replicas (reassignment.py); empty = no reassignment under way
    superseded: tuple[InSyncReplica, ...] = ()  # in sync when an older copy was elected: they may have unique records


class Tombstone(NamedTuple):
    """A deleted topic. A directory removes a topic's data only because of a tombstone, never because a key is absent."""

    name: str
    partition_count: int
    directory_ids: tuple[str, ...]  # directories that may still hold data
    node_ids: tuple[int, ...] = ()  # nodes that may hold data in an unknown directory


class Keys:
    """The names of one cluster's keys."""

    def __init__(self, cluster: str) -> None:
        """`cluster`: a valid cluster name."""
        self.prefix = f"/brokerd/{cluster}/"
        self.topics = f"{self.prefix}topics/"
        self.cluster_id = f"{self.prefix}cluster-id"
        self.controller = f"{self.prefix}controller"
        self.producer_ids = f"{self.prefix}producer-ids"
        self.feature_level = f"{self.prefix}feature-level"

    def node(self, node_id: int) -> str:
        """Key of a node's registration."""
        return f"{self.prefix}nodes/{node_id}"

    def name(self, topic: str) -> str:
        """Key of a topic's id."""
        return f"{self.prefix}names/{topic}"

    def topic(self, topic_id: bytes) -> str:
        """Key of a topic's entry."""
        return f"{self.topics}{topic_id.hex()}"

    def partition(self, tp: TopicIdPartition) -> str:
        """Key of a partition's entry."""
        return f"{self.prefix}partitions/{tp.topic_id.hex()}/{tp.partition}"

    def tombstone(self, topic_id: bytes) -> str:
        """Key of a deleted topic's tombstone."""
        return f"{self.prefix}tombstones/{topic_id.hex()}"

    def split(self, key: str) -> tuple[str, ...]:
        """The parts of a key below the prefix; empty for a key outside the prefix."""
        return tuple(key.removeprefix(self.prefix).split("/")) if key.startswith(self.prefix) else ()


def number_of(text: str, maximum: int) -> int:
    """Parses a number in a key or a text value. Raises EntryError."""
    if not _NUMBER.fullmatch(text) or int(text) > maximum:
        raise EntryError(f"{text[:50]!r} in the key is not a number from 0 to {maximum}")
    return int(text)


def level_of(value: bytes) -> int:
    """Parses a feature level. Raises EntryError."""
    return number_of(value.decode(errors="replace"), _LEVEL_MAX)


def topic_id_of(text: str) -> bytes:
    """Parses a topic id in a key or value. Raises EntryError."""
    if not _TOPIC_ID.fullmatch(text):
        raise EntryError(f"'{text[:50]}' is not a topic id: 32 hex digits in lower case")
    return bytes.fromhex(text)


def encode(value: Registration | TopicEntry | PartitionEntry | Tombstone) -> bytes:
    """The JSON value of an entry."""
    return json.dumps(value._asdict(), separators=(",", ":")).encode()


def decode_registration(data: bytes) -> Registration:
    """Raises EntryError."""
    fields = _Fields(data)
    return Registration(
        fields.match("host", HOST),
        fields.number("port", 1, 65_535),
        fields.text("directory_id", _DIRECTORY_ID_MAX),
        fields.text("rack", 255),
        fields.match("token", _TOKEN),
        fields.text("auth", _AUTH_MAX),
        fields.get("refuses", bool),
        fields.number("feature_level", 1, _LEVEL_MAX),
    )


def decode_topic(data: bytes) -> TopicEntry:
    """Raises EntryError."""
    fields = _Fields(data)
    configs = fields.get("configs", dict)
    if not all(isinstance(value, str) for value in configs.values()):
        raise EntryError("'configs' has a value that is not text")
    return TopicEntry(fields.topic_name(), fields.number("partition_count", 1, PARTITIONS_MAX), configs)


def decode_partition(data: bytes) -> PartitionEntry:
    """Raises EntryError."""
    fields = _Fields(data)
    replicas = tuple(_number("replicas", each, 0, NODE_ID_MAX) for each in fields.items("replicas", REPLICAS_MAX))
    isr = tuple(_in_sync(each, "isr") for each in fields.items("isr", REPLICAS_MAX))
    leader = fields.number("leader", NO_LEADER, NODE_ID_MAX)
    out_of_sync = tuple(_in_sync(each, "out_of_sync") for each in fields.items("out_of_sync", OUT_OF_SYNC_MAX))
    superseded = tuple(_in_sync(each, "superseded") for each in fields.items("superseded", OUT_OF_SYNC_MAX))
    target = tuple(_number("target", each, 0, NODE_ID_MAX) for each in fields.items("target", REPLICAS_MAX))
    known = {replica.node_id for replica in isr}
    if len(set(replicas)) < len(replicas) or len(known) < len(isr) or len(set(target)) < len(target):
        raise EntryError("a node is in 'replicas', 'isr' or 'target' twice")
    if not known or not known <= set(replicas):
        raise EntryError("'isr' must have at least one node, and only nodes of 'replicas'")
    if leader not in {NO_LEADER, *replicas}:
        raise EntryError(f"'leader' is {leader}, which is not in 'replicas'")
    return PartitionEntry(
        replicas,
        isr,
        leader,
        fields.number("leader_node_epoch", 0, _REVISION_MAX),
        fields.number("leader_epoch", 0, _EPOCH_MAX),
        out_of_sync,
        target,
        superseded,
    )


def decode_tombstone(data: bytes) -> Tombstone:
    """Raises EntryError."""
    fields = _Fields(data)
    directory_ids = fields.items("directory_ids", VALUE_MAX_BYTES)
    if not all(isinstance(each, str) for each in directory_ids):
        raise EntryError("'directory_ids' has an entry that is not text")
    node_ids = tuple(_number("node_ids", each, 0, NODE_ID_MAX) for each in fields.items("node_ids", NODE_ID_MAX))
    return Tombstone(fields.topic_name(), fields.number("partition_count", 1, PARTITIONS_MAX), tuple(directory_ids), node_ids)


def _in_sync(value: object, name: str) -> InSyncReplica:
    """Parses a node id and directory id: a JSON array, as json.dumps writes a named tuple."""
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        raise EntryError(f"'{name}' has an entry that is not a node id and a directory id")
    return InSyncReplica(_number(name, value[0], 0, NODE_ID_MAX), value[1])


def _number(name: str, value: object, minimum: int, maximum: int) -> int:
    if type(value) is not int or not minimum <= value <= maximum:
        raise EntryError(f"'{name}' is {value!r:.50}, not a number from {minimum} to {maximum}")
    return value


class _Fields:
    """The fields of one JSON object."""

    def __init__(self, data: bytes) -> None:
        if len(data) > VALUE_MAX_BYTES:
            raise EntryError(f"the value has {len(data)} bytes, more than {VALUE_MAX_BYTES}")
        try:
            self._fields = json.loads(data)
        except (ValueError, RecursionError):
            raise EntryError("the value is not JSON") from None
        if not isinstance(self._fields, dict):
            raise EntryError("the value is not a JSON object")

    def get(self, name: str, kind: type) -> Any:
        value = self._fields.get(name)
        if type(value) is not kind:
            raise EntryError(f"'{name}' is {value!r:.50}, not of type {kind.__name__}")
        return value

    def text(self, name: str, max_length: int) -> str:
        value: str = self.get(name, str)
        if len(value) > max_length:
            raise EntryError(f"'{name}' has {len(value)} characters, more than {max_length}")
        if not value.isprintable():  # also rejects a lone surrogate, which no message can carry
            raise EntryError(f"'{name}' has characters that are not text")
        return value

    def match(self, name: str, pattern: re.Pattern[str]) -> str:
        value: str = self.get(name, str)
        if not pattern.fullmatch(value):
            raise EntryError(f"'{name}' is {value!r:.50}, which cannot be one")
        return value

    def topic_name(self) -> str:
        value = self.text("name", TOPIC_NAME_MAX_LENGTH)
        problem = topic_name_problem(value, internal=True)
        if problem:
            raise EntryError(f"'name' cannot be a topic's: {problem}")
        return value

    def number(self, name: str, minimum: int, maximum: int) -> int:
        return _number(name, self.get(name, int), minimum, maximum)

    def items(self, name: str, max_count: int) -> list[Any]:
        value: list[Any] = self.get(name, list)
        if len(value) > max_count:
            raise EntryError(f"'{name}' has {len(value)} entries, more than {max_count}")
        return value
