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
    completed_ms: int = 0


class Seek(NamedTuple):
    """A consumer started, or started again, at an offset: the order of its polls starts over."""

    consumer: int
    tp: TopicPartition
    offset: int


class Snapshot(NamedTuple):
    """The last stable offsets of all partitions, asked for at once; those of several nodes are not of one moment."""

    invoked_ms: int
    completed_ms: int
    stable: dict[TopicPartition, int]


@dataclass
class Attempt:
    """One execution of one version of a transactional id, as its client knows it.

    `outcome` is that of its COMMIT: OK, FAILED (refused for certain), UNKNOWN, or None if none was ever sent. Members are the
    producers of their values. Executions with equal `totals` wrote the same rows: the commit of one answers for the other.
    """

    transactional_id: str
    version: int
    execution_id: str
    totals: int
    members: set[int] = field(default_factory=set)
    listed: set[int] = field(default_factory=set)  # of these, the ones that the COMMIT names
    invoked_ms: int = -1  # the first COMMIT
    decided_ms: int = -1  # the first OK
    outcome: Outcome | None = None

    def __str__(self) -> str:
        return f"version {self.version} of {self.transactional_id} in execution {self.execution_id[:8]}"


Records = dict[TopicPartition, list[tuple[int, Value]]]


@dataclass
class History:
    """A whole run. `final` and `committed` are read by a fresh client after all faults are healed, each partition from its start:
    `final` holds whatever was written, `committed` what readers under read_committed see.
    """

    sends: list[Send] = field(default_factory=list)
    reads: list[Poll | Seek] = field(default_factory=list)
    final: Records = field(default_factory=lambda: defaultdict(list))
    committed: Records = field(default_factory=lambda: defaultdict(list))
    committed_readers: set[int] = field(default_factory=set)  # consumers under read_committed
    marked_topics: set[str] = field(default_factory=set)  # transactions write there: offsets have holes at their ends
    attempts: list[Attempt] = field(default_factory=list)
    zombies: set[Value] = field(default_factory=set)  # sent by a member after its client knew that it had ended
    forgotten: list[str] = field(default_factory=list)  # commits that were answered OK, and refused when asked for again
    snapshots: list[Snapshot] = field(default_factory=list)
    node_count: int = 1  # transactions become visible node by node
    hanging: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # in the end: last stable offset, high watermark
