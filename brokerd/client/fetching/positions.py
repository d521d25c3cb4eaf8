"""Progress of a range of a partition, and the part of each response that belongs to it. Pure: no I/O, no clock, no columns.

Batches arrive whole, so the first and last are cut to the range. Control batches and those of aborted transactions occupy offsets
and are left out. Offsets may have gaps. A range ends exactly at its end, whether or not there is data. Damage is skipped only if
that is enabled and the broker reports where the log resumes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from brokerd.config.settings import INT64_MAX
from brokerd.errors import BrokerdError, CorruptMessageError, LogDamagedError, UnsupportedVersionError, WireError
from brokerd.ids import LogPosition, TopicIdPartition
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.header import BatchHeader, crc_seed
from brokerd.wire.errors import from_proto
from brokerd.wire.v1 import fetch_pb2

# An empty response from a log that reaches past the range means that nothing is left in the range. One is not enough: the offsets
# in a response may be newer than its records (the fetch was parked, and the log grew before the response).
_EMPTY_RESPONSES_AT_END = 2


class FetchRange(NamedTuple):
    """Offsets to read, from `start_offset` (inclusive) to `until_offset` (exclusive); None = follow the log for ever."""

    tp: TopicIdPartition
    start_offset: int
    until_offset: int | None = None
    name: str = ""  # the partition's name in errors, instead of its topic id
    epoch_id: int = 0  # id of the leader epoch of the record before `start_offset`; 0 = unknown
    end: LogPosition | None = None  # end of the range in the history of its log; None = check `epoch_id` only


class BatchSlice(NamedTuple):
    """The part of a record batch that is in a range: `from_offset` (inclusive) to `until_offset` (exclusive)."""

    tp: TopicIdPartition
    batch: RecordBatch
    from_offset: int
    until_offset: int
    name: str = ""

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, as received."""
        return self.batch.header.batch_length


class Gap(NamedTuple):
    """Skipped offsets, `first_offset` (inclusive) to `until_offset` (exclusive), and the reason."""

    first_offset: int
    until_offset: int
    reason: str


class EpochStart(NamedTuple):
    """The leader epoch of records from `offset` on; id 0 = unknown."""

    offset: int
    id: int


