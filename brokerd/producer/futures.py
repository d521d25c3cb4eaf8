"""What callers hold while their records are on the way: a future per record, or one per Arrow batch.

A future is a name for rows of ProducerBatches; it is made lazily and costs two fields. Ends are decided in core.py; the
sender calls listeners outside the lock.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from brokerd.errors import BrokerdError, ForkedProducerError
from brokerd.producer.producer_batch import NO_OFFSET, NO_TIMESTAMP, ProducerBatch

FORKED = "this producer was made before the process was forked and works in the parent only: make one per process"
logger = logging.getLogger(__name__)


class RecordMetadata(NamedTuple):
    """Where a record is. offset is -1 if the broker did not say (acks=0, or a late duplicate); timestamp in ms: the
    record's own, or the broker's at the append where the topic's message.timestamp.type is LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ProducedRows(NamedTuple):
    """Rows of one send_batch in one partition: `record_count` from `offset` on, unless they went in several batches: then
    each has its entry. offset is -1 if the broker did not say."""

    partition: int
    offset: int
    record_count: int


class ProducedBatch(NamedTuple):
    """Where the rows of one send_batch are."""

    topic: str
    rows: tuple[ProducedRows, ...]

    @property
    def record_counts(self) -> dict[int, int]:
        """Rows by partition."""
        counts: dict[int, int] = {}
        for part in self.rows:
            counts[part.partition] = counts.get(part.partition, 0) + part.record_count
        return counts


class Segment(NamedTuple):
    """Rows that went into one batch: `first_row` counts in the order in which they were appended, `at` in the batch."""

    first_row: int
    batch: ProducerBatch
    at: int
    record_count: int


class ProducerCondition(threading.Condition):
    """What waiters for a producer sleep on. In a process forked since, nobody would ever wake them."""

    def __init__(self, lock: threading.Lock) -> None:
        super().__init__(lock)
        self._pid = os.getpid()

    def refuse_fork(self) -> None:
        """Raises ForkedProducerError in another process than the producer's."""
        if os.getpid() != self._pid:
            raise ForkedProducerError(f"not known in this process: {FORKED}")


class Placement:
    """Where the rows of one append are: known at once for send_batch, once the column is made for `send`."""

    __slots__ = ("_inverse", "condition", "is_placed", "listeners", "order", "segments", "sent_ns", "timestamps", "topic")

    def __init__(self, topic: str, condition: ProducerCondition) -> None:
        self.topic = topic
        self.condition = condition  # the producer's: notified when batches end
        self.is_placed = False
        self.segments: list[Segment] = []  # by first_row
        self.order: npt.NDArray[np.intp] | None = None
        self.sent_ns: list[int] = []  # when each row was sent
        self.timestamps: dict[int, int] = {}  # ms, of the rows that brought one
        self.listeners: list[Callable[[], None]] = []
        self._inverse: npt.NDArray[np.intp] | None = None

    def segment_of(self, row: int) -> tuple[Segment, int]:
        """The segment that row `row` of the input is in, and its place there."""
        if self.order is not None:
            if self._inverse is None:
                inverse = np.empty_like(self.order)
                inverse[self.order] = np.arange(len(self.order))
                self._inverse = inverse
            row = int(self._inverse[row])
        segment = self.segments[bisect.bisect_right(self.segments, row, key=_first_row) - 1]
        return segment, row - segment.first_row


def _first_row(segment: Segment) -> int:
    return segment.first_row


T = TypeVar("T")


