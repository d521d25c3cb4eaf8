"""Totals of acknowledged records by partition, the first failure, and the batches whose listeners are to be notified. Pure."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.errors import BrokerdError
from brokerd.ids import TopicPartition
from brokerd.producer.core.producer_batch import ProducerBatch


class DeliveredTotals(NamedTuple):
    """The records that one partition has acknowledged."""

    record_count: int = 0
    batch_count: int = 0


class Deliveries:
    """The results of all batches that were sent under one identity of the producer."""

    __slots__ = ("delivered", "first_error")

    def __init__(self) -> None:
        self.delivered: dict[TopicPartition, DeliveredTotals] = {}  # other threads may copy it: in one call, and of values
        self.first_error: BrokerdError | None = None

    def note(self, batch: ProducerBatch) -> None:
        """Counts a batch that has its final state."""
        if batch.error is None:
            records, batches = self.delivered.get(batch.tp, DeliveredTotals())
            self.delivered[batch.tp] = DeliveredTotals(records + batch.record_count, batches + 1)
        elif self.first_error is None:
            self.first_error = batch.error


class DeliveryReport:
    """The batches of one producer whose listeners are to be notified."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: list[ProducerBatch] = []  # in their final state, or split, since the last `take`

    def note(self, batch: ProducerBatch) -> None:
        """Notes a batch that has its final state."""
        self.pending.append(batch)

    def note_split(self, batch: ProducerBatch) -> None:
        """Notes a batch that was split: its listeners are to follow its parts."""
        if batch.listeners:
            self.pending.append(batch)

    def take(self) -> list[ProducerBatch]:
        """Returns the batches whose listeners are to be notified, once."""
        taken = self.pending
        self.pending = []
        return taken
