"""Futures of `send`, one per record, and of `send_batch`, one per Arrow batch.

A future is small: it refers to rows of ProducerBatches, and locates them only when its result is requested. producer_core.py
decides how batches end; the sender's thread calls listeners.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from brokerd.errors import BrokerdError, fresh
from brokerd.producer.core.accumulator import NEVER_MS, NO_OFFSET, NO_TIMESTAMP, ProducerBatch
from brokerd.producer.waiting import SharedLock, Wait
from brokerd.waiter import Waiter

logger = logging.getLogger(__name__)

_TIMEOUT_MAX_S = 2**31  # decades
_FIRST_ROW = operator.attrgetter("first_row")


class RecordMetadata(NamedTuple):
    """The position of a record. offset is -1 if unknown (acks=0, or a late duplicate). timestamp (ms) is the record's own, or the
    broker's append time if the topic's message.timestamp.type is LogAppendTime."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ProducedRows(NamedTuple):
    """Rows of one send_batch that one record batch carried to a partition: `record_count` rows from `offset` on (-1 = unknown)."""

    partition: int
    offset: int
    record_count: int


class RowsOutcome(NamedTuple):
    """The outcome of some rows of one send_batch. `rows`: their row numbers in the input. Without an error, the rows are written in
    this order from `offset` on (-1 = unknown); an error says whether they may have been written."""

    partition: int
    rows: npt.NDArray[np.int64]
    offset: int
    error: BrokerdError | None


class ProducedBatch(NamedTuple):
    """The positions of the rows of one send_batch."""

    topic: str
    rows: tuple[ProducedRows, ...]

    @property
    def record_counts(self) -> dict[int, int]:
        """Rows by partition."""
        counts: dict[int, int] = {}
        for part in self.rows:
            counts[part.partition] = counts.get(part.partition, 0) + part.record_count
        return counts


class BatchSpan(NamedTuple):
    """Rows that went into one batch. `first_row` counts in order of appending; `at` is the position of that row in the batch."""

    first_row: int
    batch: ProducerBatch
    at: int
    record_count: int


