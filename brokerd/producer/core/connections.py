"""The state of one stream per node: open or not, requests in flight, when to open another. Pure.

sender.py opens and closes streams; producer_core.py judges responses.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable
from typing import NamedTuple

from brokerd.backoff import backoff_ms
from brokerd.config.client import ProducerConfig
from brokerd.ids import TopicIdPartition
from brokerd.producer.core.producer_batch import ProducerBatch
from brokerd.producer.core.transport import RequestLimits


class InFlightRequest(NamedTuple):
    """A request without a response yet; batches by partition."""

    correlation_id: int
    batches: dict[TopicIdPartition, ProducerBatch]
    sent_ms: int


class ConnectionState(enum.Enum):
    """The states of a stream."""

    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"


class NodeConnection:
    """The stream to one node; `incarnation` tells it from the one before."""

    __slots__ = (
        "_failures",
        "in_flight",
        "incarnation",
        "limits",
        "node_id",
        "not_before_ms",
        "opened_ms",
        "state",
        "throttled_until_ms",
    )

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.state = ConnectionState.CLOSED
        self.incarnation = 0
        self.opened_ms = 0  # when opening began
        self.limits = RequestLimits(1, 0)  # as the node says when the stream opens
        self.in_flight: dict[int, InFlightRequest] = {}  # in order of sending
        self.throttled_until_ms = 0
        self.not_before_ms = 0  # no new stream before
        self._failures = 0

    def begin_opening(self, incarnation: int, now_ms: int) -> None:
        """Notes that a new stream is being opened."""
        self.state = ConnectionState.OPENING
        self.incarnation = incarnation
        self.opened_ms = now_ms

    def on_open(self, limits: RequestLimits) -> None:
        """Notes that the stream is open, and the limits of its requests."""
        self.limits = limits
        self.state = ConnectionState.OPEN

    def on_response(self) -> None:
        """Notes a response: the next loss counts as the first again."""
        self._failures = 0

    def on_lost(self, config: ProducerConfig, rng: random.Random, now_ms: int) -> Iterable[InFlightRequest]:
        """Notes that the stream is lost. Returns the requests in flight, whose fate is unknown."""
        self.state = ConnectionState.CLOSED
        self._failures += 1
        self.not_before_ms = now_ms + backoff_ms(
            self._failures, first_ms=config.reconnect_backoff_ms, max_ms=config.reconnect_backoff_max_ms, random=rng.random()
        )
        lost = list(self.in_flight.values())
        self.in_flight.clear()
        return lost

    def withdraw(self, batch: ProducerBatch) -> None:
        """Takes a batch out of the request that was to carry it."""
        for request in list(self.in_flight.values()):
            for tp in [tp for tp, candidate in request.batches.items() if candidate is batch]:
                del request.batches[tp]
            if not request.batches:
                del self.in_flight[request.correlation_id]

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

    def overdue_ms(self, config: ProducerConfig) -> int | None:
        """Time when the stream is given up because a request or its opening takes too long; None if nothing is awaited."""
        if self.state is ConnectionState.OPENING:
            return self.opened_ms + config.request_timeout_ms
        for request in self.in_flight.values():
            return request.sent_ms + config.request_timeout_ms
        return None
