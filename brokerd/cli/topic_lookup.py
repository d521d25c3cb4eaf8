"""Finds topics by name or pattern. The error for an unknown name suggests the nearest one."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence

from brokerd.cli.parser import usage_error
from brokerd.client.blocking import BlockingClient
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import UnknownTopicOrPartitionError, WireError
from brokerd.ids import TopicIdPartition, TopicInfo, missing_topic_remedy, topic_name_problem

_ELSEWHERE = "'brokerd topics list' prints those that you may see"


def topic_patterns(args: argparse.Namespace) -> list[re.Pattern[str]]:
    """The compiled patterns of --pattern. Raises UsageError if one is malformed, or if neither topics nor patterns are given."""
    if not args.topics and not args.pattern:
        raise usage_error(args, "name a TOPIC, or give a --pattern")
    patterns = []
    for text in args.pattern:
        try:
            patterns.append(re.compile(text))
        except (re.error, OverflowError, RecursionError) as error:
            raise usage_error(args, f"--pattern '{text:.200}' is not a regular expression: {error}") from None
    return patterns


def find_topics(
    client: BlockingClient, names: Sequence[str], patterns: Sequence[re.Pattern[str]] = (), *, may_create: bool = False
) -> list[TopicInfo]:
    """The topics with these names, and the existing topics whose names match a pattern (re.search), without duplicates. Raises
    UnknownTopicOrPartitionError for a name or a pattern without a topic, and the broker's other errors. `may_create`: as in
    `with_nearest_name`."""
    found: dict[str, TopicInfo] = {}
    if names:
        metadata = client.metadata(list(names))
        for name in names:
            if name in metadata.errors:
                raise with_nearest_name(client, name, metadata.errors[name], may_create=may_create)
            found[name] = metadata.topic(name)
    known = client.metadata(None).topics if patterns else {}
    for pattern in patterns:
        matching = {name: topic for name, topic in sorted(known.items()) if pattern.search(name)}
        if not matching:
            raise UnknownTopicOrPartitionError(f"there is no topic in whose name '{pattern.pattern}' is found")
        found.update(matching)
    return list(found.values())


def named_partitions(topics: Iterable[TopicInfo], partitions: Sequence[int] | None) -> dict[TopicIdPartition, str]:
    """All partitions of the topics, or only those with these numbers, mapped to topic names. Raises
    UnknownTopicOrPartitionError."""
    named = {}
    for topic in topics:
        for partition in sorted(set(partitions)) if partitions else range(topic.partition_count):
            check_partition(topic, partition)
            named[TopicIdPartition(topic.topic_id, partition)] = topic.name
    return named


def find_topic(client: BlockingClient, name: str, *, may_create: bool = False) -> TopicInfo:
    """The topic of this name. Raises UnknownTopicOrPartitionError suggesting the nearest name, and the broker's other errors."""
    (topic,) = find_topics(client, [name], may_create=may_create)
    return topic


def with_nearest_name(client: BlockingClient, name: str, error: WireError, *, may_create: bool = False) -> WireError:
    """Returns `error`; if the topic does not exist, an error that suggests the nearest name or, with `may_create`, to create the
    topic."""
    if not isinstance(error, UnknownTopicOrPartitionError):
        return error
    known = list(client.metadata(None).topics)
    remedy = missing_topic_remedy(name) if may_create else topic_name_problem(name) or _ELSEWHERE
    return UnknownTopicOrPartitionError(f"{error.message}: {did_you_mean(name, known, otherwise=remedy)}")


def check_partition(topic: TopicInfo, partition: int) -> None:
    """Raises UnknownTopicOrPartitionError if the topic has no such partition."""
    if not 0 <= partition < topic.partition_count:
        last = topic.partition_count - 1
        raise UnknownTopicOrPartitionError(f"topic '{topic.name}' has partitions 0 to {last}, not {partition}")
