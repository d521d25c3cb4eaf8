"""What the producer asks of a connection to brokers. brokerd.client implements it; tests have a double below it.

Not in the contract: bytes on the wire, addresses, channels, security, reconnecting (the producer decides when a stream is
opened again), retries. Plain values only; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from brokerd.errors import WireError
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition

NO_LEADER = -1
# What a batch needs in a request beside its own bytes, at most: the partition's id and the lengths of both.
BATCH_OVERHEAD_BYTES = 128


class TopicView(NamedTuple):
    """What a producer must know of a topic."""

    topic_id: bytes  # 16 bytes
    leaders: tuple[int, ...]  # node id per partition, -1 = none at present
    unwritable: frozenset[int] = frozenset()  # partitions that are led and take no records all the same: damaged, or stopped


class RequestLimits(NamedTuple):
    """What a node takes in one request."""

    partitions_max: int  # its max.partitions.per.request
    bytes_max: int  # of batches, BATCH_OVERHEAD_BYTES added to each: its socket.request.max.bytes, less what else is in a request


class Hello(NamedTuple):
    """First words of a stream: from then on nothing of this instance's streams with a lower incarnation is processed."""

    instance_id: bytes  # 16 random bytes, one per producer
    incarnation: int  # counts the instance's streams, from 1
    client_id: str


class BatchToProduce(NamedTuple):
    """One record batch of a request."""

    tp: TopicIdPartition
    header: bytes
    payload: pa.Buffer


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """At most one batch per partition. acks: -1 = all, 1, or 0 (no response comes)."""

    correlation_id: int
    acks: int
    timeout_ms: int
    batches: list[BatchToProduce]


class PartitionResult(NamedTuple):
    """What became of one batch; base_offset is -1 with an error."""

    tp: TopicIdPartition
    base_offset: int
    append_timestamp: int  # ms since 1970, where it is the records' time (LogAppendTime); -1 = they keep their own
    log_start_offset: int
    error: WireError | None = None


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """Answer to one request. With `error` nothing of the request was appended and `results` is empty."""

    correlation_id: int
    throttle_time_ms: int = 0
    error: WireError | None = None
    results: list[PartitionResult] = field(default_factory=list)


class ProduceStream(Protocol):
    """One ordered stream to one node. `send` and `receive` may be awaited at the same time, each by one task."""

    @property
    def limits(self) -> RequestLimits:
        """What the node takes in one request."""

    async def send(self, request: ProduceRequest) -> None:
        """Hands a request over; flow control is the waiting. Raises BrokerUnreachableError on a lost connection."""

    async def receive(self) -> ProduceResponse:
        """The next response, in the order of requests. Raises BrokerUnreachableError on a lost connection."""

    async def close(self) -> None:
        """Ends the stream; a waiting `receive` raises. What was under way has an unknown fate. May be called twice."""


class ProduceTransport(Protocol):
    """Everything that a producer does over the network. All methods run in one event loop and try once:
    BrokerUnreachableError means that no response came, a WireError is the response."""

    async def metadata(self, topics: Sequence[str]) -> Mapping[str, TopicView | WireError]:
        """The view of each topic asked, or why there is none."""

    async def init_producer_id(self, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """A new producer id for NO_PRODUCER, else the same id with its epoch raised."""

    async def open_stream(self, node_id: int, hello: Hello) -> ProduceStream:
        """A stream that begins with `hello`."""

    async def close(self) -> None:
        """Frees connections. May be called twice."""
