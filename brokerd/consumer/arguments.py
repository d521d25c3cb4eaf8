"""Checks the arguments of Consumer methods and brings them into one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from brokerd.arguments import checked_partition, group_id_problem
from brokerd.config.client import PlainConsumerConfig
from brokerd.config.settings import by_name, from_mapping
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition

Partitions = Iterable[TopicPartition | tuple[str, int]] | TopicPartition | tuple[str, int]


def config_of(config: Mapping[str, object] | PlainConsumerConfig | None, settings: Mapping[str, object]) -> PlainConsumerConfig:
    """Settings from a mapping by name, from keywords with underscores, or a ready configuration. Raises ConfigError."""
    if isinstance(config, PlainConsumerConfig):
        if settings:
            raise ConfigError("settings by keyword go with a mapping, not with a PlainConsumerConfig")
        checked = config
    else:
        checked = from_mapping(PlainConsumerConfig, by_name(config, settings))
    problem = group_id_problem(checked.group_id) if checked.group_id else None
    if problem is not None:
        raise ConfigError(f"group.id {problem}")
    return checked


def checked_partitions(given: object) -> list[TopicPartition]:
    """Partitions, each once: TopicPartitions or pairs of topic and number; one alone may stand for a list of one. Raises TypeError
    and ValueError."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
        given = [given]
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(f"partitions must be a list of TopicPartition or of (topic, number), not {given!r:.200}")
    return list(dict.fromkeys(checked_partition(one) for one in given))
