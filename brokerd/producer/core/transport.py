"""The producer's interface to the network, implemented by brokerd.client and by test doubles.

It leaves out bytes on the wire, addresses, channels and security, and has no reconnects or retries: the producer decides when to
reopen a stream. Plain values and protocols; nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from brokerd.errors import WireError
from brokerd.ids import NO_EPOCH, ProducerIdAndEpoch, TopicIdPartition, TopicInfo
from brokerd.producer.core.membership import Membership

# Upper bound of a batch's overhead in a request: the partition's id and length prefixes.
BATCH_OVERHEAD_BYTES = 128
# Overhead of a row in the encoded batch, beyond its input columns: a timestamp (8), a header offset (4) and validity bits.
ROW_OVERHEAD_BYTES = 13


class RequestLimits(NamedTuple):
    """The limits of a node for one request."""

    partitions_max: int  # its max.partitions.per.request
    bytes_max: int  # of batches, each plus BATCH_OVERHEAD_BYTES: its socket.request.max.bytes less the rest of the request


class Hello(NamedTuple):
    """The first message of a stream. It fences the instance's streams with lower incarnations."""

    instance_id: bytes  # 16 random bytes, one per producer
    incarnation: int  # counts the instance's streams, from 1


class BatchToProduce(NamedTuple):
    """One record batch of a request."""

    tp: TopicIdPartition
    header: bytes
    payload: pa.Buffer
    leader_epoch: int = NO_EPOCH  # in which the leader must append the batch


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """A produce request with at most one batch per partition. acks: -1 = all, 1, or 0 (no response)."""

    correlation_id: int
    acks: int
    timeout_ms: int
    batches: list[BatchToProduce]
    membership: Membership | None = None  # of the batches' transaction


class PartitionResult(NamedTuple):
    """The result of one batch; base_offset is -1 with an error."""

    tp: TopicIdPartition
    base_offset: int
    append_timestamp: int  # ms since 1970 with LogAppendTime; -1 = records keep their own timestamps
    error: WireError | None = None


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """The response to one request. With `error`, nothing was appended, and `results` is empty."""

    correlation_id: int
    error: WireError | None = None
    results: list[PartitionResult] = field(default_factory=list)


class ProduceStream(Protocol):
    """One ordered stream to one node. `send` and `receive` may be awaited at the same time, each by one task."""

    limits: RequestLimits  # of the node for one request

    async def send(self, request: ProduceRequest) -> None:
        """Sends a request; waits for flow control. Raises BrokerUnreachableError on a lost connection."""

    async def receive(self) -> ProduceResponse:
        """The next response, in the order of requests. Raises BrokerUnreachableError on a lost connection."""

    async def close(self) -> None:
        """Closes the stream; a waiting `receive` raises. The fate of requests in flight is unknown. Idempotent."""


class ProduceTransport(Protocol):
    """The network operations of a producer. All methods run in one event loop and try once. They raise BrokerUnreachableError if no
    response came, and a WireError if the response is an error."""

    async def metadata(self, topics: Sequence[str]) -> Mapping[str, TopicInfo | WireError]:
        """The view of each requested topic, or the error instead."""

    async def init_producer_id(self, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        """Returns a new producer id for NO_PRODUCER, else the same id with a raised epoch."""

    async def init_member(self, membership: Membership) -> ProducerIdAndEpoch:
        """Returns the producer id of a member of a transaction. Idempotent."""

    async def heartbeat(self, membership: Membership) -> None:
        """Sends a member's heartbeat. Raises the broker's error if the member is not open."""

    async def open_stream(self, node_id: int, hello: Hello) -> ProduceStream:
        """Opens a stream, with `hello` as its first message."""

    async def close(self) -> None:
        """Frees connections. Idempotent."""
