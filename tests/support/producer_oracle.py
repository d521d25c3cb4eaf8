"""A reference for the state of idempotent producers, independent of the log's code. Per producer it counts records of the current
epoch in plain numbers that never wrap, where the log has sequences that wrap."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
    WireError,
)
from brokerd.partition.producer_state import BatchMetadata, ProducerStateEntry

RING = 2**31
_WINDOW = 6
_REMEMBERED = 8


class Sent(NamedTuple):
    """An accepted batch: number of its first record, record count, offset, append time in ms."""

    number: int
    record_count: int
    offset: int
    timestamp: int


class Known(NamedTuple):
    """A producer's state. `batches`: the last ones of this epoch, oldest first."""

    epoch: int
    next_number: int
    batches: tuple[Sent, ...]


class ProducerOracle:
    """See the module."""

    def __init__(self) -> None:
        self.state: dict[int, Known] = {}

    def answer(self, producer_id: int, epoch: int, first: int, count: int) -> int | type[WireError] | None:
        """The expected result: None to append, the offset of the batch that it repeats, or the error."""
        known = self.state.get(producer_id)
        if known is None:
            return UnknownProducerIdError if first else None
        if epoch < known.epoch:
            return InvalidProducerEpochError
        if epoch > known.epoch:
            return OutOfOrderSequenceError if first else None
        for sent in known.batches[-_WINDOW:]:
            if sent.number % RING == first and sent.record_count == count:
                return sent.offset
        if first == known.next_number % RING:
            return None
        # The nearest number at or below the next one with this sequence, if it was ever used.
        number = known.next_number - (known.next_number - first) % RING
        is_used = number >= 0 and known.next_number - number <= RING // 2
        return DuplicateSequenceError if is_used and number + count <= known.next_number else OutOfOrderSequenceError

    def append(self, producer_id: int, epoch: int, count: int, offset: int, timestamp: int) -> None:
        """Records an appended batch."""
        known = self.state.get(producer_id)
        if known is None or known.epoch != epoch:
            known = Known(epoch, 0, ())
        sent = Sent(known.next_number, count, offset, timestamp)
        self.state[producer_id] = Known(epoch, known.next_number + count, (*known.batches[1 - _REMEMBERED :], sent))

    def expire(self, before_ms: int) -> None:
        """Forgets producers that have been idle since before `before_ms`."""
        self.state = {key: known for key, known in self.state.items() if known.batches[-1].timestamp >= before_ms}

    def entries(self) -> dict[int, ProducerStateEntry]:
        """The state as the log should hold it."""
        return {
            producer_id: ProducerStateEntry(
                known.epoch,
                tuple(
                    BatchMetadata(
                        sent.number % RING,
                        (sent.number + sent.record_count - 1) % RING,
                        sent.offset,
                        sent.offset + sent.record_count - 1,
                        sent.timestamp,
                    )
                    for sent in known.batches[-_WINDOW:]
                ),
                has_wrapped=known.next_number > RING,
            )
            for producer_id, known in self.state.items()
        }