@dataclass(slots=True, eq=False)
class Placement:
    """Maps rows to batches, once the sender has placed the rows. All entries of a chunk share one; a large batch has its own."""

    topic: str
    shared: SharedLock  # guards what futures read
    is_placed: bool = False
    segments: list[BatchSpan] = field(default_factory=list)  # by first_row
    # The first row of each split, and its order (columns.SplitRows). A chunk is split once; a large batch several times.
    orders: list[tuple[int, npt.NDArray[np.intp] | None]] = field(default_factory=list)
    places: dict[int, int] | None = None  # by number, the entry's place in the chunk; None: the number itself
    # By place, the entry's first row, and one more for the end; None: every entry is one row.
    first_rows: list[int] | None = None
    sent_ns: Sequence[int] = ()  # time of sending, by place
    timestamps: dict[int, int] = field(default_factory=dict)  # ms, by number, of rows with an explicit timestamp
    listeners: list[Callable[[], None]] = field(default_factory=list)  # called once is_placed
    _inverse: npt.NDArray[np.intp] | None = None

    def tell_placed(self) -> None:
        """Calls the listeners, in the sender's thread without the lock, once all rows are placed."""
        for listener in self.listeners:
            listener()
        self.listeners.clear()

    def _place_of(self, number: int) -> int:
        return number if self.places is None else self.places[number]

    def timestamp_of(self, number: int) -> int:
        """The timestamp of a record of `send`, explicit or the time of the call; ms."""
        timestamp = self.timestamps.get(number)
        return self.sent_ns[self._place_of(number)] // 1_000_000 if timestamp is None else timestamp

    def locate(self, number: int) -> tuple[ProducerBatch, int]:
        """The batch that holds a record of `send` now, and its position there."""
        place = self._place_of(number)
        row = place if self.first_rows is None else self.first_rows[place]
        order = self.orders[0][1] if self.orders else None  # none if the rows were refused
        if order is not None:
            row = int(self._inverse_of(order)[row])
        segment = self._segment_at(row)
        return segment.batch.locate(segment.at + row - segment.first_row)

    def _segment_at(self, row: int) -> BatchSpan:
        """The segment with a row, by order of appending."""
        return self.segments[bisect.bisect_right(self.segments, row, key=_FIRST_ROW) - 1]

    def _inverse_of(self, order: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """The position of each row in `order`."""
        if self._inverse is None:
            inverse = np.empty_like(order)
            inverse[order] = np.arange(len(order))
            self._inverse = inverse
        return self._inverse

    def part_of(self, number: int) -> Placement:
        """The placement of one batch entry of a chunk, as if the batch had been appended alone."""
        assert self.first_rows is not None, "some entry is a batch"
        place = self._place_of(number)
        first, end = self.first_rows[place], self.first_rows[place + 1]
        order = self.orders[0][1] if self.orders else None
        rows = np.arange(first, end) if order is None else self._inverse_of(order)[first:end]
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        part = Placement(self.topic, self.shared)
        part.orders.append((0, order))
        at = 0
        while at < len(rows):  # a partition's rows are adjacent, since they keep their order
            row = int(rows[at])
            segment = self._segment_at(row)
            count = int(np.searchsorted(rows, segment.first_row + segment.record_count)) - at
            part.segments.append(BatchSpan(at, segment.batch, segment.at + row - segment.first_row, count))
            at += count
        part.is_placed = True
        return part


T = TypeVar("T")


class ProduceFuture(ABC, Generic[T]):
    """A future like concurrent.futures.Future, but without cancellation; it can be awaited in any event loop."""

    __slots__ = ("_placement",)
    _placement: Placement

    @abstractmethod
    def _batches(self) -> Iterable[ProducerBatch]:
        """The batches that the future waits for now (a split replaces one by several). Valid once placed."""

    @abstractmethod
    def _value(self) -> T:
        """The result. Valid once all batches have succeeded."""

    def done(self) -> bool:
        """True once there is a result or an error."""
        return self._placement.is_placed and all(batch.is_done for batch in self._batches())

    def exception(self, timeout: float | None = None) -> BrokerdError | None:
        """Waits up to `timeout` seconds and returns the error, or None. Raises TimeoutError if the future is not done by then,
        ForkedProducerError if it was not done when this process was forked from the producer's, and RuntimeError in a callback,
        which would deadlock.
        """
        if not self.done():
            shared = self._placement.shared
            shared.refuse_fork("not known in this process: ")
            if timeout is not None and timeout <= 0:
                raise TimeoutError(f"not acknowledged in {timeout} s; it may be later")
            deadline_ms = NEVER_MS if timeout is None else shared.now_ms() + int(min(timeout, _TIMEOUT_MAX_S) * 1000)

            def poll(now_ms: int) -> bool | None:
                if not self.done() and now_ms >= deadline_ms:
                    raise TimeoutError(f"not acknowledged in {timeout} s; it may be later")
                return self.done() or None

            shared.wait(Wait(poll, deadline_ms, self.done))
        error = next((batch.error for batch in self._batches() if batch.error is not None), None)
        return None if error is None else fresh(error)

    def result(self, timeout: float | None = None) -> T:
        """Waits up to `timeout` seconds and returns the records' position. Raises their error, or like `exception`."""
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return self._value()

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Calls `callback(future)` in the sender's thread once the future is done, or at once in this thread if it already is. The
        callback must not block, since it holds up the sender: a `send` in it fails where it would have to wait for the topic's
        metadata or for buffer.memory. In the sender's thread its exceptions are logged and ignored."""
        if not self.done():
            self._placement.shared.refuse_fork("not known in this process: ")
            with self._placement.shared.lock:
                if self._listen(callback):
                    return
        callback(self)

    def _listen(self, callback: Callable[[Self], object]) -> bool:
        """Under the lock: registers `callback` for the end of the last batch. Returns False if all have ended."""
        if not self._placement.is_placed:
            self._placement.listeners.append(lambda: self._follow(callback))
            return True
        open_batches = [batch for batch in self._batches() if not batch.is_done]
        remaining = len(open_batches)

        def on_end(_batch: ProducerBatch) -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                self._follow(callback)

        for batch in open_batches:
            batch.listeners.append(on_end)
        return bool(open_batches)

    def _follow(self, callback: Callable[[Self], object]) -> None:
        """In the sender's thread, without the lock: waits for the parts of split batches, or calls `callback`."""
        with self._placement.shared.lock:
            if self._listen(callback):
                return
        try:
            callback(self)
        except BaseException:
            # As in concurrent.futures, a bug in a callback must not stop the delivery of other records. Nor may a SystemExit: it
            # would end only this thread, and all calls wait for this thread.
            with contextlib.suppress(Exception):  # of a log handler
                logger.exception("a callback of a produce future raised")

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            waiter = Waiter()
            self.add_done_callback(lambda _: waiter.tell())
            yield from waiter.__await__()
        return self.result(0)


class RecordFuture(ProduceFuture[RecordMetadata]):
    """The future of one record of `send`."""

    __slots__ = ("_row",)

    def __init__(self, placement: Placement, row: int) -> None:
        self._placement = placement
        self._row = row

    def _batches(self) -> Iterable[ProducerBatch]:
        return (self._placement.locate(self._row)[0],)

    def _value(self) -> RecordMetadata:
        batch, position = self._placement.locate(self._row)
        offset = batch.base_offset if batch.base_offset == NO_OFFSET else batch.base_offset + position
        timestamp = batch.append_timestamp  # LogAppendTime overrides the record's own
        if timestamp == NO_TIMESTAMP:
            timestamp = self._placement.timestamp_of(self._row)
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)


