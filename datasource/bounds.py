"""Parses the starting* and ending* options: the syntax shared by all clients (brokerd/client/bounds.py), offsets and times by
partition as JSON, as in Spark's Kafka connector, and the committed offsets of a group.

In JSON, -2 is the earliest offset and -1 the latest, as in Spark's Kafka connector. offset_reader.py resolves the bounds, which
needs the broker.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from brokerd.client.bounds import RELATIVE_FORMS, TimeAgo, parse_place, parse_time
from brokerd.client.offsets import LastRecords, OffsetSpec
from brokerd.config.settings import INT32_MAX, INT64_MAX, is_number
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition

EARLIEST_NUMBER = -2
LATEST_NUMBER = -1
_ENDS = {EARLIEST_NUMBER: OffsetSpec.EARLIEST, LATEST_NUMBER: OffsetSpec.LATEST}
_JSON = 'JSON such as {"topic": {"0": 23}}'


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset per partition, and defaults per topic for partitions without one; -2 earliest, -1 latest."""

    option: str
    offsets: Mapping[TopicPartition, int]
    topics: Mapping[str, int] = field(default_factory=dict)

    def for_partition(self, tp: TopicPartition) -> int | None:
        """The offset for a partition; None if the option does not name it."""
        return self.offsets.get(tp, self.topics.get(tp.topic))


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record at or after a time (ms since 1970), for all partitions or for each one."""

    option: str
    timestamp_ms: int | TimeAgo | Mapping[TopicPartition, int]
    latest_if_unmatched: bool  # without such a record, use the end of the log instead of raising an error

    def for_partition(self, tp: TopicPartition) -> int | None:
        """The time for a partition; None if the option does not name it."""
        assert not isinstance(self.timestamp_ms, TimeAgo), "it is fixed first"
        return self.timestamp_ms if isinstance(self.timestamp_ms, int) else self.timestamp_ms.get(tp)

    def fixed(self, now_ms: int) -> AtTimestamp:
        """The bound with a relative time resolved against `now_ms`, ms since 1970."""
        if not isinstance(self.timestamp_ms, TimeAgo):
            return self
        return replace(self, timestamp_ms=max(0, now_ms - self.timestamp_ms.age_ms))


@dataclass(frozen=True, slots=True)
class Committed:
    """Start at the committed offsets of the group that option group.id names; partitions without one start at the earliest."""


Bound: TypeAlias = OffsetSpec | SpecificOffsets | AtTimestamp | Committed | LastRecords


def parse_bound(option: str, text: str, *, ends: Sequence[OffsetSpec], latest_if_unmatched: bool) -> Bound:
    """Parses the value of a starting* or ending* option. `ends`: the ends of the log that it may name. Raises ConfigError naming
    the option and its valid values."""
    text = text.strip()
    if option.endswith("ByTimestamp"):
        form = f"{option} must be {_JSON}"
        return AtTimestamp(option, numbers_of(form, parse_json(form, text)), latest_if_unmatched)
    if option.endswith("Timestamp"):
        return AtTimestamp(option, parse_time(option, text), latest_if_unmatched)
    form = f"{option} must be {', '.join(end.value for end in ends)} or {_JSON}"
    for end in ends:
        if text.lower() == end.value:
            return end
    if option == "startingOffsets" and text.lower() == "committed":
        return Committed()
    if not text.startswith("{"):
        return _of_all_partitions(option, text, form)
    parsed = parse_json(form, text)
    words = {end.value: number for number, end in _ENDS.items()}
    topics = {topic: words[end.lower()] for topic, end in parsed.items() if isinstance(end, str) and end.lower() in words}
    offsets = numbers_of(form, {topic: one for topic, one in parsed.items() if topic not in topics}, minimum=EARLIEST_NUMBER)
    for name, offset in [*offsets.items(), *topics.items()]:
        if offset < 0 and _ENDS[offset] not in ends:
            raise ConfigError(f"{option} is {offset} ({_ENDS[offset].value}) for {name}, which leaves nothing to read")
    return SpecificOffsets(option, offsets, topics)


def _of_all_partitions(option: str, text: str, form: str) -> Bound:
    """A bound that is not JSON: a time, or a count of records. Raises ConfigError, also for -1 and -2, which in JSON mean latest
    and earliest."""
    if text in (str(LATEST_NUMBER), str(EARLIEST_NUMBER)):
        raise ConfigError(
            f"{option} must not be {text}, which in JSON is no count but an end of the log: write latest, earliest, or a count "
            "from -3 on"
        )
    with contextlib.suppress(ConfigError):
        place = parse_place(option, text)
        if isinstance(place, LastRecords):
            return place
        if isinstance(place, (int, TimeAgo)):
            return AtTimestamp(option, place, latest_if_unmatched=True)
    raise ConfigError(f"{form}, or for all partitions {RELATIVE_FORMS}, not '{text:.200}'")


def parse_json(form: str, text: str) -> dict[str, Any]:
    """Parses a JSON object without duplicate names. Raises ConfigError with a message that starts with `form`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise ConfigError(f"{form}: '{name:.200}' is given twice: keep one")
            found[name] = value
        return found

    try:
        parsed = json.loads(text, object_pairs_hook=unique)
    except ConfigError:  # also a ValueError
        raise
    except (ValueError, RecursionError):  # not JSON; numbers of thousands of digits; brackets nested thousands deep
        raise ConfigError(f"{form}, not '{text:.200}'") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"{form}, not '{text:.200}'")
    return parsed


def numbers_of(form: str, parsed: Mapping[str, Any], *, minimum: int = 0, maximum: int = INT64_MAX) -> dict[TopicPartition, int]:
    """Numbers by partition. Raises ConfigError (`form`, then the fault) for any other value or a partition given twice."""
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in parsed.items():
        if topic.startswith("@"):  # brokerd's metadata in offsets copied from a checkpoint
            continue
        if not isinstance(partitions, dict):
            raise ConfigError(f"{form}: '{topic}' is {json.dumps(partitions)}")
        for partition, number in partitions.items():
            if not is_number(partition, INT32_MAX) or type(number) is not int or not minimum <= number <= maximum:
                raise ConfigError(f"{form}: '{topic}' partition '{partition}' is {json.dumps(number)}")
            tp = TopicPartition(topic, int(partition))
            if tp in numbers:
                raise ConfigError(f"{form}: partition {tp} is given twice, once as '{partition}'; keep one")
            numbers[tp] = number
    return numbers
