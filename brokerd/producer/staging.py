"""Records sent one by one, collected until they are worth a column.

`send` only appends to lists. A chunk is turned into an Arrow batch, hashed and split over partitions at once, when it is
full, or when its linger passes, or before anything else of its topic goes on (so the order of sends holds whatever they
carry). Needs the producer's lock; decides nothing about delivery.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from brokerd.producer.futures import Placement, ProducerCondition
from brokerd.record.payload import HEADERS_TYPE, TIMESTAMP_TYPE

CHUNK_RECORDS_MAX = 4_096
CHUNK_BYTES_MAX = 524_288
# List entries, a future, and what the row adds beside its bytes when it is a column.
RECORD_OVERHEAD_BYTES = 40

Headers = Sequence[tuple[str, bytes | None]]


class StagedChunk:
    """Records of one topic; the lists are parallel. `room_bytes` of buffer.memory are paid in advance."""

    __slots__ = (
        "created_ms",
        "headers",
        "keys",
        "paid_bytes",
        "partition_count",
        "partitions",
        "placement",
        "room_bytes",
        "sent_ns",
        "timestamps",
        "topic",
        "values",
    )

    def __init__(self, topic: str, partition_count: int, created_ms: int, paid_bytes: int, condition: ProducerCondition) -> None:
        self.topic = topic
        self.partition_count = partition_count  # when it was opened
        self.created_ms = created_ms  # monotonic
        self.paid_bytes = paid_bytes
        self.room_bytes = paid_bytes
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []  # ends with the last row that has one
        self.sent_ns: list[int] = []  # since 1970
        self.timestamps: dict[int, int] = {}  # ms, of the rows that bring one
        self.headers: dict[int, Headers] = {}  # of the rows that have any
        self.partitions: dict[int, int] = {}  # of the rows that name one
        self.placement = Placement(topic, condition)
        self.placement.sent_ns = self.sent_ns
        self.placement.timestamps = self.timestamps

    @property
    def used_bytes(self) -> int:
        """Bytes that its records hold."""
        return self.paid_bytes - self.room_bytes

    def to_arrow(self) -> pa.RecordBatch:
        """The records as columns of `columns.normalize`."""
        count = len(self.values)
        key = pa.array(self.keys + [None] * (count - len(self.keys)), pa.binary()) if self.keys else pa.nulls(count, pa.binary())
        columns = {"key": key, "value": pa.array(self.values, pa.binary())}
        if self.headers:
            rows = [self.headers.get(row) for row in range(count)]
            columns["headers"] = pa.array([None if row is None else [_entry(*pair) for pair in row] for row in rows], HEADERS_TYPE)
        millis = np.array(self.sent_ns, np.int64) // 1_000_000
        if self.timestamps:
            millis[list(self.timestamps)] = list(self.timestamps.values())
        columns["timestamp"] = pa.array(millis * 1_000).view(TIMESTAMP_TYPE)
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _entry(key: str, value: bytes | None) -> dict[str, str | bytes | None]:
    return {"key": key, "value": value}
