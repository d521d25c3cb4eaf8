"""Where `brokerd consume` begins and ends: the --offset option, resolved against a topic. Parsing is pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from brokerd.client.blocking import BlockingClient
from brokerd.client.consumer.offsets import OffsetSpec, Wanted
from brokerd.client.consumer.positions import FetchRange
from brokerd.client.metadata import TopicInfo
from brokerd.config.settings import INT64_MAX
from brokerd.errors import ConfigError, WireError
from brokerd.ids import TopicIdPartition

_NO_SUCH_RECORD = -1
_MS_PER_S = 1_000


class StartOffset(NamedTuple):
    """The place to start from: `shift` records from `wanted` (an end of the log, or a time), or the offset `exact`."""

    wanted: Wanted
    shift: int = 0
    exact: int | None = None


def parse_offset(text: str) -> StartOffset:
    """beginning | end | N | -N (the last N of each partition) | @TIME (ms since 1970, or ISO 8601). Raises ConfigError."""
    if text in ("beginning", "earliest"):
        return StartOffset(OffsetSpec.EARLIEST)
    if text in ("end", "latest"):
        return StartOffset(OffsetSpec.LATEST)
    if text.startswith("@"):
        timestamp_ms = parse_timestamp(text[1:], "--offset @TIME", "@")
        if timestamp_ms > INT64_MAX:
            raise ConfigError(f"--offset @TIME must be at most {INT64_MAX} ms since 1970, not {text}")
        return StartOffset(max(0, timestamp_ms))  # no record is older
    if text.removeprefix("-").isdecimal():
        number = int(text)
        if abs(number) > INT64_MAX:
            raise ConfigError(f"--offset must be between -{INT64_MAX} and {INT64_MAX}, not {text}")
        return (
            StartOffset(OffsetSpec.LATEST, shift=number) if text.startswith("-") else StartOffset(OffsetSpec.EARLIEST, exact=number)
        )
    raise ConfigError(f"--offset takes beginning, end, N, -N (the last N) or @TIME, not '{text}'")


def parse_timestamp(text: str, option: str, mark: str = "") -> int:
    """ms since 1970 of a number of them, or of ISO 8601. Raises ConfigError that names the option."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        example = f"{mark}2026-01-31T12:00:00Z"
        raise ConfigError(f"{option} takes ms since 1970 or ISO 8601 such as {example}, not '{mark}{text}'") from None
    return round((moment if moment.tzinfo else moment.astimezone()).timestamp() * _MS_PER_S)


def ranges_of(
    client: BlockingClient, topic: TopicInfo, partitions: Sequence[int], start: StartOffset, *, to_end: bool, isolation: str
) -> list[FetchRange]:
    """One range per partition: from `start` to the current end, or without end. Raises the broker's error for any partition."""
    tps = [TopicIdPartition(topic.topic_id, partition) for partition in partitions]
    earliest = offsets_at(client, tps, OffsetSpec.EARLIEST, isolation)
    latest = offsets_at(client, tps, OffsetSpec.LATEST, isolation)
    wanted = earliest if start.wanted is OffsetSpec.EARLIEST else latest
    if not isinstance(start.wanted, OffsetSpec):
        found = offsets_at(client, tps, start.wanted, isolation)
        wanted = {tp: latest[tp] if offset == _NO_SUCH_RECORD else offset for tp, offset in found.items()}
    ranges = []
    for tp in tps:
        first = start.exact if start.exact is not None else max(earliest[tp], wanted[tp] + start.shift)
        ranges.append(FetchRange(tp, first, latest[tp] if to_end else None, f"{topic.name}-{tp.partition}"))
    return ranges


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
