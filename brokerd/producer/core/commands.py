"""What the decisions of producer_core.py ask the shell to do. Values only."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.core.producer_batch import ProducerBatch
from brokerd.producer.core.transport import Hello


class FetchMetadata(NamedTuple):
    """Ask for these topics; report with `on_metadata` or `on_metadata_failed`."""

    topics: tuple[str, ...]


class RequestProducerId(NamedTuple):
    """Ask for a producer id (NO_PRODUCER) or a raised epoch; report with `on_producer_id` or `on_producer_id_failed`."""

    current: ProducerIdAndEpoch


class OpenStream(NamedTuple):
    """Open a stream; report with `on_stream_open` or `on_stream_lost`."""

    node_id: int
    hello: Hello


class CloseStream(NamedTuple):
    """Close a stream that is given up already; nothing to report."""

    node_id: int
    incarnation: int


class SendRequest(NamedTuple):
    """Encode what is not encoded yet and send; report with `on_response` or `on_stream_lost`."""

    node_id: int
    incarnation: int
    correlation_id: int
    batches: dict[TopicIdPartition, ProducerBatch]


Command: TypeAlias = FetchMetadata | RequestProducerId | OpenStream | CloseStream | SendRequest


class Step(NamedTuple):
    """What to do now, and when to ask again if nothing happens before (NEVER_MS: never)."""

    commands: list[Command]
    next_ms: int
