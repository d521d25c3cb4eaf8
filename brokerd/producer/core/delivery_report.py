"""What became of batches: whose listeners are to be notified, what each partition acknowledged, the first failure. Pure."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.errors import BrokerdError
from brokerd.ids import TopicPartition
from brokerd.producer.core.producer_batch import ProducerBatch


class DeliveredTotals(NamedTuple):
    """What one partition acknowledged."""

    record_count: int = 0
    batch_count: int = 0


class DeliveryReport:
    """Of one producer, since it was made."""

    __slots__ = ("delivered", "first_error", "pending")

    def __init__(self) -> None:
        self.delivered: dict[TopicPartition, DeliveredTotals] = {}  # other threads may copy it: in one call, and of values
        self.first_error: BrokerdError | None = None
        self.pending: list[ProducerBatch] = []  # in their final state, or split, since the last `take`

    def note(self, batch: ProducerBatch) -> None:
        """The batch has its final state."""
        self.pending.append(batch)
        if batch.error is None:
            records, batches = self.delivered.get(batch.tp, DeliveredTotals())
            self.delivered[batch.tp] = DeliveredTotals(records + batch.record_count, batches + 1)
        elif self.first_error is None:
            self.first_error = batch.error

    def note_split(self, batch: ProducerBatch) -> None:
        """The batch has parts now: who listens is to turn to them."""
        if batch.listeners:
            self.pending.append(batch)

    def take(self) -> list[ProducerBatch]:
        """Batches whose listeners are to be notified."""
        taken = self.pending
        self.pending = []
        return taken
