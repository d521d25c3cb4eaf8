"""An open produce stream to any broker behind the producer's transport interface, and batches with given sequences."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import TypeAlias

import pyarrow as pa

from brokerd.client.blocking import LoopThread
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicIdPartition, TopicInfo
from brokerd.producer.columns import encode_batch_header, encode_pieces
from brokerd.producer.core.accumulator import Piece, ProducerBatch
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.transport import (
    BatchToProduce,
    Hello,
    PartitionResult,
    ProduceRequest,
    ProduceStream,
    ProduceTransport,
)
from tests.support.wait import DEADLINE_S

TransportFactory: TypeAlias = Callable[[], ProduceTransport]


class Session:
    """A transport with one open stream."""

    def __init__(self, transport: ProduceTransport, topic_id: bytes, stream: ProduceStream) -> None:
        self.transport = transport
        self.topic_id = topic_id
        self.stream = stream
        self.correlation_id = 0

    async def send(
        self,
        identity: ProducerIdAndEpoch,
        sequence: int,
        count: int,
        *,
        partition: int = 0,
        topic_id: bytes | None = None,
        membership: Membership | None = None,
        is_transactional: bool = False,
    ) -> PartitionResult:
        """Sends `count` records from `sequence`; returns their result."""
        tp = TopicIdPartition(topic_id or self.topic_id, partition)
        header, payload = self.encoded(identity, sequence, count, tp, is_transactional=is_transactional)
        return await self.send_bytes(tp, header, payload, membership)

    @staticmethod
    def encoded(
        identity: ProducerIdAndEpoch, sequence: int, count: int, tp: TopicIdPartition, *, is_transactional: bool = False
    ) -> tuple[bytes, pa.Buffer]:
        """Header and payload of a batch."""
        batch = ProducerBatch(None, 0)  # type: ignore[arg-type]
        rows = pa.RecordBatch.from_arrays([pa.nulls(count, pa.binary()), pa.array([b"x"] * count)], ["key", "value"])
        batch.encoded = encode_pieces([Piece(rows, count, 1, 1_000)], "none")
        batch.assign_sequence(identity, sequence, Membership("", 0, "", "", "", b"") if is_transactional else None)
        return encode_batch_header(batch, tp), batch.encoded.payload.data

    async def send_bytes(
        self, tp: TopicIdPartition, header: bytes, payload: pa.Buffer, membership: Membership | None = None
    ) -> PartitionResult:
        """Sends an encoded batch; returns its result."""
        self.correlation_id += 1
        entry = BatchToProduce(tp, header, payload, leader_epoch=1)
        await self.stream.send(ProduceRequest(self.correlation_id, -1, 10_000, [entry], membership))
        response = await self.stream.receive()
        assert response.correlation_id == self.correlation_id
        (result,) = response.results
        assert result.tp == tp
        return result


def in_session(factory: TransportFactory, work: Callable[[Session, ProducerIdAndEpoch], Awaitable[None]]) -> None:
    """Runs `work` with an open stream and a new producer id."""

    async def run() -> None:
        transport = factory()
        try:
            view = (await transport.metadata(["t"]))["t"]
            assert isinstance(view, TopicInfo)
            assert len(view.leaders) == 2
            stream = await transport.open_stream(view.leaders[0], Hello(os.urandom(16), 1))
            identity = await transport.init_producer_id(NO_PRODUCER)
            assert identity.epoch == 0
            await work(Session(transport, view.topic_id, stream), identity)
            await stream.close()
        finally:
            await transport.close()

    with closing(LoopThread()) as loop_thread:
        loop_thread.run(asyncio.wait_for(run(), DEADLINE_S))
