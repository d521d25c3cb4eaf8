"""What became of batches: who is still to be told, what each partition acknowledged, the first failure. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.errors import BrokerdError
from brokerd.ids import TopicPartition
from brokerd.producer.core.producer_batch import ProducerBatch


@dataclass(slots=True)
class DeliveredTotals:
    """What one partition acknowledged."""

    record_count: int = 0
    batch_count: int = 0


class Outcomes:
    """Of one producer, since it was made."""

    __slots__ = ("delivered", "first_error", "untaken")

    def __init__(self) -> None:
        self.delivered: dict[TopicPartition, DeliveredTotals] = {}
        self.first_error: BrokerdError | None = None
        self.untaken: list[ProducerBatch] = []  # in their final state, or split, since the last `take`

    def note(self, batch: ProducerBatch) -> None:
        """The batch has its final state."""
        self.untaken.append(batch)
        if batch.error is None:
            totals = self.delivered.get(batch.tp)
            if totals is None:
                totals = self.delivered[batch.tp] = DeliveredTotals()
            totals.record_count += batch.record_count
            totals.batch_count += 1
        elif self.first_error is None:
            self.first_error = batch.error

    def note_split(self, batch: ProducerBatch) -> None:
        """The batch has parts now: who listens is to turn to them."""
        if batch.listeners:
            self.untaken.append(batch)

    def delivered_now(self) -> dict[TopicPartition, DeliveredTotals]:
        """A copy of `delivered`."""
        return {tp: DeliveredTotals(total.record_count, total.batch_count) for tp, total in self.delivered.items()}

    def take(self) -> list[ProducerBatch]:
        """Batches whose listeners are to be told."""
        taken = self.untaken
        self.untaken = []
        return taken
