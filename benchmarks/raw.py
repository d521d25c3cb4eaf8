"""Single requests on bare streams, for benchmarks that count and time each request. There are no retries and no batching, so the
decisions of Producer and PartitionFetcher are not measured.
"""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from benchmarks.environment import value_at
from brokerd.client.broker_client import BrokerClient
from brokerd.client.connection import RawStream
from brokerd.client.fetching import read_response
from brokerd.client.produce_transport import GrpcProduceStream
from brokerd.client.response_checks import error_in
from brokerd.client.transactions import init_producer_id
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.event_loop import GrpcLoop, settle
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.core.transport import BatchToProduce, Hello, ProduceRequest, RequestLimits
from brokerd.record.header import Attributes, crc_seed, encode_header, new_header
from brokerd.record.schema import SCHEMA_0, Payload, encode_payload
from brokerd.wire.methods import FETCH, PRODUCE
from brokerd.wire.v1 import fetch_pb2

T = TypeVar("T")
_ONE_BATCH = RequestLimits(1, 2**31 - 1)
_MANY_BATCHES = RequestLimits(1_000, 2**31 - 1)
_IN_FLIGHT = 8
_ACKS_ALL = -1
_TIMEOUT_MS = 30_000
_FETCH_BYTES = 1_048_576


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but waits for gRPC's own tasks to end."""

    async def run() -> T:
        try:
            return await work
        finally:
            gc.collect()  # a connection stays open while exceptions refer to its streams
            await settle()

    with asyncio.Runner(loop_factory=GrpcLoop) as runner:
        return runner.run(run())


def raw_client(address: str) -> BrokerClient:
    """A client with its own connection, for the running loop."""
    return BrokerClient(ClientConfig(bootstrap_servers=address), SystemClock())


def small_payload(value_bytes: int) -> Payload:
    """The payload of a batch of one record."""
    row = {"key": b"k0000000", "value": value_at(0, value_bytes), "timestamp": SystemClock().wall_ms() * 1_000}
    return encode_payload(pa.RecordBatch.from_pylist([row], schema=SCHEMA_0.arrow))


def one_batch(
    client: BrokerClient, tp: TopicIdPartition, payload: Payload, identity: ProducerIdAndEpoch, sequence: int, attributes: int = 0
) -> BatchToProduce:
    """A batch as the producer would send it now. The client must have requested the topic's metadata."""
    now_ms = SystemClock().wall_ms()
    header = new_header(
        batch_length=payload.data.size,
        payload_crc=payload.crc,
        record_count=payload.record_count,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        uncompressed_bytes=payload.uncompressed_bytes,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    return BatchToProduce(tp, encode_header(header, crc_seed(tp)), payload.data, client.leader_epoch(tp))


class RawProducer:
    """A produce stream that sends one payload repeatedly, with acks=all and idempotence, so that order and sequences hold with
    several requests in flight.
    """

    def __init__(self, client: BrokerClient, stream: GrpcProduceStream, identity: ProducerIdAndEpoch, payload: Payload) -> None:
        self._client = client
        self._stream = stream
        self._identity = identity
        self._payload = payload
        self._sequences: dict[TopicIdPartition, int] = {}
        self._correlation_id = 0

    @classmethod
    async def open(cls, client: BrokerClient, payload: Payload) -> RawProducer:
        """Opens a stream to any node, with a producer id of its own."""
        identity = await init_producer_id(client)
        raw = await client.open_stream(PRODUCE)
        stream = GrpcProduceStream(raw, Hello(secrets.token_bytes(16), 1), _ONE_BATCH)
        return cls(client, stream, identity, payload)

    async def send(self, tp: TopicIdPartition) -> None:
        """Sends the next batch of a partition."""
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + self._payload.record_count
        batch = one_batch(self._client, tp, self._payload, self._identity, sequence)
        self._correlation_id += 1
        await self._stream.send(ProduceRequest(self._correlation_id, _ACKS_ALL, _TIMEOUT_MS, [batch]))

    async def receive(self) -> int:
        """The base offset of the oldest unanswered batch, from its response. Raises its error."""
        response = await self._stream.receive()
        error = response.error or response.results[0].error
        if error is not None:
            raise error
        return response.results[0].base_offset

    async def close(self) -> None:
        """Ends the stream."""
        await self._stream.close()


class RawMembers:
    """A produce stream that writes one payload for each of many members, with several requests in flight."""

    def __init__(self, client: BrokerClient, stream: GrpcProduceStream, payload: Payload) -> None:
        self._client = client
        self._stream = stream
        self._payload = payload
        self._correlation_id = 0

    @classmethod
    async def open(cls, client: BrokerClient, payload: Payload) -> RawMembers:
        """Opens a stream to any node."""
        raw = await client.open_stream(PRODUCE)
        return cls(client, GrpcProduceStream(raw, Hello(secrets.token_bytes(16), 1), _MANY_BATCHES), payload)

    async def write(self, written: Sequence[tuple[ProducerIdAndEpoch, Sequence[TopicIdPartition]]]) -> None:
        """Writes each member's first batch in each of its partitions, until all are acknowledged. Raises the first error."""
        waiting = 0
        for grant, tps in written:
            batches = [one_batch(self._client, tp, self._payload, grant, 0, Attributes.TRANSACTIONAL) for tp in tps]
            self._correlation_id += 1
            await self._stream.send(ProduceRequest(self._correlation_id, _ACKS_ALL, _TIMEOUT_MS, batches))
            waiting += 1
            if waiting == _IN_FLIGHT:
                await self._receive()
                waiting -= 1
        for _ in range(waiting):
            await self._receive()

    async def _receive(self) -> None:
        response = await self._stream.receive()
        error = response.error or next((result.error for result in response.results if result.error), None)
        if error is not None:
            raise error

    async def close(self) -> None:
        """Ends the stream."""
        await self._stream.close()


class RawTail:
    """A fetch stream that waits at the end of one partition."""

    def __init__(self, client: BrokerClient, stream: RawStream, tp: TopicIdPartition, offset: int = 0) -> None:
        self.tp = tp
        self.offset = offset
        self._client = client
        self._stream = stream
        self._correlation_id = 0

    @classmethod
    async def open(cls, client: BrokerClient, tp: TopicIdPartition, offset: int = 0) -> RawTail:
        """Opens a stream to the partition's leader."""
        return cls(client, await client.open_stream(FETCH, await client.leader(tp)), tp, offset)

    async def send(self, max_wait_ms: int) -> None:
        """Sends a fetch from the current offset."""
        self._correlation_id += 1
        request = fetch_pb2.FetchRequest(
            correlation_id=self._correlation_id,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED,
        )
        request.partitions.add(
            topic_id=self.tp.topic_id,
            partition=self.tp.partition,
            current_leader_epoch=self._client.leader_epoch(self.tp),
            fetch_offset=self.offset,
            partition_max_bytes=_FETCH_BYTES,
        )
        await self._stream.send(request.SerializeToString())

    async def receive(self, timeout_ms: int) -> int:
        """The number of records received (0: the wait ended). Raises the broker's error."""
        response, ((result, chunks),) = read_response(await self._stream.receive(timeout_ms=timeout_ms))
        error = error_in(response) or error_in(result)
        if error is not None:
            raise error
        if not any(chunk.size for chunk in chunks):
            return 0
        # The fetch reached the end of the log, so everything has been received.
        count, self.offset = result.high_watermark - self.offset, result.high_watermark
        return count

    def close(self) -> None:
        """Ends the stream."""
        self._stream.close()
