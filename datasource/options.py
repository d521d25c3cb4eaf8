"""Parses the options of the source into a frozen, validated SourceOptions: those of Spark's Kafka connector, by the same names, and
every consumer setting, bare or with the prefix `kafka.`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from brokerd.arguments import GROUP_ID_MAX_LENGTH
from brokerd.client.offsets import OffsetSpec
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT32_MAX, from_mapping
from brokerd.config.spark_options import (
    SINK,
    SOURCE,
    is_of_table,
    parse_count,
    parse_duration_ms,
    parse_flag,
    require_servers,
    split_options,
)
from brokerd.datasource.bounds import Bound, Committed, parse_bound, parse_json
from brokerd.datasource.patterns import topic_matcher
from brokerd.datasource.where import ALL_ROWS, RowFilter, parse_where
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition, topic_name_problem

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")  # the first one given wins, as with Kafka
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_MAX_TRIGGER_DELAY = "15m"
_GROUP_ID_PREFIX = "spark-brokerd"
_SOURCE_ID_CHARACTERS = 37  # a hyphen and a UUID


@dataclass(frozen=True, slots=True)
class TopicList:
    """`subscribe`: all partitions of these topics, including partitions added later."""

    option: ClassVar[str] = "subscribe"
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """`subscribePattern`: every topic whose name contains a match, including topics created later."""

    option: ClassVar[str] = "subscribePattern"
    pattern: str


@dataclass(frozen=True, slots=True)
class AssignedPartitions:
    """`assign`: these partitions and no others; each is read once it exists."""

    option: ClassVar[str] = "assign"
    partitions: tuple[TopicPartition, ...]


Subscription: TypeAlias = TopicList | TopicPattern | AssignedPartitions


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options of a read."""

    is_streaming: bool
    subscription: Subscription
    starting: Bound
    ending: Bound  # batch only
    where: RowFilter
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int  # longest wait for a batch smaller than min_offsets_per_trigger
    min_partitions: int | None
    max_records_per_partition: int | None
    task_per_partition: bool
    group_id: str  # of a stream; empty: derived from the prefix and the id in its checkpoint
    group_id_prefix: str
    consumer: ConsumerConfig

    @property
    def shares_tasks(self) -> bool:
        """Whether small ranges may share a task, or travel with the plan."""
        return not self.task_per_partition and self.min_partitions is None and self.max_records_per_partition is None

    def group_id_of(self, source_id: str) -> str | None:
        """The group to which a stream's positions are committed; None while the checkpoint has no id yet."""
        return self.group_id or (f"{self.group_id_prefix}-{source_id}" if source_id else None)


def parse_source_options(options: Mapping[str, str], *, is_streaming: bool) -> SourceOptions:
    """Parses the source's options. Raises ConfigError with one sentence that names the option."""
    split = split_options(options, SOURCE)
    require_servers(split.settings, SOURCE)
    if is_streaming:
        for name in _ENDING:
            if name in split:
                raise ConfigError(
                    f"{name} is for batch reads: a stream ends when it is stopped, or with trigger(availableNow=True)"
                )
    strategy = split.get("startingOffsetsByTimestampStrategy", "error").strip().lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(f"startingOffsetsByTimestampStrategy must be error or latest, not '{strategy}'")
    most, least = (parse_count(name, split.get(name)) for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"))
    if most is not None and least is not None and least > most:
        raise ConfigError(f"minOffsetsPerTrigger ({least}) must not exceed maxOffsetsPerTrigger ({most})")
    starting_name = next((name for name in _STARTING if name in split), "startingOffsets")
    starting = parse_bound(
        starting_name,
        split.get(starting_name, "latest" if is_streaming else "earliest"),
        ends=(OffsetSpec.EARLIEST, OffsetSpec.LATEST) if is_streaming else (OffsetSpec.EARLIEST,),
        latest_if_unmatched=strategy == "latest",
    )
    ending_name = next((name for name in _ENDING if name in split), "endingOffsets")
    ending = parse_bound(ending_name, split.get(ending_name, "latest"), ends=(OffsetSpec.LATEST,), latest_if_unmatched=True)
    group_id = _group_id("group.id", split.get("group.id"), "", GROUP_ID_MAX_LENGTH)
    if isinstance(starting, Committed) and not group_id:
        raise ConfigError("startingOffsets is committed, which needs option group.id: the group that has committed them")
    return SourceOptions(
        is_streaming=is_streaming,
        subscription=_subscription(split, options),
        starting=starting,
        ending=ending,
        where=parse_where(split["where"]) if "where" in split else ALL_ROWS,
        fail_on_data_loss=parse_flag("failOnDataLoss", split.get("failOnDataLoss"), default=True),
        include_headers=parse_flag("includeHeaders", split.get("includeHeaders"), default=False),
        max_offsets_per_trigger=most,
        max_bytes_per_trigger=parse_count("maxBytesPerTrigger", split.get("maxBytesPerTrigger")),
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=parse_duration_ms("maxTriggerDelay", split.get("maxTriggerDelay", _MAX_TRIGGER_DELAY)),
        min_partitions=parse_count("minPartitions", split.get("minPartitions")),
        max_records_per_partition=parse_count("maxRecordsPerPartition", split.get("maxRecordsPerPartition")),
        task_per_partition=parse_flag("taskPerPartition", split.get("taskPerPartition"), default=False),
        group_id=group_id,
        group_id_prefix=_group_id(
            "groupIdPrefix", split.get("groupIdPrefix"), _GROUP_ID_PREFIX, GROUP_ID_MAX_LENGTH - _SOURCE_ID_CHARACTERS
        ),
        consumer=from_mapping(ConsumerConfig, split.settings, where=SOURCE.where),
    )


def _group_id(option: str, text: str | None, default: str, maximum: int) -> str:
    if text is None:
        return default
    if not 1 <= len(text) <= maximum or not text.isprintable():
        raise ConfigError(f"{option} must have 1 to {maximum} characters that can be printed, not {text[:maximum]!a}")
    return text


def _subscription(split: Mapping[str, str], options: Mapping[str, str]) -> Subscription:
    given = [name for name in _SUBSCRIPTIONS if name in split]
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        sinks = f" ('{SINK.own[0]}' is the sink's)" if SINK.own[0] in options else ""
        raise ConfigError(f"exactly one of subscribe, subscribePattern and assign is needed, but {found}{sinks} {SOURCE.where}")
    text = split[given[0]].strip()
    if given[0] == "subscribe":
        return TopicList(_topic_names(text))
    if given[0] == "subscribePattern":
        if not text:
            raise ConfigError("subscribePattern is empty: give a regular expression that topic names match, such as orders-.*")
        topic_matcher(text)
        return TopicPattern(text)
    return AssignedPartitions(_assignment(text))


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
    parsed = parse_json(form, text)
    if not parsed:
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


def check_at_load(options: Mapping[str, str]) -> bool:
    """Checks the options when Spark requests the schema, so that load() raises the error; returns includeHeaders.

    Spark does not say whether the read is a stream, so it counts as a batch read only if it has an ending* option. A table may get
    more options at each use, so only their names are checked when it is created. Raises ConfigError.
    """
    split = split_options(options, SOURCE)
    if not is_of_table(options):
        parse_source_options(options, is_streaming=not any(name in split for name in _ENDING))
    return parse_flag("includeHeaders", split.get("includeHeaders"), default=False)
