"""Messages between the producer and the simulated broker of producer_simulation.py, and the errors that this broker returns."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    CorruptMessageError,
    Fate,
    MessageTooLargeError,
    NotCoordinatorError,
    NotLeaderError,
    NotReadyError,
    RequestTimedOutError,
    ResourceExhaustedError,
    StorageError,
    UnknownServerError,
    WireError,
)
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition, TopicPartition
from brokerd.producer.core.accumulator import ProducerBatch
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.transport import Hello, ProduceResponse
from tests.support.producer_trace import records_text


class SentBatch(NamedTuple):
    """A batch as it was sent."""

    tp: TopicPartition
    identity: ProducerIdAndEpoch
    base_sequence: int
    records: list[int]
    leader_epoch: int
    tp_id: TopicIdPartition

    def __str__(self) -> str:
        return records_text(self.tp, self.records)


class Sent(NamedTuple):
    """A request under way."""

    correlation_id: int
    batches: list[SentBatch]
    membership: Membership | None


@dataclass(eq=False)
class Stream:
    """A produce stream as the network sees it. A broken one may still hold requests that the broker has not read."""

    node_id: int
    hello: Hello
    requests: deque[Sent] = field(default_factory=deque)
    answers: deque[ProduceResponse] = field(default_factory=deque)
    is_broken: bool = False
    has_spoken: bool = False
    is_open: bool = False
    throttle_ms: int = 0


@dataclass
class Record:
    """A record as the application knows it."""

    first_batch: ProducerBatch
    first_place: int  # index in that batch
    ends: int = 0

    @property
    def batch(self) -> ProducerBatch:
        """The batch that holds the record now, after any splits."""
        return self.first_batch.locate(self.first_place)[0]

    @property
    def place(self) -> int:
        """Its index in `batch`."""
        return self.first_batch.locate(self.first_place)[1]


ERRORS: tuple[WireError, ...] = (
    NotReadyError("starting", fate=Fate.NOT_APPENDED),
    NotLeaderError("elsewhere", fate=Fate.NOT_APPENDED),
    ResourceExhaustedError("too much", fate=Fate.NOT_APPENDED, retry_after_ms=70),
    MessageTooLargeError("too large", fate=Fate.NOT_APPENDED),
    CorruptMessageError("corrupt", fate=Fate.NOT_APPENDED),
    StorageError("disk", fate=Fate.UNKNOWN),
    RequestTimedOutError("slow", fate=Fate.UNKNOWN),
    UnknownServerError("odd"),
)
# Errors of a leader that cannot ask the coordinator about a transaction member.
COORDINATOR_ERRORS: tuple[WireError, ...] = (
    CoordinatorLoadInProgressError("reading its log", fate=Fate.NOT_APPENDED),
    CoordinatorNotAvailableError("none elected", fate=Fate.NOT_APPENDED),
    NotCoordinatorError("another node", fate=Fate.NOT_APPENDED),
)
ALL_ERRORS = ERRORS + COORDINATOR_ERRORS
RESIGNED = next(number for number, error in enumerate(ALL_ERRORS) if isinstance(error, NotLeaderError))
