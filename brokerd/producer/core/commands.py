"""The commands that producer_core.py gives to the shell. Values only."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.producer_batch import ProducerBatch
from brokerd.producer.core.transport import Hello


class FetchMetadata(NamedTuple):
    """Request metadata of these topics; report with `on_metadata` or `on_metadata_failed`."""

    topics: tuple[str, ...]


class RequestProducerId(NamedTuple):
    """Request a producer id (NO_PRODUCER) or a raised epoch, or the id of a member; report with `on_producer_id` or
    `on_identity_failed`."""

    current: ProducerIdAndEpoch
    membership: Membership | None


class SendHeartbeat(NamedTuple):
    """Tell the broker that a member is alive; report with `on_heartbeat` or `on_identity_failed`."""

    membership: Membership


class OpenStream(NamedTuple):
    """Open a stream; report with `on_stream_open` or `on_stream_lost`."""

    node_id: int
    hello: Hello


class CloseStream(NamedTuple):
    """Close a stream that the core has given up already; nothing to report."""

    node_id: int
    incarnation: int


class SendRequest(NamedTuple):
    """Encode the batches that are not encoded yet, and send; report with `on_response` or `on_stream_lost`."""

    node_id: int
    incarnation: int
    correlation_id: int
    batches: dict[TopicIdPartition, ProducerBatch]
    membership: Membership | None  # of the transaction that the batches belong to


Command: TypeAlias = FetchMetadata | RequestProducerId | SendHeartbeat | OpenStream | CloseStream | SendRequest


class Step(NamedTuple):
    """The commands to carry out now, and the time of the next step if no event comes before (NEVER_MS: none)."""

    commands: list[Command]
    next_ms: int
