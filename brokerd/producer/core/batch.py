"""ProducerBatch: records of one partition that are sent together, from the first record to the acknowledgement. Pure.

The producer's other parts drive it; each move between two states is checked against a table. Whether an attempt has reached the
log is no state but knowledge, which may improve at any time: `is_fate_unknown`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from brokerd.errors import BrokerdError
from brokerd.ids import NO_PRODUCER, NO_SEQUENCE, ProducerIdAndEpoch, TopicPartition
from brokerd.producer.core.membership import Membership
from brokerd.record.header import add_sequence

NO_OFFSET = -1
NO_TIMESTAMP = -1
NEVER_MS = 2**63 - 1  # a time that does not come


class BatchState(enum.Enum):
    """The states of a batch."""

    OPEN = "open"  # records are added
    CLOSED = "closed"  # waits to be sent, for the first time or again
    IN_FLIGHT = "in flight"
    GIVEN_UP = "given up"  # in flight; the application already has its error, so the response changes nothing for it
    ENDED = "ended"  # written or failed
    SPLIT = "split"  # its parts have taken its place


_MOVES = {
    BatchState.OPEN: {BatchState.CLOSED, BatchState.IN_FLIGHT, BatchState.ENDED},
    BatchState.CLOSED: {BatchState.IN_FLIGHT, BatchState.ENDED, BatchState.SPLIT},
    BatchState.IN_FLIGHT: {BatchState.CLOSED, BatchState.GIVEN_UP, BatchState.ENDED},
    BatchState.GIVEN_UP: {BatchState.ENDED},
    BatchState.ENDED: set[BatchState](),
    BatchState.SPLIT: set[BatchState](),
}


class Piece(NamedTuple):
    """Records that are added to a batch together, in order."""

    data: Any  # a pa.RecordBatch (columns.py), which the core never reads
    record_count: int
    size_bytes: int  # in memory; about what the piece adds to the encoded batch
    timestamp_ms: int  # for records without a timestamp


class ProducerBatch:
    """Records of one partition, their sequence, and their outcome."""

    def __init__(self, tp: TopicPartition, created_ms: int, order: tuple[int, ...] = (0,)) -> None:
        self.tp = tp
        self.order = order  # of sending, within the partition; a part's order extends that of the split batch
        self.created_ms = created_ms  # monotonic, of the first record
        self.state = BatchState.OPEN
        self.pieces: list[Piece] = []
        self.record_count = 0
        self.size_bytes = 0  # estimate until encoded, then exact
        self.uncompressed_bytes = 0  # as size_bytes, without compression
        self.accounted_bytes = 0  # of buffer.memory
        self.encoded: Any = None  # columns.EncodedBatch, once encoded
        self.parts: tuple[ProducerBatch, ...] = ()  # the batches that a split made of it, in order

        self.identity: ProducerIdAndEpoch = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.membership: Membership | None = None  # the member of a transaction that first sent the batch
        self.attempts = 0
        self.was_first = False  # when last drained, it was the first of its partition without an outcome
        self.leader_epoch = -1  # in which it was last sent; -1 = unknown
        self.is_fate_unknown = False  # an earlier attempt may have appended it
        self.retry_at_ms = 0
        self.last_error: BrokerdError | None = None

        self.base_offset = NO_OFFSET
        self.append_timestamp = NO_TIMESTAMP
        self.error: BrokerdError | None = None
        self.listeners: list[Callable[[ProducerBatch], None]] = []  # called at the end, then cleared

    def __repr__(self) -> str:
        return f"ProducerBatch({self.tp}, {self.record_count} records, sequence {self.base_sequence}, {self.state.value})"

    # --- states

    def _move(self, state: BatchState) -> None:
        assert state in _MOVES[self.state], f"{self!r} cannot become {state.value}"
        self.state = state

    @property
    def is_in_flight(self) -> bool:
        """True while a response may come."""
        return self.state in (BatchState.IN_FLIGHT, BatchState.GIVEN_UP)

    @property
    def is_done(self) -> bool:
        """True once the application has the outcome."""
        return self.state in (BatchState.ENDED, BatchState.GIVEN_UP)

    def add(self, piece: Piece) -> int:
        """Adds records and returns the position of the first one."""
        assert self.state is BatchState.OPEN, "a closed batch takes no records"
        at = self.record_count
        self.pieces.append(piece)
        self.record_count += piece.record_count
        self.size_bytes += piece.size_bytes
        self.uncompressed_bytes += piece.size_bytes
        self.accounted_bytes += piece.size_bytes
        return at

    def close(self) -> None:
        """Ends the adding of records, if the batch is open."""
        if self.state is BatchState.OPEN:
            self._move(BatchState.CLOSED)

    def send(self) -> None:
        """Begins an attempt; no more records are added."""
        self._move(BatchState.IN_FLIGHT)
        self.attempts += 1

    def come_back(self) -> None:
        """Ends an attempt that did not write the batch, as far as is known."""
        self._move(BatchState.ENDED if self.state is BatchState.GIVEN_UP else BatchState.CLOSED)

    def complete(self, base_offset: int, append_timestamp: int) -> bool:
        """Ends a batch in flight as written. Returns False if it was given up before the response came."""
        was_given_up = self.state is BatchState.GIVEN_UP
        assert self.is_in_flight, "only an attempt can write a batch"
        self._move(BatchState.ENDED)
        if not was_given_up:
            self.base_offset = base_offset
            self.append_timestamp = append_timestamp
        return not was_given_up

    def fail(self, error: BrokerdError) -> None:
        """Ends the batch with an error; one in flight is given up."""
        self._move(BatchState.GIVEN_UP if self.state is BatchState.IN_FLIGHT else BatchState.ENDED)
        self.error = error

    # --- sequences

    @property
    def has_sequence(self) -> bool:
        """True once a sequence was assigned."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record."""
        return add_sequence(self.base_sequence, self.record_count - 1)

    def assign_sequence(self, identity: ProducerIdAndEpoch, base_sequence: int, membership: Membership | None) -> None:
        """Assigns the sequence, once: a retry never changes it."""
        assert not self.has_sequence, "a sequence is assigned once"
        self.identity = identity
        self.base_sequence = base_sequence
        self.membership = membership

    def clear_sequence(self) -> None:
        """Removes the sequence; allowed only if no attempt can have appended the batch."""
        assert not self.is_fate_unknown, "a batch that may be in the log keeps its sequence"
        assert not self.is_in_flight, "a batch in flight keeps its sequence"
        self.identity = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.membership = None

    # --- parts

    def split_into(self, pieces: list[Piece]) -> None:
        """Splits the batch into one part per piece, in order. The parts divide its sequences, so that the broker recognizes each
        part as a duplicate if an earlier attempt has written the whole batch.
        """
        self._move(BatchState.SPLIT)
        parts = []
        sequence = self.base_sequence
        for number, piece in enumerate(pieces):
            part = ProducerBatch(self.tp, self.created_ms, (*self.order, number))
            part.add(piece)
            part.close()
            part.is_fate_unknown = self.is_fate_unknown
            part.last_error = self.last_error
            if self.has_sequence:
                part.assign_sequence(self.identity, sequence, self.membership)
                sequence = add_sequence(sequence, piece.record_count)
            parts.append(part)
        self.parts = tuple(parts)
        self.pieces = []
        self.encoded = None

    @property
    def is_notified(self) -> bool:
        """True once all its records have a final state and all listeners have been called."""
        if self.listeners:
            return False
        return all(part.is_notified for part in self.parts) if self.parts else self.is_done

    def leaves(self) -> Iterator[ProducerBatch]:
        """The batches that hold its records now: itself, or its parts."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def locate(self, position: int) -> tuple[ProducerBatch, int]:
        """The batch that holds the record at `position` now, and its position there."""
        batch = self
        while batch.parts:
            for part in batch.parts:
                if position < part.record_count:
                    batch = part
                    break
                position -= part.record_count
            else:
                raise IndexError(position)
        return batch, position