class RangePosition:
    """Progress of one range: `accept` takes responses, `next_offset` is the next to fetch."""

    def __init__(self, wanted: FetchRange, *, is_read_committed: bool, check_headers: bool, goes_past_damage: bool = False) -> None:
        self.tp = wanted.tp
        self.name = wanted.name or str(wanted.tp)
        self.next_offset = wanted.start_offset
        self.until_offset = wanted.until_offset
        self.leader_epoch = -1  # in which the present stream reads; -1 = unknown
        self.end_offset = -1  # end of the readable log, as last reported by the broker; -1 = unknown
        self.error: BrokerdError | None = None  # the last error of this partition
        self._is_read_committed = is_read_committed
        self._seed = crc_seed(wanted.tp) if check_headers else None
        self._empty_responses = 0
        self._goes_past_damage = goes_past_damage
        self._end = wanted.end
        self._epoch_id = wanted.epoch_id  # of the record before `next_offset`
        self.is_done = self._has_reached_end()  # the whole range was requested and received
        self.gaps: list[Gap] = []  # skipped by the last response
        self.epochs: list[EpochStart] = []  # leader epochs that began in the last response

    def _has_reached_end(self) -> bool:
        return self.until_offset is not None and self.next_offset >= self.until_offset

    def accept(
        self, result: fetch_pb2.PartitionFetchResult, chunks: Sequence[pa.Buffer], *, had_room: bool = True
    ) -> list[BatchSlice]:
        """The slices of a response to decode; each of `chunks` holds one or more whole batches. Raises the response's error, or
        CorruptMessageError if its batches are inconsistent.

        `had_room` is false if other partitions may have used up the response's bytes: then an empty result means nothing.
        """
        self.gaps, self.epochs = [], []
        if result.HasField("error"):
            self._go_past(from_proto(result.error))
            slices = []
        else:
            slices = self._accept(result, chunks, had_room=had_room)
        self.is_done = self._has_reached_end()
        return slices

    def _accept(self, result: fetch_pb2.PartitionFetchResult, chunks: Sequence[pa.Buffer], *, had_room: bool) -> list[BatchSlice]:
        self.end_offset = result.last_stable_offset if self._is_read_committed else result.high_watermark
        asked = self.next_offset
        slices: list[BatchSlice] = []
        try:
            slices.extend(self._slices(result, chunks) if chunks else ())
        except (CorruptMessageError, UnsupportedVersionError) as error:
            if self.next_offset == asked:
                raise type(error)(f"{self.name}: {error.message}") from None
            # The batches before it are intact: return them; the next response begins with the bad one.
        if self.next_offset > asked or self._has_reached_end():
            self._empty_responses = 0
            return slices
        if any(chunk.size for chunk in chunks):
            raise CorruptMessageError(f"{self.name}: the broker was asked for offset {asked} and returned older batches")
        if not had_room:
            return slices
        is_past_range = self.until_offset is not None and self.end_offset >= self.until_offset
        self._empty_responses = self._empty_responses + 1 if is_past_range else 0
        if self.until_offset is not None and self._empty_responses >= _EMPTY_RESPONSES_AT_END:
            self.next_offset = self.until_offset
        return slices

    @property
    def position(self) -> LogPosition | None:
        """The position for the broker's truncation check; None if the range's history is unknown."""
        if self._end is not None:
            return self._end
        return LogPosition(self.next_offset, self._epoch_id) if self._epoch_id else None

    def _enter(self, offset: int, epoch_id: int) -> None:
        self._epoch_id = epoch_id
        self.epochs.append(EpochStart(offset, epoch_id))

    def _go_past(self, error: WireError) -> None:
        """Moves past damage, at most to the end of the range. Raises `error` if it is not damage or the broker does not report
        where the log resumes; if damage must not be skipped, raises LogDamagedError that says how to continue."""
        if not isinstance(error, LogDamagedError) or error.resume_offset <= self.next_offset:
            raise error
        if not self._goes_past_damage:
            advice = f"skip.corrupt.batches=true (Spark: also failOnDataLoss=false) continues at offset {error.resume_offset}"
            raise LogDamagedError(f"{error.message}; {advice}", resume_offset=error.resume_offset)
        until_offset = error.resume_offset if self.until_offset is None else min(error.resume_offset, self.until_offset)
        self.gaps.append(Gap(self.next_offset, until_offset, error.message))
        self._enter(self.next_offset, 0)
        self.next_offset = until_offset
        self._empty_responses = 0

    def _slices(self, result: fetch_pb2.PartitionFetchResult, chunks: Sequence[pa.Buffer]) -> Iterator[BatchSlice]:
        aborted: dict[int, list[fetch_pb2.AbortedTransaction]] = {}
        for one in result.aborted if self._is_read_committed else ():
            aborted.setdefault(one.producer_id, []).append(one)
        for header, data in (batch for chunk in chunks for batch in walk_batches(chunk, self._seed)):
            next_offset, is_control = header.next_offset, header.is_control
            if next_offset <= self.next_offset:
                continue
            if self.until_offset is not None and header.base_offset >= self.until_offset:
                self.next_offset = self.until_offset
                return
            if header.base_offset < 0 or next_offset > INT64_MAX:
                raise CorruptMessageError(f"the broker sent a batch at offset {header.base_offset}, which is not a valid offset")
            from_offset = max(header.base_offset, self.next_offset)
            if from_offset > self.next_offset:
                self.gaps.append(Gap(self.next_offset, from_offset, "they were taken out of the log"))
            self.next_offset = next_offset
            if header.leader_epoch_id != self._epoch_id:
                self._enter(header.base_offset, header.leader_epoch_id)
            if is_control or (aborted and is_aborted(header, aborted.get(header.producer_id, ()))):
                continue
            until_offset = next_offset if self.until_offset is None else min(next_offset, self.until_offset)
            yield BatchSlice(self.tp, RecordBatch(header, data), from_offset, until_offset, self.name)


def is_aborted(header: BatchHeader, aborted: Iterable[fetch_pb2.AbortedTransaction]) -> bool:
    """True if the batch belongs to an aborted transaction, by producer id and offset range together: the first offset or the
    marker alone would miss rows of transactions split across fetches.
    """
    if not header.is_transactional:
        return False
    return any(
        header.producer_id == one.producer_id and one.first_offset <= header.base_offset < one.marker_offset for one in aborted
    )