class BatchFuture(ProduceFuture[ProducedBatch]):
    """The future of all rows of one `send_batch`."""

    __slots__ = ("_part", "number")

    def __init__(self, placement: Placement, number: int | None = None) -> None:
        """`number`: of a small batch's entry in its chunk; None for a batch with its own placement."""
        self._placement = placement
        self.number = number
        self._part: Placement | None = None if number is not None else placement

    @property
    def _rows(self) -> Placement:
        """The placement of these rows alone. Valid once placed."""
        if self._part is None:
            assert self.number is not None
            self._part = self._placement.part_of(self.number)
        return self._part

    def _batches(self) -> Iterable[ProducerBatch]:
        for segment in self._rows.segments:
            yield from (batch for batch, _, _ in _spans(segment))

    def _value(self) -> ProducedBatch:
        rows = []
        for segment in self._rows.segments:
            for batch, at, count in _spans(segment):
                offset = batch.base_offset if batch.base_offset == NO_OFFSET else batch.base_offset + at
                rows.append(ProducedRows(batch.tp.partition, offset, count))
        return ProducedBatch(self._placement.topic, tuple(rows))

    def outcomes(self, timeout: float | None = None) -> tuple[RowsOutcome, ...]:
        """Waits up to `timeout` seconds and returns the outcome of every row, failed or not. Raises the errors of `exception`."""
        self.exception(timeout)
        outcomes = []
        rounds = self._rows.orders
        for segment in self._rows.segments:
            begin, order = rounds[bisect.bisect_right(rounds, segment.first_row, key=lambda one: one[0]) - 1]
            at = segment.first_row
            for batch, place, count in _spans(segment):
                rows = np.arange(at, at + count) if order is None else begin + order[at - begin : at - begin + count]
                is_known = batch.error is None and batch.base_offset != NO_OFFSET
                error = None if batch.error is None else fresh(batch.error)
                outcomes.append(RowsOutcome(batch.tp.partition, rows, batch.base_offset + place if is_known else NO_OFFSET, error))
                at += count
        return tuple(outcomes)


def _spans(segment: BatchSpan) -> Iterator[tuple[ProducerBatch, int, int]]:
    """The batches that hold a segment's rows now; for each, the position of the first row and the row count."""
    first, end = segment.at, segment.at + segment.record_count
    position = 0  # of the leaf in the segment's original batch
    for batch in segment.batch.leaves():
        lo, hi = max(first, position), min(end, position + batch.record_count)
        if lo < hi:
            yield batch, lo - position, hi - lo
        position += batch.record_count
