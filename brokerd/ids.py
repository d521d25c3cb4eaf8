"""Identifiers: small immutable values that every layer shares. Nothing here has behaviour."""

from __future__ import annotations

import re
import secrets
import uuid
from typing import NamedTuple, TypeAlias

TOPIC_NAME_MAX_LENGTH = 249
TRANSACTIONAL_ID_MAX_LENGTH = 249
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

NO_PRODUCER_ID = -1
# A producer id consists of a number that is never reused, a bit that is set if it was assigned to a member of a transaction,
# and the tag of its owner (server/security/topic_authorizer.py). The id alone identifies both, permanently.
PRODUCER_NUMBER_BITS = 39
PRODUCER_NUMBERS = 1 << PRODUCER_NUMBER_BITS
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


def producer_number(producer_id: int) -> int:
    """The number in a producer id, without member bit and owner tag."""
    return producer_id & (PRODUCER_NUMBERS - 1)


Leaders: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # of a topic: node id and leader epoch of each partition


class LogPosition(NamedTuple):
    """A reader's position, with the leader epoch id of the record before `offset`, which identifies the log's history (0 =
    unknown)."""

    offset: int
    leader_epoch_id: int = 0


def member_producer_id(number: int) -> int:
    """The producer id of a member of a transaction, without its owner's tag."""
    return number | MEMBER_BIT


def is_member_producer_id(producer_id: int) -> bool:
    """True if the producer id was assigned to a member of a transaction, open or ended."""
    return producer_id >= 0 and producer_id & MEMBER_BIT != 0


def newest_leaders(now: Leaders, seen: Leaders) -> Leaders:
    """The leaders that a node names now, except where those seen before have a higher epoch. A node that missed an election must
    not send its clients back to the old leader: that one may lack what the new one has acknowledged, which would look like loss.
    """
    (leaders, epochs), (seen_leaders, seen_epochs) = now, seen
    known = [*epochs, *[NO_EPOCH] * (len(leaders) - len(epochs))]
    newer = [number for number, epoch in enumerate(seen_epochs[: len(known)]) if epoch > known[number]]
    if not newer:
        return now
    kept = list(leaders)
    for number in newer:
        kept[number], known[number] = seen_leaders[number], seen_epochs[number]
    return tuple(kept), tuple(known)


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def new_topic_id() -> bytes:
    """A random topic id (16 bytes)."""
    return uuid.uuid4().bytes


def new_leader_epoch_id() -> int:
    """A random leader epoch id (32 bits, not 0). Each start of the broker has its own, which no copy of its data shares."""
    return secrets.randbelow(2**32 - 1) + 1


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
    if name.startswith("__") and not internal:
        return "names that start with '__' are reserved for the broker"
    return None
