"""Goal: the double that the producer is tested with answers as the real daemon does. Method: the same requests to both,
through the same transport seam.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pytest

from brokerd.client.blocking import BlockingClient, LoopThread
from brokerd.client.produce_transport import GrpcProduceTransport
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.errors import Fate, UnknownTopicOrPartitionError
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.columns import encode_batch_header, encode_pieces
from brokerd.producer.core.accumulator import Piece, ProducerBatch
from brokerd.producer.core.idempotence import IdempotenceState
from brokerd.producer.core.membership import Membership
from brokerd.producer.core.transport import (
    BatchToProduce,
    Hello,
    PartitionResult,
    ProduceRequest,
    ProduceStream,
    ProduceTransport,
    TopicView,
)
from tests.support.broker_double import BrokerDouble
from tests.support.daemon import running_daemon
from tests.support.wait import DEADLINE_S

TransportFactory: TypeAlias = Callable[[], ProduceTransport]


@pytest.fixture(params=["double", "daemon"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TransportFactory]:
    """Transports to a broker that has the topic "t" with two partitions."""
    if request.param == "double":
        double = BrokerDouble()
        double.create_topic("t", 2)
        yield lambda: double.transport(ProducerConfig())
        return
    with running_daemon(tmp_path / "data") as running:
        config = ClientConfig(bootstrap_servers=running.address)
        with BlockingClient(config) as client:
            client.create_topic("t", 2)
        yield lambda: GrpcProduceTransport(config, SystemClock())


class Session:
    """One transport with one open stream."""

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
        """Sends `count` records from a sequence on; the response for them."""
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
        batch.assign_sequence(identity, sequence, IdempotenceState(is_member=is_transactional))
        return encode_batch_header(batch, tp), batch.encoded.payload.data

    async def send_bytes(
        self, tp: TopicIdPartition, header: bytes, payload: pa.Buffer, membership: Membership | None = None
    ) -> PartitionResult:
        """Sends a batch as it is; the response for it."""
        self.correlation_id += 1
        entry = BatchToProduce(tp, header, payload)
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
            assert isinstance(view, TopicView)
            assert len(view.leaders) == 2
            stream = await transport.open_stream(view.leaders[0], Hello(os.urandom(16), 1, "contract"))
            identity = await transport.init_producer_id(NO_PRODUCER)
            assert identity.epoch == 0
            await work(Session(transport, view.topic_id, stream), identity)
            await stream.close()
        finally:
            await transport.close()

    with closing(LoopThread()) as loop_thread:
        loop_thread.run(asyncio.wait_for(run(), DEADLINE_S))


def outcome(result: PartitionResult) -> tuple[object, ...]:
    """The part of a response that producer rules use: the offset, or the error's name and fate."""
    if result.error is None:
        return (result.base_offset,)
    return (type(result.error).__name__, result.error.fate)


def test_sequences_are_answered_by_the_table(factory: TransportFactory) -> None:
    async def work(session: Session, identity: ProducerIdAndEpoch) -> None:
        steps: list[tuple[int, int, tuple[object, ...]]] = [
            (3, 1, ("UnknownProducerIdError", Fate.NOT_APPENDED)),
            (0, 3, (0,)),
            (0, 3, (0,)),
            (3, 2, (3,)),
            (6, 1, ("OutOfOrderSequenceError", Fate.NOT_APPENDED)),
            (4, 2, ("OutOfOrderSequenceError", Fate.NOT_APPENDED)),
            (5, 1, (5,)),
            (6, 1, (6,)),
            (7, 1, (7,)),
            (8, 1, (8,)),
            (3, 2, (3,)),
            (0, 1, ("DuplicateSequenceError", Fate.NOT_APPENDED)),
            (9, 1, (9,)),
        ]
        for sequence, count, expected in steps:
            assert outcome(await session.send(identity, sequence, count)) == expected, (sequence, count)
        gap = await session.send(identity, 20, 1)
        assert gap.error is not None
        assert (gap.error.expected_sequence, gap.error.current_epoch) == (10, 0)
        assert outcome(await session.send(identity, 0, 1, partition=1)) == (0,)

    in_session(factory, work)


def test_epochs_are_answered_by_the_table(factory: TransportFactory) -> None:
    async def work(session: Session, identity: ProducerIdAndEpoch) -> None:
        assert outcome(await session.send(identity, 0, 2)) == (0,)
        raised = await session.transport.init_producer_id(identity)
        assert raised == (identity.producer_id, 1)
        assert outcome(await session.send(raised, 2, 1)) == ("OutOfOrderSequenceError", Fate.NOT_APPENDED)
        assert outcome(await session.send(raised, 0, 1)) == (2,)
        assert outcome(await session.send(identity, 2, 1)) == ("InvalidProducerEpochError", Fate.NOT_APPENDED)
        assert outcome(await session.send(raised, 1, 1)) == (3,)
        assert (await session.transport.init_producer_id(NO_PRODUCER)).producer_id != identity.producer_id

    in_session(factory, work)


def test_names_that_are_not_there(factory: TransportFactory) -> None:
    async def work(session: Session, identity: ProducerIdAndEpoch) -> None:
        unknown = await session.send(identity, 0, 1, topic_id=os.urandom(16))
        assert outcome(unknown) == ("UnknownTopicIdError", Fate.NOT_APPENDED)
        assert unknown.error is not None
        assert unknown.error.refresh_metadata
        assert isinstance((await session.transport.metadata(["nowhere"]))["nowhere"], UnknownTopicOrPartitionError)

    in_session(factory, work)


def test_without_a_producer_id_everything_is_appended(factory: TransportFactory) -> None:
    async def work(session: Session, _identity: ProducerIdAndEpoch) -> None:
        assert [outcome(await session.send(NO_PRODUCER, -1, 2)) for _ in range(3)] == [(0,), (2,), (4,)]

    in_session(factory, work)
