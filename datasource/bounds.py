"""Where a read begins or ends, as users say it: earliest, latest, offsets per partition, a time. Parsed, not resolved.

In JSON, -2 is the earliest offset and -1 the latest, as in Spark's Kafka connector. Resolving needs the broker and is in
offset_reader.py.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.errors import ConfigError
from brokerd.ids import TopicPartition

EARLIEST_NUMBER = -2
LATEST_NUMBER = -1


class End(enum.Enum):
    """An end of the log, for all partitions."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class SpecificOffsets:
    """An offset for each partition; -2 earliest, -1 latest."""

    option: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record at or after a time (ms since 1970), for all partitions or for each one."""

    option: str
    timestamp_ms: int | Mapping[TopicPartition, int]
    latest_if_unmatched: bool  # where no record is so late: the end of the log, or an error

    def for_partition(self, tp: TopicPartition) -> int | None:
        """The time for a partition; None if the option does not name it."""
        return self.timestamp_ms if isinstance(self.timestamp_ms, int) else self.timestamp_ms.get(tp)


Bound: TypeAlias = End | SpecificOffsets | AtTimestamp


def parse_bound(option: str, text: str, *, may_be_earliest: bool, may_be_latest: bool, latest_if_unmatched: bool) -> Bound:
    """The value of a starting* or ending* option. Raises ConfigError naming the option and what it may be."""
    text = text.strip()
    if option.endswith("Timestamp") and not option.endswith("ByTimestamp"):
        return AtTimestamp(option, _timestamp(option, text), latest_if_unmatched)
    if option.endswith("ByTimestamp"):
        return AtTimestamp(option, _by_partition(option, text, minimum=0), latest_if_unmatched)
    if text.lower() == End.EARLIEST.value and may_be_earliest:
        return End.EARLIEST
    if text.lower() == End.LATEST.value and may_be_latest:
        return End.LATEST
    offsets = _by_partition(option, text, minimum=EARLIEST_NUMBER, words=_words(may_be_earliest, may_be_latest))
    for tp, offset in offsets.items():
        if (offset == EARLIEST_NUMBER and not may_be_earliest) or (offset == LATEST_NUMBER and not may_be_latest):
            end = End.EARLIEST if offset == EARLIEST_NUMBER else End.LATEST
            raise ConfigError(f"{option} is {offset} ({end.value}) for {tp}, which leaves nothing to read")
    return SpecificOffsets(option, offsets)


def _words(may_be_earliest: bool, may_be_latest: bool) -> str:
    words = [end.value for end, allowed in ((End.EARLIEST, may_be_earliest), (End.LATEST, may_be_latest)) if allowed]
    return ", ".join(words) + " or "


def _timestamp(option: str, text: str) -> int:
    if not _is_number(text, INT64_MAX):
        raise ConfigError(f"{option} must be milliseconds since 1970, such as 1767225600000, not '{text:.200}'")
    return int(text)


def _is_number(text: str, maximum: int) -> bool:
    """Python itself refuses to read a number of thousands of digits."""
    return text.isdecimal() and len(text) <= len(str(maximum)) and int(text) <= maximum


def _by_partition(option: str, text: str, *, minimum: int, words: str = "") -> dict[TopicPartition, int]:
    form = f'{option} must be {words}JSON such as {{"topic": {{"0": 23}}}}'
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):  # no JSON; numbers of thousands of digits; brackets in thousands of brackets
        raise ConfigError(f"{form}, not '{text:.200}'") from None
    if not isinstance(parsed, dict):
        raise ConfigError(f"{form}, not '{text}'")
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in parsed.items():
        if topic.startswith("@"):  # what brokerd itself adds to the offsets in a checkpoint
            continue
        if not isinstance(partitions, dict):
            raise ConfigError(f"{form}: '{topic}' is {json.dumps(partitions)}")
        for partition, number in partitions.items():
            if not _is_number(partition, INT32_MAX) or type(number) is not int or not minimum <= number <= INT64_MAX:
                raise ConfigError(f"{form}: '{topic}' partition '{partition}' is {json.dumps(number)}")
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers
