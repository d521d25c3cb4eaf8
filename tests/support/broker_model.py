"""An independent model of a broker's responses to produce requests, written from the table of producer states rather than from the
broker's code, so that the two can be compared. It has no bytes, time or I/O; records are arbitrary objects."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.errors import (
    DuplicateSequenceError,
    Fate,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownProducerIdError,
)
from brokerd.ids import NO_PRODUCER, NO_PRODUCER_ID, ProducerIdAndEpoch
from brokerd.producer.core.transport import Hello

SEQUENCES = 2**31
WINDOW = 6


@dataclass
class ProducerEntry:
    """A partition's state of one producer id: the last six batches as (first sequence, last sequence, base offset)."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1]


@dataclass
class PartitionModel:
    """A partition: its records in order, and its producers."""

    records: list[Any] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)  # producer id of each record
    producers: dict[int, ProducerEntry] = field(default_factory=dict)
    forgotten_number: int = -1  # producer ids up to this one may have been evicted

    def push_out(self) -> None:
        """Evicts all producers, as when room is needed."""
        for producer_id in list(self.producers):
            self.forget(producer_id)

    def forget(self, producer_id: int) -> None:
        """Evicts a producer."""
        self.forgotten_number = max(self.forgotten_number, producer_id)
        del self.producers[producer_id]

    def append(self, identity: ProducerIdAndEpoch, base_sequence: int, records: Sequence[Any]) -> int:
        """Appends; returns the base offset. Raises the table's errors."""
        if identity.producer_id == NO_PRODUCER_ID:
            return self._append(records, NO_PRODUCER_ID)
        first, last = base_sequence, (base_sequence + len(records) - 1) % SEQUENCES
        entry = self.producers.get(identity.producer_id)
        if entry is None:
            if first != 0 or identity.producer_id <= self.forgotten_number:
                raise UnknownProducerIdError("no state of this producer id", fate=Fate.NOT_APPENDED)
            entry = self.producers[identity.producer_id] = ProducerEntry(identity.epoch)
        elif identity.epoch < entry.epoch:
            raise InvalidProducerEpochError("a newer epoch has written", fate=Fate.NOT_APPENDED, current_epoch=entry.epoch)
        elif identity.epoch > entry.epoch:
            if first != 0:
                raise self._out_of_order(0, entry.epoch)
            entry = self.producers[identity.producer_id] = ProducerEntry(identity.epoch)
        else:
            for known_first, known_last, offset in entry.batches:
                if (known_first, known_last) == (first, last):
                    return offset
            expected = (entry.last_sequence + 1) % SEQUENCES
            if first != expected:
                if (entry.last_sequence - last) % SEQUENCES < SEQUENCES // 2 and (last - first) % SEQUENCES < SEQUENCES // 2:
                    raise DuplicateSequenceError(
                        "it is there, its offset is not known",
                        fate=Fate.NOT_APPENDED,
                        expected_sequence=expected,
                        current_epoch=entry.epoch,
                    )
                raise self._out_of_order(expected, entry.epoch)
        offset = self._append(records, identity.producer_id)
        entry.batches.append((first, last, offset))
        return offset

    def _append(self, records: Sequence[Any], producer_id: int) -> int:
        offset = len(self.records)
        self.records.extend(records)
        self.writers.extend([producer_id] * len(records))
        return offset

    @staticmethod
    def _out_of_order(expected: int, epoch: int) -> OutOfOrderSequenceError:
        text = f"expected sequence {expected} of epoch {epoch}"
        return OutOfOrderSequenceError(text, fate=Fate.NOT_APPENDED, expected_sequence=expected, current_epoch=epoch)


@dataclass
class IdentityModel:
    """Producer ids, their epochs, and the incarnations of streams."""

    next_producer_id: int = 1_000
    incarnations: dict[bytes, int] = field(default_factory=dict)

    def init_producer_id(self, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """A new producer id, or a raised epoch."""
        if current == NO_PRODUCER:
            return ProducerIdAndEpoch(self.next_id(), 0)
        assert current.epoch < 2**15 - 1, "an epoch at its end is not raised: a new id is asked for"
        return ProducerIdAndEpoch(current.producer_id, current.epoch + 1)

    def next_id(self) -> int:
        """A new producer id."""
        self.next_producer_id += 1
        return self.next_producer_id

    def hello(self, hello: Hello) -> bool:
        """False if a newer stream of this instance has said hello."""
        known = self.incarnations.get(hello.instance_id, 0)
        self.incarnations[hello.instance_id] = max(known, hello.incarnation)
        return hello.incarnation >= known

    def is_current(self, hello: Hello) -> bool:
        """True while no newer stream of the instance has said hello."""
        return self.incarnations.get(hello.instance_id, 0) == hello.incarnation
