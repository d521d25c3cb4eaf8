"""Checks the arguments of Consumer methods and brings them into one form."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping

from brokerd.client.group_offsets import OffsetAndMetadata
from brokerd.config.client import PlainConsumerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX, from_mapping
from brokerd.errors import ConfigError
from brokerd.ids import TOPIC_NAME_MAX_LENGTH, TopicPartition, topic_name_problem

GROUP_ID_MAX_LENGTH = 249
Partitions = Iterable[TopicPartition | tuple[str, int]] | TopicPartition | tuple[str, int]


def config_of(config: Mapping[str, object] | PlainConsumerConfig | None, settings: Mapping[str, object]) -> PlainConsumerConfig:
    """Settings from a mapping by name, from keywords with underscores, or a ready configuration. Raises ConfigError."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    if isinstance(config, PlainConsumerConfig):
        if given:
            raise ConfigError("settings by keyword go with a mapping, not with a PlainConsumerConfig")
        checked = config
    else:
        checked = from_mapping(PlainConsumerConfig, {**(config or {}), **given})
    group_id = checked.group_id
    if len(group_id) > GROUP_ID_MAX_LENGTH or (group_id and not group_id.isprintable()):
        raise ConfigError(
            f"group.id {group_id[:GROUP_ID_MAX_LENGTH]!a} must have at most {GROUP_ID_MAX_LENGTH} characters that can be printed, "
            f"it has {len(group_id)} characters"
        )
    return checked


def checked_partitions(given: object) -> list[TopicPartition]:
    """Partitions, each once: TopicPartitions or pairs of topic and number; one alone may stand for a list of one. Raises TypeError
    and ValueError."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        given = [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"partitions must be a list of TopicPartition or of (topic, number), not {given!r:.200}")
    return list(dict.fromkeys(checked_partition(one) for one in given))


def checked_partition(given: object) -> TopicPartition:
    """A partition. Raises TypeError and ValueError."""
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)):
        raise TypeError(f"a partition is a TopicPartition or a pair of topic and number, not {given!r:.200}")
    topic, number = given
    problem = topic_name_problem(topic, internal=True)
    if problem is not None:
        raise ValueError(f"topic {topic[:TOPIC_NAME_MAX_LENGTH]!r} cannot be a topic's name: {problem}")
    return TopicPartition(topic, checked_int(number, "partition", maximum=INT32_MAX))


def checked_int(number: object, name: str, *, minimum: int = 0, maximum: int = INT64_MAX) -> int:
    """A whole number in its range. Raises TypeError and ValueError naming the argument."""
    try:
        value = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {number!r:.200}") from None
    if isinstance(number, bool) or not minimum <= value <= maximum:
        raise ValueError(f"{name} must be a whole number between {minimum} and {maximum}, not {number!r}")
    return value


def checked_offsets(given: Mapping[TopicPartition, OffsetAndMetadata | int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit by partition. Raises TypeError and ValueError."""
    offsets = {}
    for tp, committed in given.items():
        whole = committed if isinstance(committed, OffsetAndMetadata) else OffsetAndMetadata(committed)
        offsets[checked_partition(tp)] = whole._replace(offset=checked_int(whole.offset, f"the offset of {tp}"))
    return offsets
