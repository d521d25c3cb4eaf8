"""The observations of producers and consumers, as plain values: the input of the checker. Judging does not live here.

A value is (producer, number): every record of a run has its own. Times are monotonic milliseconds of one clock.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.ids import TopicPartition


class Value(NamedTuple):
    """Identity of one record: who sent it, and its place among what that producer sent (from 0, rising)."""

    producer: int
    number: int


class Outcome(enum.Enum):
    """How a send ended."""

    OK = "ok"
    FAILED = "failed"  # the error said that it is certainly not in the log
    UNKNOWN = "unknown"


class Send(NamedTuple):
    """One record sent and what became of it.

    `offset` is -1 unless OK, and even then if the broker only said that it is there: a duplicate older than it remembers.
    """

    value: Value
    tp: TopicPartition
    invoked_ms: int
    completed_ms: int
    outcome: Outcome
    offset: int = -1

    @property
    def has_offset(self) -> bool:
        """True if it is known where it must be."""
        return self.outcome is Outcome.OK and self.offset >= 0


class Poll(NamedTuple):
    """The result of one poll of one consumer for one partition, in the order returned: (offset, value)."""

    consumer: int
    tp: TopicPartition
    records: tuple[tuple[int, Value], ...]


class Seek(NamedTuple):
    """A consumer started, or started again, at an offset: the order of its polls starts over."""

    consumer: int
    tp: TopicPartition
    offset: int


@dataclass
class History:
    """A whole run. `final` is read by a fresh client after all faults are healed, each partition from its start."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Poll | Seek] = field(default_factory=list)
    final: dict[TopicPartition, list[tuple[int, Value]]] = field(default_factory=lambda: defaultdict(list))
