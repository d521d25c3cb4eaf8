"""ProducerBatch: records on their way to one partition, with all that is known about their delivery.

The content of pieces is never read here (columns.py has columns, encoding.py bytes), and nothing is decided: accumulator.py,
idempotence.py and producer_core.py do that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.errors import BrokerdError
from brokerd.ids import NO_PRODUCER, NO_SEQUENCE, ProducerIdAndEpoch, TopicPartition
from brokerd.record.header import add_sequence

if TYPE_CHECKING:
    from brokerd.producer.core.idempotence import IdempotenceState

NO_OFFSET = -1
NO_TIMESTAMP = -1


class Piece(NamedTuple):
    """Some records that entered a batch together, in their order."""

    data: Any  # a pa.RecordBatch (columns.py); decisions about delivery never read it
    record_count: int
    size_bytes: int  # of memory; about as many as it adds to the encoded batch
    timestamp_ms: int  # for records without a timestamp


class ProducerBatch:
    """A batch is open while records are added, then closed, and ended once, by `complete` or `fail`. One that was split never ends:
    each of its `parts` does.

    A final state is final. A response to a batch that was ended by expiry or abort while in flight is ignored. Anything else that
    ends a batch twice is a bug, and raises.
    """

    __slots__ = (
        "accounted_bytes",
        "append_timestamp",
        "attempts",
        "base_offset",
        "base_sequence",
        "created_ms",
        "encoded",
        "error",
        "identity",
        "is_closed",
        "is_done",
        "is_fate_unknown",
        "is_given_up",
        "is_in_flight",
        "last_error",
        "listeners",
        "numbered_by",
        "order",
        "parts",
        "pieces",
        "record_count",
        "retry_at_ms",
        "size_bytes",
        "tp",
        "uncompressed_bytes",
        "was_first",
    )

    def __init__(self, tp: TopicPartition, created_ms: int, order: tuple[int, ...] = (0,)) -> None:
        self.tp = tp
        self.order = order  # of sending, among the partition's batches; a part's order extends that of the whole
        self.created_ms = created_ms  # monotonic, of the first record
        self.pieces: list[Piece] = []
        self.record_count = 0
        self.size_bytes = 0  # estimate until encoded, then exact
        self.uncompressed_bytes = 0  # as size_bytes, without compression
        self.accounted_bytes = 0  # of buffer.memory
        self.is_closed = False
        self.encoded: Any = None  # encoding.EncodedBatch, once
        self.parts: tuple[ProducerBatch, ...] = ()  # the batches that it was split into, in order

        self.identity: ProducerIdAndEpoch = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.numbered_by: IdempotenceState | None = None  # of the identity that it was first sent under
        self.attempts = 0
        self.was_first = False  # at the last attempt: every batch with an earlier sequence was settled when it was drained
        self.is_in_flight = False
        self.is_fate_unknown = False  # some attempt may have appended it
        self.retry_at_ms = 0
        self.last_error: BrokerdError | None = None

        self.is_done = False
        self.is_given_up = False  # ended by expiry or abort: responses may still come
        self.base_offset = NO_OFFSET
        self.append_timestamp = NO_TIMESTAMP
        self.error: BrokerdError | None = None
        self.listeners: list[Callable[[ProducerBatch], None]] = []  # called at the end, then cleared

    def __repr__(self) -> str:
        return f"ProducerBatch({self.tp}, {self.record_count} records, sequence {self.base_sequence}, attempts {self.attempts})"

    @property
    def has_sequence(self) -> bool:
        """True once a sequence was assigned."""
        return self.base_sequence != NO_SEQUENCE

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record."""
        return add_sequence(self.base_sequence, self.record_count - 1)

    def add(self, piece: Piece) -> int:
        """Adds records; returns the position of the first in the batch."""
        assert not self.is_closed, "a closed batch takes no records"
        at = self.record_count
        self.pieces.append(piece)
        self.record_count += piece.record_count
        self.size_bytes += piece.size_bytes
        self.uncompressed_bytes += piece.size_bytes
        self.accounted_bytes += piece.size_bytes
        return at

    @property
    def is_notified(self) -> bool:
        """True once all its records have their final state and their listeners were called."""
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

    def split_into(self, pieces: list[Piece]) -> None:
        """Splits the batch into one for each piece, in order, which share its sequence numbers: if an earlier attempt has written
        the whole, the broker recognizes the numbers of each part as duplicates.
        """
        assert not self.is_done, "what has ended stays whole"
        assert not self.is_in_flight, "what is under way stays whole"
        parts = []
        sequence = self.base_sequence
        for number, piece in enumerate(pieces):
            part = ProducerBatch(self.tp, self.created_ms, (*self.order, number))
            part.add(piece)
            part.is_closed = True
            part.is_fate_unknown = self.is_fate_unknown
            part.last_error = self.last_error
            if self.has_sequence:
                part.assign_sequence(self.identity, sequence, self.numbered_by)
                sequence = add_sequence(sequence, piece.record_count)
            parts.append(part)
        self.parts = tuple(parts)
        self.pieces = []
        self.encoded = None

    @property
    def is_transactional(self) -> bool:
        """True if it was first sent as part of a transaction."""
        return self.numbered_by is not None and self.numbered_by.is_member

    def assign_sequence(self, identity: ProducerIdAndEpoch, base_sequence: int, numbered_by: IdempotenceState | None) -> None:
        """Gives the batch its sequence, once: a retry never changes it."""
        assert not self.has_sequence, "a sequence is assigned once"
        self.identity = identity
        self.base_sequence = base_sequence
        self.numbered_by = numbered_by

    def clear_sequence(self) -> None:
        """Takes the sequence back; legal only if no attempt can have appended the batch."""
        assert not self.is_fate_unknown, "what may be in the log keeps its number"
        assert not self.is_in_flight, "what is under way keeps its number"
        self.identity = NO_PRODUCER
        self.base_sequence = NO_SEQUENCE
        self.numbered_by = None

    def complete(self, base_offset: int, append_timestamp: int) -> bool:
        """Ends the batch as written. False if it was given up before: the response came late."""
        if not self._end():
            return False
        self.base_offset = base_offset
        self.append_timestamp = append_timestamp
        return True

    def fail(self, error: BrokerdError, *, is_given_up: bool = False) -> bool:
        """Ends the batch with an error. `is_given_up`: responses may still come. False if it was given up before."""
        if not self._end():
            return False
        self.error = error
        self.is_given_up = is_given_up
        return True

    def _end(self) -> bool:
        if self.is_done:
            assert self.is_given_up, "a batch ends once"
            return False
        self.is_done = True
        return True
