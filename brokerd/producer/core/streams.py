"""Numbers the streams of one producer and their requests, and collects the streams to open and close. Pure.

The state of one stream is in connections.py; producer_core.py settles the batches of a lost one.
"""

from __future__ import annotations

from collections.abc import Iterator

from brokerd.config.client import ProducerConfig
from brokerd.ids import TopicIdPartition
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.commands import CloseStream, OpenStream, SendRequest
from brokerd.producer.core.connections import ConnectionState, InFlightRequest, NodeConnection
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.producer_batch import ProducerBatch
from brokerd.producer.core.transport import Hello, RequestLimits


class Streams:
    """The streams of one producer."""

    def __init__(self, config: ProducerConfig, *, instance_id: bytes, client_id: str) -> None:
        self._config = config
        self._instance_id = instance_id
        self._client_id = client_id
        self.by_node: dict[int, NodeConnection] = {}
        self._incarnation = 0
        self._correlation_id = 0
        self._closing: list[CloseStream] = []

    @property
    def requests_in_flight(self) -> int:
        """Requests without a response, over all nodes."""
        return sum(len(connection.in_flight) for connection in self.by_node.values())

    @property
    def has_closing(self) -> bool:
        """True while a stream waits to be closed."""
        return bool(self._closing)

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
        connection.begin_opening(self._incarnation, now_ms)
        return OpenStream(connection.node_id, Hello(self._instance_id, self._incarnation, self._client_id))

    def on_open(self, node_id: int, incarnation: int, limits: RequestLimits) -> None:
        """Notes that a stream takes requests, each within `limits`."""
        connection = self.by_node[node_id]
        if connection.incarnation == incarnation and connection.state is ConnectionState.OPENING:
            connection.on_open(limits)

    def close(self, connection: NodeConnection) -> None:
        """Has a stream closed with the next step."""
        self._closing.append(CloseStream(connection.node_id, connection.incarnation))

    def take_closing(self) -> list[CloseStream]:
        """The commands that close streams; they are handed out once."""
        taken, self._closing = self._closing, []
        return taken

    def overdue(self, now_ms: int) -> Iterator[NodeConnection]:
        """The connections on which a request or the opening takes longer than request.timeout.ms."""
        for connection in self.by_node.values():
            overdue_ms = connection.overdue_ms(self._config)
            if overdue_ms is not None and overdue_ms <= now_ms:
                yield connection

    def next_overdue_ms(self) -> int:
        """The time at which the next connection becomes overdue."""
        times = (connection.overdue_ms(self._config) for connection in self.by_node.values())
        return min((time for time in times if time is not None), default=NEVER_MS)

    # --- requests

    def request(
        self, connection: NodeConnection, batches: dict[TopicIdPartition, ProducerBatch], membership: Membership | None, now_ms: int
    ) -> SendRequest:
        """Puts batches in flight; returns the command that sends them."""
        self._correlation_id += 1
        connection.in_flight[self._correlation_id] = InFlightRequest(self._correlation_id, batches, now_ms)
        return SendRequest(connection.node_id, connection.incarnation, self._correlation_id, batches, membership)

    def withdraw(self, batch: ProducerBatch) -> None:
        """Takes a batch out of the request that it was to go with."""
        for connection in self.by_node.values():
            connection.withdraw(batch)

    def overflow(self, request: SendRequest, rest: dict[TopicIdPartition, ProducerBatch], now_ms: int) -> SendRequest:
        """Moves batches that do not fit into a request to one more right behind it; returns its command."""
        self._correlation_id += 1
        connection = self.by_node[request.node_id]
        if connection.incarnation == request.incarnation and request.correlation_id in connection.in_flight:
            for batch in rest.values():
                connection.withdraw(batch)
            connection.in_flight[self._correlation_id] = InFlightRequest(self._correlation_id, rest, now_ms)
        return request._replace(correlation_id=self._correlation_id, batches=rest)
