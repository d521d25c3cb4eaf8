"""To which offsets `brokerd groups reset` sets a group. Pure: what the broker knows is passed in."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.client.consumer.offsets import OffsetSpec, Wanted
from brokerd.config.settings import INT32_MAX
from brokerd.errors import ConfigError

_DIGITS_MAX = len(str(INT32_MAX))  # Python refuses to read thousands


class Target(NamedTuple):
    """Where to: an end of the log or a time (`wanted`), the offset `exact`, or `shift` offsets from the committed one."""

    wanted: Wanted | None = None
    exact: int | None = None
    shift: int | None = None


EARLIEST, LATEST = Target(OffsetSpec.EARLIEST), Target(OffsetSpec.LATEST)


class Bounds(NamedTuple):
    """The state of one partition: where it begins and ends, what is committed (-1: nothing), and the offset of the time that is
    asked for (-1: no record is as new)."""

    log_start_offset: int
    end_offset: int
    committed: int = -1
    at_time: int = -1


class NewOffset(NamedTuple):
    """The offset to commit, and the one that was asked for, which may lie outside of the log."""

    offset: int
    asked: int


def new_offset(name: str, target: Target, bounds: Bounds) -> NewOffset:
    """The offset for the partition `name`: the nearest one that the log has. Raises ConfigError if there is none."""
    if target.exact is not None:
        asked = target.exact
    elif target.shift is not None:
        if bounds.committed < 0:
            raise ConfigError(f"{name} has no committed offset that --shift-by could move: leave it out, or use --to-offset")
        asked = bounds.committed + target.shift
    elif target.wanted is OffsetSpec.EARLIEST:
        asked = bounds.log_start_offset
    elif target.wanted is OffsetSpec.LATEST or bounds.at_time < 0:
        asked = bounds.end_offset
    else:
        asked = bounds.at_time
    return NewOffset(min(max(asked, bounds.log_start_offset), bounds.end_offset), asked)


def parse_selection(text: str) -> tuple[str, tuple[int, ...] | None]:
    """A topic, or TOPIC:N,N for some of its partitions; None = all. Raises ConfigError."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(part.isascii() and part.isdecimal() and len(part) <= _DIGITS_MAX for part in parts):
        raise ConfigError(f"--topic takes TOPIC or TOPIC:PARTITION[,PARTITION], such as events:0,1, not '{text:.200}'")
    return topic, tuple(dict.fromkeys(int(part) for part in parts))
