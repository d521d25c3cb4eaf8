"""The keys of a cluster in its coordination store, below `/brokerd/<cluster>/`, and what their values hold.

    cluster-id                      drawn once; a data directory belongs to one cluster id and refuses another
    nodes/<node id>                 a node's registration, under its lease
    names/<topic name>              the topic's id; written last, so a topic exists only with all its partitions
    topics/<topic id>               its name, partition count and settings
    partitions/<topic id>/<number>  who holds the partition, who leads it, and since which epoch
    tombstones/<topic id>           a deleted topic whose data some directory may still hold
    controller                      the node that elects, under its lease
    producer-ids                    the lowest number of a producer that no coordinator was given
    feature-level                   what all nodes know: the controller raises it, and who knows less cannot join; absent = 1

Values are JSON objects; unknown fields are ignored, and lost when the value is written again. They are checked like everything that
comes from outside: a mistyped or hostile store must not end a node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from brokerd.config.topic import REPLICAS_MAX
from brokerd.ids import HOST, NO_LEADER, TOPIC_NAME_MAX_LENGTH, TopicIdPartition, topic_name_problem

NODE_ID_MAX = 2**31 - 1
# What this version knows of these keys, of calls between nodes and of files that go from node to node. One higher for each change
# that an older version would not understand; it is not to be used before the cluster's level has reached it
# (ClusterImage.feature_level). A new field of a value needs a default where it is absent: older nodes do not write it.
FEATURE_LEVEL = 1
_LEVEL_MAX = 1_000_000
OUT_OF_SYNC_MAX = 4 * REPLICAS_MAX
PARTITIONS_MAX = 100_000  # of a topic: no max.partitions.per.topic is larger
VALUE_MAX_BYTES = 64 * 1024
_EPOCH_MAX = 2**31 - 1
_REVISION_MAX = 2**63 - 1
_TOPIC_ID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,11}")
_DIRECTORY_ID_MAX = 64  # characters
_AUTH_MAX = 64  # characters
_TOKEN = re.compile(r"[A-Za-z0-9._-]{0,64}")  # a header of gRPC carries it


class EntryError(Exception):
    """A value that its key cannot have; the text says why."""


class Registration(NamedTuple):
    """A node that is alive."""

    host: str  # the address for clients
    port: int
    directory_id: str  # of its data directory: an emptied disk has another one
    rack: str = ""
    token: str = ""  # a secret of this life: nodes know each other by it, since whoever may read the store is a node
    auth: str = ""  # a hash of its auth file, which should be that of the others; "" = it has none
    refuses: bool = False  # its disk is full, or cannot be written: others lead where they can
    feature_level: int = FEATURE_LEVEL  # the highest that its version knows


class TopicEntry(NamedTuple):
    """A topic. `configs` holds only the settings that it overrides."""

    name: str
    partition_count: int
    configs: Mapping[str, str]


ANY_DIRECTORY = ""  # of a node that was away when its copy was given up


class InSyncReplica(NamedTuple):
    """A copy that has everything below the high watermark. It is the directory that has it, not the node."""

    node_id: int
    directory_id: str


class PartitionEntry(NamedTuple):
    """Who holds a partition, and who leads it."""

    replicas: tuple[int, ...]  # node ids; the first is preferred as leader
    isr: tuple[InSyncReplica, ...]  # never empty: the last member stays, alive or not
    leader: int = NO_LEADER
    leader_node_epoch: int = 0  # the leader's registration; one that came back is another one
    leader_epoch: int = 0  # one higher for each election
    # Directories that have a copy, or had one, and are not in sync; ANY_DIRECTORY stands for those of a node. One whose node is no
    # replica any more removes its copy.
    out_of_sync: tuple[InSyncReplica, ...] = ()
    target: tuple[int, ...] = ()  # the replicas that there shall be (reassignment.py); empty = those that there are
    superseded: tuple[InSyncReplica, ...] = ()  # in sync when an older copy was elected: they may have what no other has


class Tombstone(NamedTuple):
    """A deleted topic. Only this lets a directory remove data, never the absence of a key."""

    name: str
    partition_count: int
    directory_ids: tuple[str, ...]  # those that may still hold data
    node_ids: tuple[int, ...] = ()  # nodes that may, in a directory that is not known


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
        """A node's registration."""
        return f"{self.prefix}nodes/{node_id}"

    def name(self, topic: str) -> str:
        """The id of a topic."""
        return f"{self.prefix}names/{topic}"

    def topic(self, topic_id: bytes) -> str:
        """A topic."""
        return f"{self.topics}{topic_id.hex()}"

    def partition(self, tp: TopicIdPartition) -> str:
        """A partition."""
        return f"{self.prefix}partitions/{tp.topic_id.hex()}/{tp.partition}"

    def tombstone(self, topic_id: bytes) -> str:
        """A deleted topic."""
        return f"{self.prefix}tombstones/{topic_id.hex()}"

    def split(self, key: str) -> tuple[str, ...]:
        """The parts of a key below the prefix; empty for a key of somebody else."""
        return tuple(key.removeprefix(self.prefix).split("/")) if key.startswith(self.prefix) else ()


def number_of(text: str, maximum: int) -> int:
    """A number in a key. Raises EntryError."""
    if not _NUMBER.fullmatch(text) or int(text) > maximum:
        raise EntryError(f"{text[:50]!r} in the key is not a number from 0 to {maximum}")
    return int(text)


def level_of(value: bytes) -> int:
    """A feature level. Raises EntryError."""
    return number_of(value.decode(errors="replace"), _LEVEL_MAX)


def topic_id_of(text: str) -> bytes:
    """A topic id in a key or value. Raises EntryError."""
    if not _TOPIC_ID.fullmatch(text):
        raise EntryError(f"'{text[:50]}' is not a topic id: 32 hex digits in lower case")
    return bytes.fromhex(text)


def encode(value: Registration | TopicEntry | PartitionEntry | Tombstone) -> bytes:
    """The value of a key."""
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
    """A node and its directory: an array in JSON, as named tuples are."""
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
        if not value.isprintable():  # half of a surrogate pair, too, which no message can carry
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
