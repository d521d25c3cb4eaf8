"""Formats events of producer_simulation.py as readable lines: the core's commands, the broker's actions, the records' results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerd.ids import NO_PRODUCER, NO_SEQUENCE, ProducerIdAndEpoch, TopicPartition
from brokerd.producer.core.accumulator import ProducerBatch
from brokerd.producer.core.streams import CloseStream, Command, FetchMetadata, OpenStream, RequestProducerId, SendHeartbeat


def command_text(command: Command) -> str:
    """A command of the core."""
    if isinstance(command, FetchMetadata):
        return f"ask for metadata of {', '.join(command.topics)}"
    if isinstance(command, RequestProducerId):
        if command.current == NO_PRODUCER:
            return "ask for a producer id"
        return f"ask for the epoch after {command.current.epoch} of producer {command.current.producer_id}"
    if isinstance(command, OpenStream):
        return f"open stream {command.hello.incarnation} to node {command.node_id}"
    if isinstance(command, SendHeartbeat):
        return f"heartbeat of member {command.membership.member_id.hex()}"
    if isinstance(command, CloseStream):
        return f"close stream {command.incarnation} to node {command.node_id}"
    batches = "; ".join(
        batch_text(batch.tp, records_of(batch), batch.identity, batch.base_sequence) for batch in command.batches.values()
    )
    return f"send request {command.correlation_id} on stream {command.incarnation}: {batches}"


def ended_text(batch: ProducerBatch, records: Sequence[int]) -> str:
    """The result reported for a batch's records."""
    what = records_text(batch.tp, records)
    if batch.error is not None:
        return f"{what} failed: {type(batch.error).__name__}: {batch.error}"
    return f"{what} delivered" + (f" at offset {batch.base_offset}" if batch.base_offset >= 0 else ", offset unknown")


def split_text(tp: TopicPartition, parts: Sequence[Sequence[int]]) -> str:
    """A batch's split."""
    return f"split {tp} into " + " | ".join(numbers_text(part) for part in parts)


def batch_text(tp: TopicPartition, records: Sequence[int], identity: ProducerIdAndEpoch, sequence: int) -> str:
    """A batch with its sequence."""
    number = "" if sequence == NO_SEQUENCE else f" (epoch {identity.epoch}, sequence {sequence})"
    return records_text(tp, records) + number


def records_text(tp: TopicPartition, records: Sequence[int]) -> str:
    """`t-0 records 1 to 4`: records are numbered in the order of sending, over all partitions."""
    return f"{tp} {numbers_text(records)}"


def numbers_text(numbers: Sequence[int]) -> str:
    """`record 1`, `records 1 to 4`."""
    runs = list(_runs(numbers))
    return ("record " if len(numbers) == 1 else "records ") + ", ".join(runs) if runs else "no records"


def _runs(numbers: Iterable[int]) -> Iterable[str]:
    first = last = -2
    for number in numbers:
        if number != last + 1:
            if last >= 0:
                yield _run(first, last)
            first = number
        last = number
    if last >= 0:
        yield _run(first, last)


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def records_of(batch: ProducerBatch) -> list[int]:
    """The numbers of a batch's records."""
    return [record for piece in batch.pieces for record in piece.data]
