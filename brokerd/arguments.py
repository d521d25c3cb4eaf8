"""Argument checks shared by the clients: partitions, numbers, offsets to commit. Pure.

Each raises TypeError or ValueError naming the argument before anything has happened: an invalid offset must not surface while
a transaction is being decided.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import NamedTuple

from brokerd.config.settings import INT32_MAX, INT64_MAX, is_unicode
from brokerd.ids import TOPIC_NAME_MAX_LENGTH, TopicPartition, topic_name_problem

GROUP_ID_MAX_LENGTH = 249
_UNKNOWN = -1
UINT32_MAX = 2**32 - 1


class OffsetAndMetadata(NamedTuple):
    """A group's committed offset of one partition: the next offset to read, and free text of at most 4096 bytes, returned
    unchanged (not made safe to print). `leader_epoch`: of the last record read, -1 = unknown. `leader_epoch_id`: its id, which
    identifies the history of the log, 0 = unknown. `commit_timestamp`: when the broker recorded it, ms since 1970, -1 = unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    commit_timestamp: int = -1
    leader_epoch_id: int = 0


def checked_partition(given: object) -> TopicPartition:
    """`given` as a TopicPartition."""
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)):
        raise TypeError(f"a partition is a TopicPartition or a pair of topic and number, not {given!r:.200}")
    topic, number = given
    problem = topic_name_problem(topic, internal=True)
    if problem is not None:
        raise ValueError(f"topic {topic[:TOPIC_NAME_MAX_LENGTH]!r} cannot be a topic's name: {problem}")
    return TopicPartition(topic, checked_int(number, "partition", maximum=INT32_MAX))


def checked_int(number: object, name: str, *, minimum: int = 0, maximum: int = INT64_MAX) -> int:
    """`number` as an int between `minimum` and `maximum`."""
    try:
        value = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {number!r:.200}") from None
    if isinstance(number, bool) or not minimum <= value <= maximum:
        raise ValueError(f"{name} must be a whole number between {minimum} and {maximum}, not {number!r}")
    return value


def checked_by_partition(given: object, name: str, what: str) -> dict[TopicPartition, object]:
    """`given` as a dict keyed by TopicPartition; `what` names the values in errors."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping of partitions to {what}, such as {{('events', 0): 5}}, not {given!r:.200}")
    return {checked_partition(tp): value for tp, value in given.items()}


def checked_offsets(given: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit by partition: whole numbers, or anything with an `offset`, such as OffsetAndMetadata."""
    return {tp: checked_offset(tp, one) for tp, one in checked_by_partition(given, "offsets", "offsets").items()}


def checked_offset(tp: TopicPartition, given: object) -> OffsetAndMetadata:
    """One offset to commit. As in Kafka's clients, metadata or an epoch of None means none."""
    metadata, leader_epoch = getattr(given, "metadata", None), getattr(given, "leader_epoch", None)
    offset = checked_int(getattr(given, "offset", given), f"the offset of {tp}")
    if metadata is not None and not isinstance(metadata, str):
        raise TypeError(f"the metadata of {tp} must be text, not {metadata!r:.200}")
    if metadata and not is_unicode(metadata):
        raise ValueError(f"the metadata of {tp} must be text that UTF-8 can encode, not {metadata!a:.200}")
    if leader_epoch is not None:
        leader_epoch = checked_int(leader_epoch, f"the leader epoch of {tp}", minimum=_UNKNOWN, maximum=INT32_MAX)
    epoch_id = checked_int(getattr(given, "leader_epoch_id", 0), f"the leader epoch id of {tp}", maximum=UINT32_MAX)
    return OffsetAndMetadata(offset, metadata or "", _UNKNOWN if leader_epoch is None else leader_epoch, leader_epoch_id=epoch_id)


def group_id_problem(group_id: str) -> str | None:
    """Why `group_id` is not a valid group id; None if it is."""
    if not group_id:
        return "must not be empty"
    if len(group_id) <= GROUP_ID_MAX_LENGTH and group_id.isprintable():
        return None
    return (
        f"{group_id[:GROUP_ID_MAX_LENGTH]!a} must have at most {GROUP_ID_MAX_LENGTH} characters that can be printed, it has "
        f"{len(group_id)} characters"
    )