class ProduceFuture(ABC, Generic[T]):
    """Common behaviour; like concurrent.futures.Future, but it can not be cancelled. Also awaitable in any event loop."""

    __slots__ = ("_placement",)

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    @abstractmethod
    def _batches(self) -> Iterable[ProducerBatch]:
        """The batches that it waits for now (one that is split becomes several); only asked once placed."""

    @abstractmethod
    def _value(self) -> T:
        """The result; only asked once all batches succeeded."""

    def done(self) -> bool:
        """True once there is a result or an error."""
        return self._placement.is_placed and all(batch.is_done for batch in self._batches())

    def exception(self, timeout: float | None = None) -> BrokerdError | None:
        """Waits up to `timeout` seconds; the error, or None. Raises TimeoutError if it is not done by then,
        ForkedProducerError if it was not when this process was forked off the producer's."""
        if not self.done():
            condition = self._placement.condition
            condition.refuse_fork()
            with condition:
                if not condition.wait_for(self.done, timeout):
                    raise TimeoutError(f"not acknowledged in {timeout} s; it may be later")
        return next((batch.error for batch in self._batches() if batch.error is not None), None)

    def result(self, timeout: float | None = None) -> T:
        """Waits up to `timeout` seconds; where the records are. Raises what became of them, or as `exception`."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._value()

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Calls `callback(future)` once it is done, in the sender's thread (at once if it is done already). The callback
        must not block: nothing is sent meanwhile."""
        if self.done():
            callback(self)
            return
        self._placement.condition.refuse_fork()
        with self._placement.condition:
            if not self.done():
                if self._placement.is_placed:
                    self._listen(callback)
                else:
                    self._placement.listeners.append(lambda: self._listen(callback))
                return
        callback(self)

    def _listen(self, callback: Callable[[Self], object]) -> None:
        """Under the lock, placed and not done: tells `callback` when the last batch ends."""
        open_batches = [batch for batch in self._batches() if not batch.is_done]
        remaining = len(open_batches)

        def on_end(_batch: ProducerBatch) -> None:
            nonlocal remaining
            remaining -= 1
            if remaining:
                return
            with self._placement.condition:
                if not self.done():  # some were split: what they became is waited for
                    self._listen(callback)
                    return
            _call(callback, self)

        for batch in open_batches:
            batch.listeners.append(on_end)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not waiter.done():
                    waiter.set_result(None)

            self.add_done_callback(lambda _: loop.call_soon_threadsafe(wake))
            yield from waiter.__await__()
        return self.result(0)


class RecordFuture(ProduceFuture[RecordMetadata]):
    """One record of `send`."""

    __slots__ = ("_row",)

    def __init__(self, placement: Placement, row: int) -> None:
        self._placement = placement
        self._row = row

    def _batches(self) -> Iterable[ProducerBatch]:
        return (self._locate()[0],)

    def _locate(self) -> tuple[ProducerBatch, int]:
        segment, place = self._placement.segment_of(self._row)
        return segment.batch.locate(segment.at + place)

    def _value(self) -> RecordMetadata:
        batch, position = self._locate()
        offset = batch.base_offset if batch.base_offset == NO_OFFSET else batch.base_offset + position
        timestamp: int | None = batch.append_timestamp  # of LogAppendTime, whatever the record brought
        if timestamp == NO_TIMESTAMP:
            timestamp = self._placement.timestamps.get(self._row)
        if timestamp is None:
            timestamp = self._placement.sent_ns[self._row] // 1_000_000
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)


class BatchFuture(ProduceFuture[ProducedBatch]):
    """All rows of one `send_batch`."""

    __slots__ = ()

    def _batches(self) -> Iterable[ProducerBatch]:
        for segment in self._placement.segments:
            if not segment.batch.parts:
                yield segment.batch
            else:
                yield from (batch for batch, _, _ in _spans(segment))

    def _value(self) -> ProducedBatch:
        rows = []
        for segment in self._placement.segments:
            for batch, at, count in _spans(segment):
                offset = batch.base_offset if batch.base_offset == NO_OFFSET else batch.base_offset + at
                rows.append(ProducedRows(batch.tp.partition, offset, count))
        return ProducedBatch(self._placement.topic, tuple(rows))


def _spans(segment: Segment) -> Iterator[tuple[ProducerBatch, int, int]]:
    """The batches that hold a segment's rows now, where its first row there is, and how many rows it has there."""
    first, end = segment.at, segment.at + segment.record_count
    position = 0  # of the leaf in the batch that the segment names
    for batch in segment.batch.leaves():
        lo, hi = max(first, position), min(end, position + batch.record_count)
        if lo < hi:
            yield batch, lo - position, hi - lo
        position += batch.record_count


def _call(callback: Callable[[Any], object], future: object) -> None:
    try:
        callback(future)
    except Exception:
        # As concurrent.futures does: a caller's mistake must not stop delivery for everyone else.
        logger.exception("a callback of a produce future raised")
