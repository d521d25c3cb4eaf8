"""What producers and consumers observed, as plain values: the input of the checker.

A value is (producer, number), unique to one record of a run. Times are monotonic milliseconds of one clock.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.ids import TopicPartition


class Value(NamedTuple):
    """Identity of a record: its producer, and its index among that producer's records (from 0, increasing)."""

    producer: int
    number: int


class Outcome(enum.Enum):
    """How a send ended."""

    OK = "ok"
    FAILED = "failed"  # the error guarantees that it is not in the log
    UNKNOWN = "unknown"


class Send(NamedTuple):
    """One record sent, and its outcome.

    `offset` is -1 unless the outcome is OK. It is also -1 for a duplicate so old that the broker no longer knows its offset.
    """

    value: Value
    tp: TopicPartition
    invoked_ms: int
    completed_ms: int
    outcome: Outcome
    offset: int = -1

    @property
    def has_offset(self) -> bool:
        """True if the record's offset is known."""
        return self.outcome is Outcome.OK and self.offset >= 0


class Poll(NamedTuple):
    """The result of one poll of one consumer for one partition, in the order returned: (offset, value)."""

    consumer: int
    tp: TopicPartition
    records: tuple[tuple[int, Value], ...]
    completed_ms: int = 0


class Seek(NamedTuple):
    """A consumer starts or restarts at an offset; the order of its polls is checked from there."""

    consumer: int
    tp: TopicPartition
    offset: int


class Snapshot(NamedTuple):
    """The last stable offsets of all partitions, from one request. Those of different nodes are not from one moment."""

    invoked_ms: int
    completed_ms: int
    stable: dict[TopicPartition, int]


@dataclass
class Attempt:
    """One execution of one version of a transactional id, as its client knows it.

    `outcome` is that of its COMMIT: OK, FAILED (definitely refused), UNKNOWN, or None if none was sent. Members are the producers
    in its values. Executions with equal `totals` wrote the same rows: a commit of one acknowledges the other.
    """

    transactional_id: str
    version: int
    execution_id: str
    totals: int
    members: set[int] = field(default_factory=set)
    listed: set[int] = field(default_factory=set)  # the members that the COMMIT names
    invoked_ms: int = -1  # time of the first COMMIT
    decided_ms: int = -1  # time of the first OK
    outcome: Outcome | None = None

    def __str__(self) -> str:
        return f"version {self.version} of {self.transactional_id} in execution {self.execution_id[:8]}"


Records = dict[TopicPartition, list[tuple[int, Value]]]


@dataclass
class History:
    """A whole run. After all faults are healed, a fresh client reads each partition from its start: `final` is everything written,
    `committed` what read_committed returns.
    """

    sends: list[Send] = field(default_factory=list)
    reads: list[Poll | Seek] = field(default_factory=list)
    final: Records = field(default_factory=lambda: defaultdict(list))
    committed: Records = field(default_factory=lambda: defaultdict(list))
    committed_readers: set[int] = field(default_factory=set)  # consumers with read_committed
    marked_topics: set[str] = field(default_factory=set)  # topics with transactions: their offsets have gaps where markers lie
    attempts: list[Attempt] = field(default_factory=list)
    zombies: set[Value] = field(default_factory=set)  # sent by a member after its client knew that it had ended
    forgotten: list[str] = field(default_factory=list)  # commits that were acknowledged and refused when repeated
    snapshots: list[Snapshot] = field(default_factory=list)
    node_count: int = 1  # with more than one, a transaction becomes visible node by node
    hanging: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)  # at the end: last stable offset, high watermark
