"""Identifiers: small immutable values that every layer shares. Nothing here has behaviour."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple

TOPIC_NAME_MAX_LENGTH = 249
TRANSACTIONAL_ID_MAX_LENGTH = 249
INTERNAL_PREFIX = "__"  # of topics of the broker itself: clients cannot create such names
_CLUSTER_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
# A host that a node may announce as its address. Excludes everything else that gRPC accepts as a target, such as a path.
HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|\[?[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,32})?\]?")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

NO_PRODUCER_ID = -1
# A producer id consists of a number that is never reused, a bit that is set if it was assigned to a member of a transaction,
# and the tag of its owner (server/security/topic_authorizer.py). The id alone shows both, permanently.
PRODUCER_NUMBER_BITS = 39
PRODUCER_NUMBERS = 1 << PRODUCER_NUMBER_BITS  # lasts 17 years at a thousand a second
MEMBER_BIT = PRODUCER_NUMBERS
PRODUCER_TAG_SHIFT = PRODUCER_NUMBER_BITS + 1
NO_PRODUCER_EPOCH = -1
PRODUCER_EPOCH_MAX = 2**15 - 1
NO_SEQUENCE = -1
NO_LEADER = -1
NO_EPOCH = -1  # of a leader: unknown


class TopicPartition(NamedTuple):
    """A partition by topic name, as in the API."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class TopicIdPartition(NamedTuple):
    """A partition by topic id, as on the wire and on disk: a recreated topic has another id."""

    topic_id: bytes  # 16 bytes
    partition: int

    @property
    def directory_name(self) -> str:
        """Name of the partition's directory: `<topic id as 32 hex digits>-<partition>`."""
        return f"{self.topic_id.hex()}-{self.partition}"

    def __str__(self) -> str:
        return self.directory_name


class ProducerIdAndEpoch(NamedTuple):
    """Identifies one incarnation of an idempotent producer to the broker."""

    producer_id: int  # int64, from the broker; -1 = none
    epoch: int  # int16; -1 = none


def producer_tag(producer_id: int) -> int:
    """The owner tag in a producer id."""
    return producer_id >> PRODUCER_TAG_SHIFT


def producer_number(producer_id: int) -> int:
    """The number in a producer id, without member bit and owner tag."""
    return producer_id & (PRODUCER_NUMBERS - 1)


class LogPosition(NamedTuple):
    """A reader's position. `leader_epoch_id`: of the record before `offset`; identifies the history of the log; 0 = unknown."""

    offset: int
    leader_epoch_id: int = 0


def member_producer_id(number: int) -> int:
    """The producer id of a member of a transaction, without its owner's tag."""
    return number | MEMBER_BIT


def is_member_producer_id(producer_id: int) -> bool:
    """True if the producer id was assigned to a member of a transaction, open or ended."""
    return producer_id >= 0 and producer_id & MEMBER_BIT != 0


_NO_PROBLEMS: Mapping[int, str] = {}


class TopicInfo(NamedTuple):
    """The facts about a topic that a client needs to read and write it."""

    topic_id: bytes  # 16 bytes
    leaders: tuple[int, ...]  # node id per partition; -1 = none at present
    problems: Mapping[int, str] = _NO_PROBLEMS  # by partition: why it has no leader, or refuses records (damaged or stopped)
    leader_epochs: tuple[int, ...] = ()  # of `leaders`; -1 = unknown
    name: str = ""

    @property
    def partition_count(self) -> int:
        """Number of partitions."""
        return len(self.leaders)

    def leader_epoch(self, number: int) -> int:
        """The leader epoch of a partition; -1 = unknown."""
        return self.leader_epochs[number] if number < len(self.leader_epochs) else NO_EPOCH

    def led_by(self, number: int, leader: int, epoch: int) -> TopicInfo:
        """This topic, with another leader of one partition."""
        leaders, epochs = list(self.leaders), [self.leader_epoch(each) for each in range(len(self.leaders))]
        leaders[number], epochs[number] = leader, epoch
        return self._replace(leaders=tuple(leaders), leader_epochs=tuple(epochs))

    def without_leaderless_epochs(self) -> TopicInfo:
        """This topic, without the epochs of partitions that have no leader."""
        epochs = (NO_EPOCH if leader == NO_LEADER else self.leader_epoch(number) for number, leader in enumerate(self.leaders))
        return self._replace(leader_epochs=tuple(epochs))

    def newer_than(self, seen: TopicInfo) -> TopicInfo:
        """This topic, with the leaders of `seen` where their epochs are higher. A node that missed an election must not send its
        clients back to the old leader, which may lack records that the new leader acknowledged: that would look like data loss."""
        newer = [one for one, epoch in enumerate(seen.leader_epochs[: self.partition_count]) if epoch > self.leader_epoch(one)]
        if not newer:
            return self
        leaders, epochs = list(self.leaders), [self.leader_epoch(each) for each in range(self.partition_count)]
        for number in newer:
            leaders[number], epochs[number] = seen.leaders[number], seen.leader_epochs[number]
        return self._replace(leaders=tuple(leaders), leader_epochs=tuple(epochs))


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def new_topic_id() -> bytes:
    """A random topic id (16 bytes)."""
    return uuid.uuid4().bytes


def new_leader_epoch_id() -> int:
    """A random leader epoch id (32 bits, not 0). Drawn when a node becomes leader; no copy of its data shares it."""
    return secrets.randbelow(2**32 - 1) + 1


def nodes_text(node_ids: Sequence[int]) -> str:
    """Nodes in a sentence: "node 1" or "nodes 1, 2"."""
    return f"node{'' if len(node_ids) == 1 else 's'} {', '.join(map(str, node_ids))}"


def address_of(host: str, port: int) -> str:
    """host:port, as gRPC takes it: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def cluster_name_problem(name: str) -> str | None:
    """Why `name` is not a valid cluster name, phrased as the end of a sentence; None if it is valid."""
    if _CLUSTER_NAME.fullmatch(name) and name not in (".", ".."):
        return None
    return "it must have 1 to 100 letters, digits, '.', '_' or '-' (ASCII), and not be '.' or '..'"


def topic_name_problem(name: str, *, internal: bool = False) -> str | None:
    """Why `name` is not a valid topic name, phrased as the end of a sentence; None if it is valid.

    `internal` allows the broker's own names, which start with two underscores.
    """
    if not name:
        return "it is empty"
    if len(name) > TOPIC_NAME_MAX_LENGTH:
        return f"it has {len(name)} characters, more than the {TOPIC_NAME_MAX_LENGTH} allowed"
    if not _TOPIC_NAME.fullmatch(name):
        return "only letters, digits, '.', '_' and '-' are allowed (ASCII)"
    if name in (".", ".."):
        return "'.' and '..' are not topic names"
    if name.startswith(INTERNAL_PREFIX) and not internal:
        return "names that start with '__' are reserved for the broker"
    return None


def missing_topic_remedy(name: str, *, given_by: str = "the name") -> str:
    """What to do about a topic that does not exist, phrased as the end of a sentence. `given_by`: where its name was given."""
    return topic_name_problem(name) or f"create it (brokerd topics create {name} --partitions N), or correct {given_by}"
