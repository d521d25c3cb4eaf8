"""Options of the source: names as Spark's Kafka connector spells them, every consumer setting bare or behind `kafka.`.

The only place where the source's options are parsed; what comes out is frozen and checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT32_MAX, from_mapping, settings_of
from brokerd.config.spark_options import REFUSED_EVERYWHERE, parse_count, parse_flag, require_servers, split_options
from brokerd.datasource.bounds import Bound, parse_bound
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition, topic_name_problem

WHERE = "(option of the brokerd source)"

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")  # the first one given counts, as with Kafka
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
# Retry knobs of Spark's Kafka connector: accepted, so that a ported pipeline runs, and without effect, because every
# call is retried for default.api.timeout.ms.
_WITHOUT_EFFECT = ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs")
OWN_OPTIONS = (
    *_SUBSCRIPTIONS,
    *_STARTING,
    "startingOffsetsByTimestampStrategy",
    *_ENDING,
    "failOnDataLoss",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    *_WITHOUT_EFFECT,
)
_NOT_YET = "it is not yet supported"
REFUSED = {
    **REFUSED_EVERYWHERE,
    "auto.offset.reset": "a query starts at startingOffsets, and later at its own checkpoint",
    "enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "group.id": f"{_NOT_YET}; offsets are kept in Spark's checkpoint",
    "groupIdPrefix": f"{_NOT_YET}; offsets are kept in Spark's checkpoint",
    "minOffsetsPerTrigger": f"{_NOT_YET}; a trigger interval collects rows too",
    "maxTriggerDelay": f"{_NOT_YET}; a trigger interval collects rows too",
    "maxBytesPerTrigger": f"{_NOT_YET}; maxOffsetsPerTrigger limits a batch",
}


@dataclass(frozen=True, slots=True)
class Topics:
    """`subscribe`: these topics, all partitions, also those that come later."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """`subscribePattern`: every topic whose whole name matches, also those that come later."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """`assign`: these partitions and no others."""

    partitions: tuple[TopicPartition, ...]


Subscription: TypeAlias = Topics | TopicPattern | Assignment


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What the user asked of the source."""

    subscription: Subscription
    starting: Bound
    ending: Bound  # batch only
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    consumer: ConsumerConfig


def parse_source_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """The source's options from Spark's. Raises ConfigError with one sentence that names the option."""
    split = split_options(options, own=OWN_OPTIONS, settings=settings_of(ConsumerConfig), refused=REFUSED, where=WHERE)
    require_servers(split.settings, WHERE)
    if is_streaming:
        for name in _ENDING:
            if name in split:
                raise ConfigError(
                    f"{name} is for batch reads: a stream ends when it is stopped, or with trigger(availableNow=True)"
                )
    starting_name = next((name for name in _STARTING if name in split), None)
    ending_name = next((name for name in _ENDING if name in split), None)
    strategy = split.get("startingOffsetsByTimestampStrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy must be error or latest, not '{strategy}'")
    return SourceOptions(
        subscription=_subscription(split),
        starting=parse_bound(
            starting_name or "startingOffsets",
            split[starting_name] if starting_name else ("latest" if is_streaming else "earliest"),
            may_be_earliest=True,
            may_be_latest=is_streaming,
            latest_if_unmatched=strategy == "latest",
        ),
        ending=parse_bound(
            ending_name or "endingOffsets",
            split[ending_name] if ending_name else "latest",
            may_be_earliest=False,
            may_be_latest=True,
            latest_if_unmatched=True,
        ),
        fail_on_data_loss=parse_flag("failOnDataLoss", split.get("failOnDataLoss"), default=True),
        include_headers=parse_flag("includeHeaders", split.get("includeHeaders"), default=False),
        max_offsets_per_trigger=parse_count("maxOffsetsPerTrigger", split.get("maxOffsetsPerTrigger")),
        min_partitions=parse_count("minPartitions", split.get("minPartitions")),
        max_records_per_partition=parse_count("maxRecordsPerPartition", split.get("maxRecordsPerPartition")),
        consumer=from_mapping(ConsumerConfig, split.settings, where=WHERE),
    )


def _subscription(split: Mapping[str, str]) -> Subscription:
    given = [name for name in _SUBSCRIPTIONS if name in split]
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        raise ConfigError(f"exactly one of subscribe, subscribePattern and assign says what to read, but {found} {WHERE}")
    text = split[given[0]].strip()
    if given[0] == "subscribe":
        return Topics(_topic_names(text))
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern '{text}' is not a regular expression: {error}") from None
        return TopicPattern(text)
    return Assignment(_assignment(text))


def _topic_names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError("subscribe is empty: name one or more topics, separated by commas")
    for name in names:
        problem = topic_name_problem(name)
        if problem:
            raise ConfigError(f"subscribe names '{name}', which is not a topic's name: {problem}")
    return names


def _assignment(text: str) -> tuple[TopicPartition, ...]:
    form = 'assign must be JSON such as {"topic": [0, 1]}'
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:  # as in bounds.py
        raise ConfigError(f"{form}, not '{text:.200}': {error}") from None
    if not isinstance(parsed, dict) or not parsed:
        raise ConfigError(f"{form}, not '{text}'")
    partitions = []
    for topic, numbers in parsed.items():
        problem = topic_name_problem(topic)
        if problem:
            raise ConfigError(f"assign names '{topic}', which is not a topic's name: {problem}")
        if (
            not isinstance(numbers, list)
            or not numbers
            or not all(type(number) is int and 0 <= number <= INT32_MAX for number in numbers)
        ):
            raise ConfigError(f"{form}: the partitions of '{topic}' are {json.dumps(numbers)}")
        partitions += [TopicPartition(topic, number) for number in numbers]
    return tuple(sorted(set(partitions)))


def includes_headers(options: Mapping[str, str]) -> bool:
    """includeHeaders alone, after a check of all names: whether a read is a stream is not known when its schema is asked."""
    split = split_options(options, own=OWN_OPTIONS, settings=settings_of(ConsumerConfig), refused=REFUSED, where=WHERE)
    return parse_flag("includeHeaders", split.get("includeHeaders"), default=False)
