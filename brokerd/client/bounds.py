"""Start and end of a read: one syntax for the command line, Spark's options and Python. Parsing is pure; resolving a bound to
offsets calls the broker.

earliest, latest    an end of the log
N                   the offset N
-N                  the newest N records of each partition
-10m                the first record at most 10 minutes old; units ms, s, m, h, d
TIME, @TIME, @MS    the first record at or after that time: ISO 8601 or ms since 1970
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from brokerd.client.fetching import NO_END, FetchRange
from brokerd.client.offsets import GivenOffset, LastRecords, OffsetSpec, Wanted, answers_in
from brokerd.config.settings import INT64_MAX, duration_ms
from brokerd.errors import ConfigError
from brokerd.ids import TopicIdPartition

if TYPE_CHECKING:
    from brokerd.client.blocking import BlockingClient

RELATIVE_FORMS = "-N (the newest N records), -10m (so long ago) or @TIME"
FORMS = (
    "earliest, latest, N (that offset), -N (the newest N records), -10m (so long ago), 2026-01-31T12:00:00Z, or @ and ms since 1970"
)
_NO_SUCH_RECORD = -1
_MS_PER_S = 1_000

Named: TypeAlias = Mapping[TopicIdPartition, str]  # partitions and the names of their topics


@dataclass(frozen=True, slots=True)
class TimeAgo:
    """A time relative to now."""

    age_ms: int


Bound: TypeAlias = GivenOffset | OffsetSpec | LastRecords | int  # an int is a time, ms since 1970
_WORDS = {spec.value: spec for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)}


class LogBounds(NamedTuple):
    """One partition's log as a reader sees it. `found`: the offset of a time or of the newest N records (-1: no record is that
    new, or none was looked up)."""

    earliest: int
    latest: int
    found: int = _NO_SUCH_RECORD


def parse_bound(option: str, text: str, *, now_ms: int) -> Bound:
    """Parses an option in the syntax above. Raises ConfigError that names the option."""
    bound = parse_place(option, text)
    return max(0, now_ms - bound.age_ms) if isinstance(bound, TimeAgo) else bound


def parse_place(option: str, text: str) -> Bound | TimeAgo:
    """As `parse_bound`, but leaves relative times unresolved."""
    if text in _WORDS:
        return _WORDS[text]
    if text.isascii() and text.removeprefix("-").isdecimal():
        number = _whole(text.removeprefix("-"))
        if number > INT64_MAX:
            raise ConfigError(f"{option} must be between -{INT64_MAX} and {INT64_MAX}, not {text:.200}")
        return LastRecords(number) if text.startswith("-") else GivenOffset(number)
    time = _time(option, text)
    if time is None:
        raise ConfigError(f"{option} takes {FORMS}, not '{text:.200}'")
    return time


def parse_timestamp(option: str, text: str, *, now_ms: int) -> int:
    """Parses ms since 1970, ISO 8601 or a relative time such as -10m to ms since 1970. Raises ConfigError that names the option."""
    time = parse_time(option, text)
    return max(0, now_ms - time.age_ms) if isinstance(time, TimeAgo) else time


def parse_time(option: str, text: str) -> int | TimeAgo:
    """As `parse_timestamp`, but leaves relative times unresolved."""
    time = _time(option, text)
    if time is None:
        example = f"{'@' if text.startswith('@') else ''}2026-01-31T12:00:00Z"
        raise ConfigError(
            f"{option} takes ms since 1970, a time ago such as -10m, or ISO 8601 such as {example}, not '{text:.200}'"
        )
    return time


def _time(option: str, text: str) -> int | TimeAgo | None:
    """Parses a text as a time; None if it is not one. Raises ConfigError for a time above INT64_MAX."""
    given = text.removeprefix("@")
    if given.isascii() and given.isdecimal():
        return _limited(option, text, _whole(given))
    age_ms = duration_ms(given[1:]) if given.startswith("-") and given[-1:].isalpha() else None
    if age_ms is not None:
        return TimeAgo(age_ms)
    try:
        moment = datetime.datetime.fromisoformat(given)
        timestamp_ms = round((moment if moment.tzinfo else moment.astimezone()).timestamp() * _MS_PER_S)
    except (ValueError, OverflowError):
        return None
    return _limited(option, text, max(0, timestamp_ms))  # no record is older


def offset_of(bound: Bound, log: LogBounds) -> int:
    """The offset of a bound in one partition; an offset given as a number may lie outside the log."""
    if isinstance(bound, GivenOffset):
        return bound.offset
    if bound is OffsetSpec.EARLIEST:
        return log.earliest
    return log.latest if log.found == _NO_SUCH_RECORD else log.found


def ranges_of(client: BlockingClient, named: Named, start: Bound, end: Bound | None, isolation: str) -> list[FetchRange]:
    """One range per partition: from `start` to `end`, at most the current end of the log; without `end`, unbounded. Raises the
    broker's error for any partition."""
    starts = log_bounds(client, named, start, isolation)
    found = _found(client, {tp: log.latest for tp, log in starts.items()}, end, isolation)
    ranges = []
    for tp, name in named.items():
        until = NO_END
        if end is not None:
            until = min(offset_of(end, starts[tp]._replace(found=found.get(tp, _NO_SUCH_RECORD))), starts[tp].latest)
        ranges.append(FetchRange(tp, offset_of(start, starts[tp]), until, name))
    return ranges


def log_bounds(client: BlockingClient, named: Named, bound: Bound, isolation: str) -> dict[TopicIdPartition, LogBounds]:
    """Looks up what `offset_of` needs for each partition. Raises the broker's error for any of them."""
    logs = answers_in(client.list_offsets(dict.fromkeys(named, OffsetSpec.LATEST), isolation))
    found = _found(client, {tp: log.offset for tp, log in logs.items()}, bound, isolation)
    return {tp: LogBounds(log.log_start_offset, log.offset, found.get(tp, _NO_SUCH_RECORD)) for tp, log in logs.items()}


def _found(
    client: BlockingClient, ends: Mapping[TopicIdPartition, int], bound: Bound | None, isolation: str
) -> dict[TopicIdPartition, int]:
    """Looks up a time or the newest records, at most at `ends`: the logs may have grown since. Other bounds need no lookup."""
    if not isinstance(bound, (int, LastRecords)):
        return {}
    wanted = {tp: LastRecords(bound.count, end) if isinstance(bound, LastRecords) else bound for tp, end in ends.items()}
    return {tp: min(offset, ends[tp]) for tp, offset in offsets_at(client, wanted, isolation).items()}


def offsets_at(client: BlockingClient, wanted: Mapping[TopicIdPartition, Wanted], isolation: str) -> dict[TopicIdPartition, int]:
    """The wanted offset of each partition. Raises the broker's error for any of them."""
    return {tp: answer.offset for tp, answer in answers_in(client.list_offsets(wanted, isolation)).items()}


def _whole(digits: str) -> int:
    """The number; INT64_MAX + 1 if it has more digits than INT64_MAX: Python refuses to parse thousands of digits."""
    significant = digits.lstrip("0") or "0"
    return int(significant) if len(significant) <= len(str(INT64_MAX)) else INT64_MAX + 1


def _limited(option: str, text: str, timestamp_ms: int) -> int:
    if timestamp_ms > INT64_MAX:
        raise ConfigError(f"{option} must be at most {INT64_MAX} ms since 1970, not {text:.200}")
    return timestamp_ms
