"""Where a command begins and ends in a log, in one syntax, resolved against partitions. Parsing is pure.

earliest, latest    an end of the log (beginning, end: likewise)
N                   the offset N
-N                  N offsets before the end of each partition
-10m                the first record that is at most so old; units ms, s, m, h, d
TIME, @TIME, @MS    the first record of that time or later: ISO 8601 or ms since 1970
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from brokerd.client.blocking import BlockingClient
from brokerd.client.consumer.offsets import OffsetSpec, Wanted
from brokerd.client.consumer.positions import FetchRange
from brokerd.config.durations import duration_ms
from brokerd.config.settings import INT64_MAX
from brokerd.errors import ConfigError, WireError
from brokerd.ids import TopicIdPartition

FORMS = "earliest, latest, N, -N (N before the end), -10m (so long ago) or @TIME"
_NO_SUCH_RECORD = -1
_MS_PER_S = 1_000

Named: TypeAlias = Mapping[TopicIdPartition, str]  # partitions and the names of their topics


class Bound(NamedTuple):
    """A place in a log: `shift` offsets from `wanted` (an end of the log, or a time), or the offset `exact`."""

    wanted: Wanted
    shift: int = 0
    exact: int | None = None


EARLIEST, LATEST = Bound(OffsetSpec.EARLIEST), Bound(OffsetSpec.LATEST)
_WORDS = {"earliest": EARLIEST, "beginning": EARLIEST, "latest": LATEST, "end": LATEST}


class LogBounds(NamedTuple):
    """One partition: where its log begins and ends for a reader, and the offset of the time that is asked for (-1: no record is as
    new, or no time is asked for)."""

    earliest: int
    latest: int
    at_time: int = _NO_SUCH_RECORD


def parse_bound(option: str, text: str, *, now_ms: int) -> Bound:
    """The value of an option, in the syntax above. Raises ConfigError that names the option."""
    if text in _WORDS:
        return _WORDS[text]
    if text.isascii() and text.removeprefix("-").isdecimal():
        return _number(option, text)
    timestamp_ms = parse_timestamp(option, text, now_ms=now_ms) if _may_be_time(text) else None
    if timestamp_ms is None:
        raise ConfigError(f"{option} takes {FORMS}, not '{text:.200}'")
    return Bound(timestamp_ms)


def parse_timestamp(option: str, text: str, *, now_ms: int) -> int:
    """ms since 1970 of a number of them, of ISO 8601, or of a time ago such as -10m. Raises ConfigError that names the option."""
    given = text.removeprefix("@")
    if given.isascii() and given.isdecimal():
        return _limited(option, text, _whole(given))
    age_ms = duration_ms(given[1:]) if given.startswith("-") and given[-1:].isalpha() else None
    if age_ms is not None:
        return max(0, now_ms - age_ms)
    try:
        moment = datetime.datetime.fromisoformat(given)
        timestamp_ms = round((moment if moment.tzinfo else moment.astimezone()).timestamp() * _MS_PER_S)
    except (ValueError, OverflowError):
        example = f"{text[: len(text) - len(given)]}2026-01-31T12:00:00Z"
        raise ConfigError(
            f"{option} takes ms since 1970, a time ago such as -10m, or ISO 8601 such as {example}, not '{text:.200}'"
        ) from None
    return _limited(option, text, max(0, timestamp_ms))  # no record is older


def offset_of(bound: Bound, log: LogBounds) -> int:
    """The offset of a place in the log of one partition; an `exact` one may lie outside of it."""
    if bound.exact is not None:
        return bound.exact
    if bound.wanted is OffsetSpec.EARLIEST:
        return log.earliest
    if bound.wanted is OffsetSpec.LATEST:
        return max(log.earliest, log.latest + bound.shift)
    return log.latest if log.at_time == _NO_SUCH_RECORD else log.at_time


def ranges_of(client: BlockingClient, named: Named, start: Bound, end: Bound | None, isolation: str) -> list[FetchRange]:
    """One range per partition: from `start` to `end`, which is never behind the current end of the log, or without end. Raises the
    broker's error for any partition."""
    tps = list(named)
    starts = log_bounds(client, named, start, isolation)
    ends = starts
    if end is not None and isinstance(end.wanted, int):
        at_time = offsets_at(client, tps, end.wanted, isolation)
        ends = {tp: log._replace(at_time=at_time[tp]) for tp, log in starts.items()}
    ranges = []
    for tp, name in named.items():
        until = None if end is None else min(offset_of(end, ends[tp]), ends[tp].latest)
        ranges.append(FetchRange(tp, offset_of(start, starts[tp]), until, f"{name}-{tp.partition}"))
    return ranges


def log_bounds(client: BlockingClient, named: Named, bound: Bound, isolation: str) -> dict[TopicIdPartition, LogBounds]:
    """The facts about each partition that `offset_of` needs. Raises the broker's error for any of them."""
    tps = list(named)
    earliest = offsets_at(client, tps, OffsetSpec.EARLIEST, isolation)
    latest = offsets_at(client, tps, OffsetSpec.LATEST, isolation)
    at_time = offsets_at(client, tps, bound.wanted, isolation) if isinstance(bound.wanted, int) else {}
    return {tp: LogBounds(earliest[tp], latest[tp], at_time.get(tp, _NO_SUCH_RECORD)) for tp in tps}


def offsets_at(
    client: BlockingClient, tps: Sequence[TopicIdPartition], wanted: Wanted, isolation: str
) -> dict[TopicIdPartition, int]:
    """The wanted offset of each partition. Raises the broker's error for any of them."""
    offsets = {}
    for tp, result in client.list_offsets(dict.fromkeys(tps, wanted), isolation).items():
        if isinstance(result, WireError):
            raise result
        offsets[tp] = result.offset
    return offsets


def _number(option: str, text: str) -> Bound:
    number = _whole(text.removeprefix("-"))
    if number > INT64_MAX:
        raise ConfigError(f"{option} must be between -{INT64_MAX} and {INT64_MAX}, not {text:.200}")
    return Bound(OffsetSpec.LATEST, shift=-number) if text.startswith("-") else Bound(OffsetSpec.EARLIEST, exact=number)


def _whole(digits: str) -> int:
    """The number, or one above all limits: Python refuses to read thousands of digits."""
    significant = digits.lstrip("0") or "0"
    return int(significant) if len(significant) <= len(str(INT64_MAX)) else INT64_MAX + 1


def _may_be_time(text: str) -> bool:
    """False for other texts: their error names all forms there are, not those of times alone."""
    return text.startswith("@") or text[:4].isdecimal() or (text[:1] == "-" and text[1:2].isdecimal())


def _limited(option: str, text: str, timestamp_ms: int) -> int:
    if timestamp_ms > INT64_MAX:
        raise ConfigError(f"{option} must be at most {INT64_MAX} ms since 1970, not {text:.200}")
    return timestamp_ms
