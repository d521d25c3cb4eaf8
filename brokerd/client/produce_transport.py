"""The producer core's network interface (brokerd/producer/core/transport.py) over gRPC. Tries once: the Sender retries.

A stream's hello is part of its first request, which saves a round trip: it only has to reach the broker before any batch that the
stream retries. Payloads are copied once, into the message.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from brokerd.client.broker_client import BrokerClient, check_client
from brokerd.client.connection import Asked, RawStream
from brokerd.client.response_checks import error_in, timestamp_or_none
from brokerd.client.transactions import heartbeat, init_member, init_producer_id
from brokerd.clock import Clock, SystemClock
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.errors import UnknownServerError, WireError
from brokerd.event_loop import settle
from brokerd.ids import TRANSACTIONAL_ID_MAX_LENGTH, ProducerIdAndEpoch, TopicIdPartition, TopicInfo
from brokerd.producer.core.accumulator import NO_OFFSET, NO_TIMESTAMP
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.transport import (
    Hello,
    PartitionResult,
    ProduceRequest,
    ProduceResponse,
    ProduceStream,
    ProduceTransport,
    RequestLimits,
)
from brokerd.wire.methods import PRODUCE
from brokerd.wire.records import join_records
from brokerd.wire.v1 import produce_pb2

_ALL = -1


def grpc_transport(config: ProducerConfig) -> Callable[[ProducerConfig], GrpcProduceTransport]:
    """The factory of a producer's default transport; the producer calls it on its own loop. Raises ConfigError if
    bootstrap.servers or the security settings are invalid."""
    check_client(config)
    return lambda config: GrpcProduceTransport(config, SystemClock())


class GrpcProduceTransport(ProduceTransport):
    """ProduceTransport over gRPC, with its own connections. Must be created on the loop that uses it."""

    def __init__(self, config: ClientConfig, clock: Clock) -> None:
        """Does not connect yet. Raises ConfigError if bootstrap.servers is malformed."""
        self._client = BrokerClient(config, clock, is_retrying=False)
        self._told: dict[str, TopicInfo] = {}  # the last answer about each topic; an answer behind it is not used

    async def metadata(self, topics: Sequence[str]) -> Mapping[str, TopicInfo | WireError]:
        told = [self._told[topic] for topic in topics if topic in self._told]
        metadata = await self._client.metadata(topics, {topic.topic_id: topic.partition_count for topic in told})
        self._told.update(metadata.topics)
        return {**metadata.errors, **metadata.topics}

    async def init_producer_id(self, current: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
        return await init_producer_id(self._client, current)

    async def init_member(self, membership: Membership) -> ProducerIdAndEpoch:
        return await init_member(self._client, membership)

    async def heartbeat(self, membership: Membership) -> None:
        await heartbeat(self._client, membership)

    async def open_stream(self, node_id: int, hello: Hello) -> GrpcProduceStream:
        """Opens a stream that starts with `hello`. Raises BrokerUnreachableError if the node cannot be reached. Only the
        instance's first stream uses the node's cached limits: a later one means a lost connection, and maybe a restarted node."""
        partitions_max = await self._client.partitions_per_request(node_id, refresh=hello.incarnation > 1)
        bytes_max = await self._client.request_bytes_max(node_id) - _head_bytes_max(hello)
        stream = await self._client.open_stream(PRODUCE, node_id)
        return GrpcProduceStream(stream, hello, RequestLimits(partitions_max, bytes_max))

    async def close(self) -> None:
        """Closes connections; the producer may close its loop afterwards. Idempotent."""
        await self._client.close()
        await settle()


class GrpcProduceStream(ProduceStream):
    """ProduceStream over one gRPC stream."""

    def __init__(self, stream: RawStream, hello: Hello, limits: RequestLimits) -> None:
        self.limits = limits
        self._stream = stream
        self._hello: Hello | None = hello  # None once it is sent

    def send(self, request: ProduceRequest) -> Coroutine[Any, Any, None]:
        hello, self._hello = self._hello, None
        asked = Asked({batch.tp: batch.leader_epoch for batch in request.batches}) if request.acks else None
        return self._stream.send(encode_request(request, hello), asked)

    async def receive(self) -> ProduceResponse:
        return decode_response(await self._stream.receive())

    async def close(self) -> None:
        self._stream.close()


def encode_request(request: ProduceRequest, hello: Hello | None) -> bytes:
    """The wire form of a request; copies its payloads once."""
    head = produce_pb2.ProduceRequest(correlation_id=request.correlation_id, acks=request.acks, timeout_ms=request.timeout_ms)
    if request.membership is not None:
        head.transactional_id = request.membership.transactional_id
        head.member_id = request.membership.member_id
    if hello is not None:
        head.hello.instance_id = hello.instance_id
        head.hello.incarnation = hello.incarnation
    for batch in request.batches:
        head.partitions.add(topic_id=batch.tp.topic_id, partition=batch.tp.partition, current_leader_epoch=batch.leader_epoch)
    return join_records(head, [(batch.header, batch.payload) for batch in request.batches])


def _head_bytes_max(hello: Hello) -> int:
    """Upper bound of the size of a request without batches."""
    largest = Membership("\U0010ffff" * TRANSACTIONAL_ID_MAX_LENGTH, 0, "", "", "", bytes(16))
    return len(encode_request(ProduceRequest(INT64_MAX, _ALL, INT32_MAX, [], largest), hello))


def decode_response(data: bytes) -> ProduceResponse:
    """The response as values. Raises UnknownServerError if it cannot be parsed."""
    try:
        message = produce_pb2.ProduceResponse.FromString(data)
    except DecodeError:
        raise UnknownServerError("the broker's response to a produce request cannot be read") from None
    results = [
        PartitionResult(
            tp=TopicIdPartition(result.topic_id, result.partition),
            base_offset=max(NO_OFFSET, result.base_offset),
            append_timestamp=timestamp_or_none(result.append_timestamp) if result.is_log_append_time else NO_TIMESTAMP,
            error=error_in(result),
        )
        for result in message.results
    ]
    return ProduceResponse(message.correlation_id, error_in(message), results)
