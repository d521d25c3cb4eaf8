"""The contract between the producer and a connection to brokers. brokerd.client implements it; tests use a double.

Not in the contract: bytes on the wire, addresses, channels, security, reconnecting (the producer decides when a stream is opened
again), retries. Plain values only; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from brokerd.errors import WireError
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.core.membership import Membership

NO_LEADER = -1
# The most that a batch needs in a request beside its own bytes: the partition's id and the lengths of both.
BATCH_OVERHEAD_BYTES = 128
# Beyond its columns as they come, a row takes a timestamp (8), a header offset (4) and validity bits in the encoded batch.
ROW_OVERHEAD_BYTES = 13


class TopicView(NamedTuple):
    """The facts about a topic that a producer needs."""

    topic_id: bytes  # 16 bytes
    leaders: tuple[int, ...]  # node id per partition, -1 = none at present
    unwritable: frozenset[int] = frozenset()  # partitions that have a leader and take no records all the same: damaged, or stopped


class RequestLimits(NamedTuple):
    """The limits of a node for one request."""

    partitions_max: int  # its max.partitions.per.request
    bytes_max: int  # of batches, BATCH_OVERHEAD_BYTES added to each: its socket.request.max.bytes, less what else is in a request


class Hello(NamedTuple):
    """First message of a stream. From then on the broker processes nothing of this instance's streams with a lower incarnation."""

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
    membership: Membership | None = None  # of the transaction that the batches belong to


class PartitionResult(NamedTuple):
    """The result of one batch; base_offset is -1 with an error."""

    tp: TopicIdPartition
    base_offset: int
    append_timestamp: int  # ms since 1970, where it is the records' time (LogAppendTime); -1 = they keep their own
    log_start_offset: int
    error: WireError | None = None


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """Response to one request. With `error` nothing of the request was appended and `results` is empty."""

    correlation_id: int
    throttle_time_ms: int = 0
    error: WireError | None = None
    results: list[PartitionResult] = field(default_factory=list)


class ProduceStream(Protocol):
    """One ordered stream to one node. `send` and `receive` may be awaited at the same time, each by one task."""

    @property
    def limits(self) -> RequestLimits:
        """The limits of the node for one request."""

    async def send(self, request: ProduceRequest) -> None:
        """Hands a request over; waits for flow control. Raises BrokerUnreachableError on a lost connection."""

    async def receive(self) -> ProduceResponse:
        """The next response, in the order of requests. Raises BrokerUnreachableError on a lost connection."""

    async def close(self) -> None:
        """Ends the stream; a waiting `receive` raises. Requests in flight have an unknown fate. May be called twice."""


class ProduceTransport(Protocol):
    """Everything that a producer does over the network. All methods run in one event loop and try once:
    BrokerUnreachableError means that no response came, a WireError is the response."""

    async def metadata(self, topics: Sequence[str]) -> Mapping[str, TopicView | WireError]:
        """The view of each requested topic, or the error instead."""

    async def init_producer_id(self, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """A new producer id for NO_PRODUCER, else the same id with its epoch raised."""

    async def init_member(self, membership: Membership) -> ProducerIdAndEpoch:
        """The producer id of a member of a transaction: the same one every time."""

    async def heartbeat(self, membership: Membership) -> None:
        """Tells the broker that a member lives. Raises what the broker says of one that is not open."""

    async def open_stream(self, node_id: int, hello: Hello) -> ProduceStream:
        """A stream that begins with `hello`."""

    async def close(self) -> None:
        """Frees connections. May be called twice."""
