"""Records sent one by one, collected until they are worth a column.

`send` extends one list, in the application's thread and without the lock: a record is in with that call, or it is not. The sender's
thread seals the chunk when it is full, or when its linger passes, or before anything else of its topic is placed (so the order of
sends holds whatever they carry), and turns it into an Arrow batch, hashed and split at once. A small Arrow batch of `send_batch`
goes the same way, as one entry: to have the sender place each by itself would cost more than its rows.

A thread that adds to a chunk looks at `is_open` *after* it added. If the chunk was sealed meanwhile, it looks under the lock
whether its row was among those sealed (`holds`), and sends it again if not. A thread that is interrupted between the two gets no
future, and its record is in the log or nowhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from brokerd.producer.core.partitioner import Int32s
from brokerd.producer.core.producer_batch import Piece
from brokerd.producer.futures import Placement
from brokerd.producer.rows.columns import ROW_OVERHEAD_BYTES
from brokerd.producer.rows.encoding import joined
from brokerd.producer.waiting import SharedLock
from brokerd.record.schema import HEADERS, KEY, TIMESTAMP, VALUE

CHUNK_BYTES_MAX = 524_288
CHUNK_BYTES_MIN = 16_384  # taken for the first chunk of a topic: there may be thousands of topics
# List entries, a future, and what the row adds beside its bytes when it is a column.
RECORD_OVERHEAD_BYTES = 40
# Up to this many bytes, a batch of `send_batch` is an entry of a chunk. Splitting a larger one costs more than handing it over, and
# is better done in the thread that sends it.
SMALL_BATCH_BYTES = 65_536

Headers = Sequence[tuple[str, bytes | None]]
# Number in the chunk, value (or a batch of columns.normalize), key, ns since 1970 when it was sent.
Row: TypeAlias = tuple[int, bytes | pa.RecordBatch | None, bytes | None, int]
_FIELDS = 4
_NUMBERS = list(range(CHUNK_BYTES_MAX // RECORD_OVERHEAD_BYTES))


def small_batch_bytes(rows: pa.RecordBatch) -> int:
    """The bytes that a normalized batch takes in a chunk."""
    size_bytes: int = rows.nbytes + rows.num_rows * (ROW_OVERHEAD_BYTES + 8) + RECORD_OVERHEAD_BYTES
    return size_bytes


class RecordChunk:
    """Records of one topic. `paid_bytes` of buffer.memory are taken in advance; what its rows really hold is counted when they are
    placed. `room_bytes` is the threads' estimate of what is left of that."""

    __slots__ = (
        "_sealed_fields",
        "add",
        "created_ms",
        "has_batches",
        "headers",
        "is_open",
        "next_number",
        "paid_bytes",
        "partition_count",
        "partitions",
        "placement",
        "room_bytes",
        "rows",
        "timestamps",
        "topic",
    )

    def __init__(self, topic: str, partition_count: int, created_ms: int, paid_bytes: int, shared: SharedLock) -> None:
        self.topic = topic
        self.partition_count = partition_count  # when it was opened
        self.created_ms = created_ms  # monotonic
        self.paid_bytes = paid_bytes
        self.room_bytes = paid_bytes
        self.rows: list[Any] = []  # the fields of one row after those of another: no object is kept for each
        self.add: Callable[[Row], None] = self.rows.extend  # of a tuple: one call that nothing comes between
        self.next_number: Callable[[], int] = itertools.count().__next__
        # By number, put in before the row. Entries of a record whose send was interrupted before its row came in are never read.
        self.timestamps: dict[int, int] = {}  # ms, of the rows that bring one
        self.headers: dict[int, Headers] = {}  # of the rows that have any
        self.partitions: dict[int, int | Int32s] = {}  # of the entries that name one, or one for each of their rows
        self.has_batches = False  # some entry is a batch; said before it is put in
        self.is_open = True
        self.placement = Placement(topic, shared)
        self._sealed_fields = 0

    def seal(self) -> None:
        """In the sender's thread: the rows that are in by now are its rows."""
        self.is_open = False  # before the look at the rows: see the module
        self._sealed_fields = len(self.rows)

    def holds(self, number: int) -> bool:
        """True if an entry is among those that were sealed."""
        return number in self.rows[: self._sealed_fields : _FIELDS]

    def take(self) -> TakenRows | None:
        """The rows of a sealed chunk, if it has any."""
        return TakenRows(self, self.rows[: self._sealed_fields]) if self._sealed_fields else None


