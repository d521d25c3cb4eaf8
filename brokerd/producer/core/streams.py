"""The streams of one producer, one per node: their state, requests in flight, incarnations and correlation ids, and when to open
and close them. Also the commands of the core to the shell. Pure.

sender.py opens and closes streams; producer_core.py judges responses and the batches of lost streams.
"""

from __future__ import annotations

import enum
import random
from typing import NamedTuple, TypeAlias

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.core.accumulator import ProducerBatch
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.transport import Hello, RequestLimits


class FetchMetadata(NamedTuple):
    """Request metadata of these topics; report with `on_metadata` or `on_metadata_failed`."""

    topics: tuple[str, ...]


class RequestProducerId(NamedTuple):
    """Request a new producer id (NO_PRODUCER), a raised epoch, or a member's id; report with `on_producer_id` or
    `on_identity_failed`."""

    current: ProducerIdAndEpoch
    membership: Membership | None


class SendHeartbeat(NamedTuple):
    """Send a member's heartbeat; report with `on_heartbeat` or `on_identity_failed`."""

    membership: Membership


class OpenStream(NamedTuple):
    """Open a stream; report with `on_stream_open` or `on_stream_lost`."""

    node_id: int
    hello: Hello


class CloseStream(NamedTuple):
    """Close a stream that the core has already given up; nothing to report."""

    node_id: int
    incarnation: int


class SendRequest(NamedTuple):
    """Encode batches that are not encoded yet, and send the request; report with `on_response` or `on_stream_lost`, and `on_sent`
    for acks=0."""

    node_id: int
    incarnation: int
    correlation_id: int
    batches: dict[TopicIdPartition, ProducerBatch]
    membership: Membership | None  # of the batches' transaction


Command: TypeAlias = FetchMetadata | RequestProducerId | SendHeartbeat | OpenStream | CloseStream | SendRequest


class Step(NamedTuple):
    """The commands to carry out now, and the time of the next step if no event comes before (NEVER_MS: none)."""

    commands: list[Command]
    next_ms: int
    is_over: bool = False  # the producer is closed, and nothing is left to do


class InFlightRequest(NamedTuple):
    """A request without a response yet; batches by partition."""

    batches: dict[TopicIdPartition, ProducerBatch]
    sent_ms: int


class ConnectionState(enum.Enum):
    """The states of a stream."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"


class NodeConnection:
    """The stream to one node; `incarnation` distinguishes it from earlier ones."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.state = ConnectionState.CLOSED
        self.incarnation = 0
        self.opened_ms = 0  # when opening began
        self.limits = RequestLimits(1, 0)  # until the stream opens
        self.in_flight: dict[int, InFlightRequest] = {}  # by correlation id, in order of sending
        self.throttled_until_ms = 0
        self.not_before_ms = 0  # no new stream before
        self.failures = 0  # streams lost since the last response

    def may_open(self, now_ms: int) -> bool:
        """True if a stream may be opened now."""
        return self.state is ConnectionState.CLOSED and now_ms >= self.not_before_ms

    def may_send(self, config: ProducerConfig, now_ms: int) -> bool:
        """True if one more request may go out now."""
        return (
            self.state is ConnectionState.OPEN
            and len(self.in_flight) < config.max_in_flight_requests
            and now_ms >= self.throttled_until_ms
        )


class Streams:
    """The streams of one producer."""

    def __init__(self, config: ProducerConfig, rng: random.Random, *, instance_id: bytes) -> None:
        self._config = config
        self._rng = rng
        self._instance_id = instance_id
        self.by_node: dict[int, NodeConnection] = {}
        self._incarnation = 0
        self._correlation_id = 0
        self.closing: list[CloseStream] = []  # for the next step

    @property
    def requests_in_flight(self) -> int:
        """Number of requests without a response, over all nodes."""
        return sum(len(connection.in_flight) for connection in self.by_node.values())

    def to(self, node_id: int) -> NodeConnection:
        """The connection to a node."""
        connection = self.by_node.get(node_id)
        if connection is None:
            connection = self.by_node[node_id] = NodeConnection(node_id)
        return connection

    # --- opening and closing

    def open(self, connection: NodeConnection, now_ms: int) -> OpenStream:
        """Begins to open a stream; returns the command."""
        self._incarnation += 1
        connection.state = ConnectionState.OPENING
        connection.incarnation = self._incarnation
        connection.opened_ms = now_ms
        return OpenStream(connection.node_id, Hello(self._instance_id, self._incarnation))

    def on_open(self, node_id: int, incarnation: int, limits: RequestLimits) -> None:
        """Notes that a stream takes requests, each within `limits`."""
        connection = self.by_node[node_id]
        if connection.incarnation == incarnation and connection.state is ConnectionState.OPENING:
            connection.limits = limits
            connection.state = ConnectionState.OPEN

    def on_lost(self, connection: NodeConnection, now_ms: int) -> list[InFlightRequest]:
        """Notes that a stream is lost. Returns the requests in flight, whose fate is unknown."""
        config = self._config
        connection.state = ConnectionState.CLOSED
        connection.failures += 1
        connection.not_before_ms = now_ms + backoff_ms(
            connection.failures,
            first_ms=config.reconnect_backoff_ms,
            max_ms=config.reconnect_backoff_max_ms,
            random=self._rng.random(),
        )
        lost = list(connection.in_flight.values())
        connection.in_flight.clear()
        return lost

    def close(self, connection: NodeConnection) -> None:
        """Makes the next step close a stream."""
        self.closing.append(CloseStream(connection.node_id, connection.incarnation))

    def overdue(self) -> list[tuple[int, NodeConnection]]:
        """The connections that await a response or their opening, each with the time when request.timeout.ms is over for it."""
        awaited = []
        for connection in self.by_node.values():
            first = next(iter(connection.in_flight.values()), None)
            if connection.state is ConnectionState.OPENING:
                awaited.append((connection.opened_ms + self._config.request_timeout_ms, connection))
            elif first is not None:
                awaited.append((first.sent_ms + self._config.request_timeout_ms, connection))
        return awaited

    # --- requests

    def request(
        self, connection: NodeConnection, batches: dict[TopicIdPartition, ProducerBatch], membership: Membership | None, now_ms: int
    ) -> SendRequest:
        """Puts batches in flight; returns the command that sends them."""
        self._correlation_id += 1
        connection.in_flight[self._correlation_id] = InFlightRequest(batches, now_ms)
        return SendRequest(connection.node_id, connection.incarnation, self._correlation_id, batches, membership)

    def withdraw(self, batch: ProducerBatch) -> None:
        """Removes an unsent batch from its request."""
        for connection in self.by_node.values():
            for correlation_id, request in list(connection.in_flight.items()):
                for tp in [tp for tp, candidate in request.batches.items() if candidate is batch]:
                    del request.batches[tp]
                if not request.batches:
                    del connection.in_flight[correlation_id]

    def overflow(self, request: SendRequest, rest: dict[TopicIdPartition, ProducerBatch], now_ms: int) -> SendRequest:
        """Moves batches that do not fit into a request to a second one right after it; returns its command."""
        self._correlation_id += 1
        connection = self.by_node[request.node_id]
        if connection.incarnation == request.incarnation and request.correlation_id in connection.in_flight:
            for batch in rest.values():
                self.withdraw(batch)
            connection.in_flight[self._correlation_id] = InFlightRequest(rest, now_ms)
        return request._replace(correlation_id=self._correlation_id, batches=rest)
