"""How far a range of a partition is read, and what of an answer belongs to it. Pure: no I/O, no clock, no columns.

Rules kept here: batches come whole, so the first and last are cut to the range; control batches and those of aborted
transactions take offsets and are left out; offsets may have gaps; a range ends exactly at its end, with or without data
there. Damage is gone past only where that is wanted and the broker says where the log goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from brokerd.client.consumer.fetch_stream import Aborted, PartitionFetchResult
from brokerd.config.settings import INT64_MAX
from brokerd.errors import CorruptMessageError, LogDamagedError, UnsupportedVersionError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.header import BatchHeader, crc_seed

# An empty answer from a log that reaches past the range means that nothing is left in it. One is not enough: the ends in
# an answer may be newer than its records (asked while parked, answered when the log had grown).
_EMPTY_ANSWERS_AT_END = 2


class FetchRange(NamedTuple):
    """Offsets to read: from `start_offset` up to, not with, `until_offset`; None = follow the log for ever."""

    tp: TopicIdPartition
    start_offset: int
    until_offset: int | None = None
    name: str = ""  # what errors call the partition; its topic's id says nothing to people


class Piece(NamedTuple):
    """The part of a record batch that lies in a range: offsets from `from_offset` up to, not with, `until_offset`."""

    tp: TopicIdPartition
    batch: RecordBatch
    from_offset: int
    until_offset: int
    name: str = ""


class Gap(NamedTuple):
    """Offsets from `first_offset` up to, not with, `until_offset` that are not read, and the reason."""

    first_offset: int
    until_offset: int
    reason: str


class RangePosition:
    """One range while it is read: `accept` takes answers, `next_offset` says what to ask for."""

    def __init__(self, wanted: FetchRange, *, is_read_committed: bool, check_headers: bool, goes_past_damage: bool = False) -> None:
        self.tp = wanted.tp
        self.name = wanted.name or str(wanted.tp)
        self.next_offset = wanted.start_offset
        self.until_offset = wanted.until_offset
        self.end_offset = -1  # what the broker last said: where the readable log ends; -1 = not asked yet
        self._is_read_committed = is_read_committed
        self._seed = crc_seed(wanted.tp) if check_headers else None
        self._empty_answers = 0
        self._goes_past_damage = goes_past_damage
        self._gaps: list[Gap] = []

    @property
    def is_done(self) -> bool:
        """True once nothing of the range is left to ask for."""
        return self.until_offset is not None and self.next_offset >= self.until_offset

    def accept(self, result: PartitionFetchResult, *, had_room: bool = True) -> list[Piece]:
        """What of an answer is to be decoded. Raises the answer's error, CorruptMessageError if its batches make no sense.

        `had_room` is false if other partitions may have used up the answer's bytes: then nothing here means nothing.
        """
        if result.error is not None:
            self._go_past(result.error)
            return []
        self.end_offset = result.last_stable_offset if self._is_read_committed else result.high_watermark
        asked = self.next_offset
        try:
            pieces = list(self._pieces(result)) if result.chunks else []
        except (CorruptMessageError, UnsupportedVersionError) as error:
            raise type(error)(f"{self.name}: {error.message}") from None
        if self.next_offset > asked or self.is_done:
            self._empty_answers = 0
            return pieces
        if any(chunk.size for chunk in result.chunks):
            raise CorruptMessageError(f"{self.name}: the broker was asked for offset {asked} and answered with older batches")
        if not had_room:
            return pieces
        is_past_range = self.until_offset is not None and self.end_offset >= self.until_offset
        self._empty_answers = self._empty_answers + 1 if is_past_range else 0
        if self.until_offset is not None and self._empty_answers >= _EMPTY_ANSWERS_AT_END:
            self.next_offset = self.until_offset
        return pieces

    def take_gaps(self) -> list[Gap]:
        """What has been gone past since this was asked last."""
        gaps, self._gaps = self._gaps, []
        return gaps

    def _go_past(self, error: WireError) -> None:
        """Moves behind damage, at most to the end of the range. Raises `error` if it is something else, if the broker does not
        say where the log goes on, or if damage is to end the reading; then it says what else can be done."""
        if not isinstance(error, LogDamagedError) or not self.next_offset < error.resume_offset <= INT64_MAX:
            raise error
        if not self._goes_past_damage:
            advice = f"skip.corrupt.batches=true (Spark: also failOnDataLoss=false) goes on at offset {error.resume_offset}"
            raise LogDamagedError(f"{error.message}; {advice}", resume_offset=error.resume_offset)
        until_offset = error.resume_offset if self.until_offset is None else min(error.resume_offset, self.until_offset)
        self._gaps.append(Gap(self.next_offset, until_offset, error.message))
        self.next_offset = until_offset
        self._empty_answers = 0

    def _pieces(self, result: PartitionFetchResult) -> Iterator[Piece]:
        for header, data in (batch for chunk in result.chunks for batch in walk_batches(chunk, self._seed)):
            if header.next_offset <= self.next_offset:
                continue
            if self.until_offset is not None and header.base_offset >= self.until_offset:
                self.next_offset = self.until_offset
                return
            if header.base_offset < 0 or header.next_offset > INT64_MAX:
                raise CorruptMessageError(f"the broker sent a batch at offset {header.base_offset}, which no log has")
            from_offset = max(header.base_offset, self.next_offset)
            if from_offset > self.next_offset:
                self._gaps.append(Gap(self.next_offset, from_offset, "the broker goes past them, they are taken out"))
            self.next_offset = header.next_offset
            if header.is_control or (self._is_read_committed and is_aborted(header, result.aborted)):
                continue
            until_offset = header.next_offset if self.until_offset is None else min(header.next_offset, self.until_offset)
            yield Piece(self.tp, RecordBatch(header, data), from_offset, until_offset, self.name)


def is_aborted(header: BatchHeader, aborted: Iterable[Aborted]) -> bool:
    """True if the batch belongs to an aborted transaction: by producer id and range together. By first offset or by marker
    alone, rows of transactions that a fetch splits leak.
    """
    if not header.is_transactional:
        return False
    return any(
        header.producer_id == one.producer_id and one.first_offset <= header.base_offset < one.marker_offset for one in aborted
    )