class TakenRows:
    """The entries of a chunk on their way into batches. An entry is a row, or several: `count` is of entries, `row_count` of
    rows."""

    __slots__ = ("_keys", "_numbers", "_sent_ns", "_values", "chunk", "count", "placement", "row_count")

    def __init__(self, chunk: RecordChunk, rows: list[Any]) -> None:
        self.chunk = chunk
        self.placement = placement = chunk.placement
        self.count = len(rows) // _FIELDS
        self._numbers, self._values, self._keys, self._sent_ns = (rows[field::_FIELDS] for field in range(_FIELDS))
        placement.sent_ns = self._sent_ns
        placement.timestamps = chunk.timestamps
        # Rows of threads that sent at the same time may stand in another order than their numbers; a send that was interrupted
        # leaves a number without a row.
        if self._numbers != _NUMBERS[: self.count]:
            placement.places = {number: place for place, number in enumerate(self._numbers)}
        self.row_count = self.count
        if chunk.has_batches:
            counts = (value.num_rows if type(value) is pa.RecordBatch else 1 for value in self._values)
            placement.first_rows = list(itertools.accumulate(counts, initial=0))
            self.row_count = placement.first_rows[-1]

    @property
    def partitions(self) -> Int32s | None:
        """By row, the partition that was named, or -1; None if none was."""
        named = self.chunk.partitions
        if not named:
            return None
        first_rows = self.placement.first_rows
        if first_rows is None:
            return np.array([named.get(number, -1) for number in self._numbers], np.int32)
        chosen = np.full(self.row_count, -1, np.int32)
        for place, number in enumerate(self._numbers):
            chosen[first_rows[place] : first_rows[place + 1]] = named.get(number, -1)
        return chosen

    @property
    def used_bytes(self) -> int:
        """Bytes that the rows hold, where no entry is a batch."""
        headers = self.chunk.headers
        size = RECORD_OVERHEAD_BYTES * self.count
        size += sum(len(data) for column in (self._values, self._keys) for data in column if data is not None)
        for number in self._numbers if headers else ():
            size += sum(len(key) + len(value or b"") + 24 for key, value in headers.get(number, ()))
        return size

    def to_arrow(self) -> pa.RecordBatch:
        """The records as columns of `columns.normalize`, each with its timestamp."""
        if not self.chunk.has_batches:
            return self._columns(0, self.count)
        pieces = []
        at = 0
        for place, value in enumerate(self._values):
            if type(value) is pa.RecordBatch:
                if at < place:
                    pieces.append(Piece(self._columns(at, place), place - at, 0, 0))
                pieces.append(Piece(value, value.num_rows, 0, self._sent_ns[place] // 1_000_000))
                at = place + 1
        if at < self.count:
            pieces.append(Piece(self._columns(at, self.count), self.count - at, 0, 0))
        return joined(pieces)

    def _columns(self, first: int, end: int) -> pa.RecordBatch:
        """The entries from `first` to before `end`, each of which is one row."""
        numbers, keys = self._numbers[first:end], self._keys[first:end]
        count = end - first
        key = pa.array(keys, KEY.type) if keys.count(None) < count else pa.nulls(count, KEY.type)
        columns = {KEY.name: key, VALUE.name: pa.array(self._values[first:end], VALUE.type)}
        if self.chunk.headers:
            rows = [self.chunk.headers.get(number) for number in numbers]
            lists = [None if row is None else [_entry(*pair) for pair in row] for row in rows]
            columns[HEADERS.name] = pa.array(lists, HEADERS.type)
        millis = np.array(self._sent_ns[first:end], np.int64) // 1_000_000
        if self.chunk.timestamps:
            own = [(place, self.chunk.timestamps.get(number)) for place, number in enumerate(numbers)]
            places = [place for place, timestamp in own if timestamp is not None]
            millis[places] = [timestamp for _, timestamp in own if timestamp is not None]
        columns[TIMESTAMP.name] = pa.array(millis * 1_000).view(TIMESTAMP.type)
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _entry(key: str, value: bytes | None) -> dict[str, str | bytes | None]:
    return {"key": key, "value": value}
