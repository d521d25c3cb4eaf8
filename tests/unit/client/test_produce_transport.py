"""Goal: the producer's transport carries requests and responses unchanged; a lost stream ends both send and receive."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from brokerd.client.blocking import LoopThread
from brokerd.client.produce_transport import GrpcProduceTransport, encode_request
from brokerd.clock import SystemClock
from brokerd.config.client import GRPC_MAX_MESSAGE_BYTES, ClientConfig
from brokerd.config.settings import INT32_MAX, INT64_MAX
from brokerd.errors import BrokerUnreachableError, NotReadyError, UnknownTopicIdError, UnknownTopicOrPartitionError
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch, TopicIdPartition, TopicInfo
from brokerd.producer.core.transport import BATCH_OVERHEAD_BYTES, BatchToProduce, Hello, ProduceRequest, ProduceTransport
from brokerd.wire.v1 import produce_pb2
from tests.support.fake_broker import FakeBroker, Partition, fake_broker, fake_cluster
from tests.support.loop import all_wait
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S

HELLO = Hello(b"i" * 16, 3)


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    loop_thread = LoopThread()
    yield loop_thread
    loop_thread.close()


def with_transport(loop_thread: LoopThread, port: int, work: Any) -> Any:
    async def main() -> Any:
        transport: ProduceTransport = GrpcProduceTransport(ClientConfig(bootstrap_servers=f"127.0.0.1:{port}"), SystemClock())
        try:
            return await work(transport)
        finally:
            await transport.close()

    return loop_thread.run(main())


def batch_for(partition: Partition) -> BatchToProduce:
    data = new_batch(key_values([b"a", b"b"]), tp=partition.tp)
    return BatchToProduce(partition.tp, data.slice(0, 96).to_pybytes(), data.slice(96), partition.leader_epoch)


def test_metadata_and_producer_ids(broker: FakeBroker, loop_thread: LoopThread) -> None:
    partitions = broker.create("t", 2)

    async def work(transport: ProduceTransport) -> None:
        views = await transport.metadata(["t", "no"])
        assert views["t"] == TopicInfo(partitions[0].tp.topic_id, (0, 0), leader_epochs=(1, 1), name="t")
        assert isinstance(views["no"], UnknownTopicOrPartitionError)
        granted = await transport.init_producer_id(NO_PRODUCER)
        assert await transport.init_producer_id(granted) == ProducerIdAndEpoch(granted.producer_id, 1)

    with_transport(loop_thread, broker.port, work)


def test_a_node_that_is_behind_does_not_name_the_former_topic(loop_thread: LoopThread) -> None:
    """The node does not report being cut off. The producer would take the topic for recreated, and fail its pending batches."""
    with fake_cluster(2) as cluster:
        old, new = cluster.create("t"), cluster.create("t")

        async def work(transport: ProduceTransport) -> None:
            async def named() -> bytes:
                view = (await transport.metadata(["t"]))["t"]
                assert isinstance(view, TopicInfo)
                return view.topic_id

            assert await named() == new[0].tp.topic_id
            for node in cluster.nodes:  # whichever node is asked
                node.told = {"t": old}
                assert await named() == new[0].tp.topic_id
                node.told = {}
            newer = cluster.create("t")
            assert await named() == newer[0].tp.topic_id

        with_transport(loop_thread, cluster.nodes[0].port, work)


def test_calls_are_tried_once(broker: FakeBroker, loop_thread: LoopThread) -> None:
    async def work(transport: ProduceTransport) -> None:
        await transport.metadata([])
        broker.fail_calls = [grpc.StatusCode.UNAVAILABLE]
        with pytest.raises(BrokerUnreachableError, match=rf"^told to fail \(at 127\.0\.0\.1:{broker.port}\)$"):
            await transport.metadata([])
        broker.errors["InitProducerId"] = [NotReadyError("starting", retry_after_ms=5)]
        with pytest.raises(NotReadyError, match=r"^starting$") as raised:
            await transport.init_producer_id(NO_PRODUCER)
        assert raised.value.retry_after_ms == 5

    with_transport(loop_thread, broker.port, work)


def test_stream_says_hello_once_and_answers_come_in_order(broker: FakeBroker, loop_thread: LoopThread) -> None:
    partitions = broker.create("t", 2)
    gone = TopicIdPartition(b"g" * 16, 0)

    async def work(transport: ProduceTransport) -> None:
        stream = await transport.open_stream(0, HELLO)
        for correlation_id in (1, 2):
            await stream.send(ProduceRequest(correlation_id, -1, 1_000, [batch_for(partition) for partition in partitions]))
        await stream.send(ProduceRequest(3, 0, 1_000, [batch_for(partitions[0])]))
        await stream.send(ProduceRequest(4, -1, 1_000, [batch_for(partitions[0])._replace(tp=gone)]))
        answers = [await stream.receive() for _ in range(3)]
        assert [answer.correlation_id for answer in answers] == [1, 2, 4]
        assert [[result.base_offset for result in answer.results] for answer in answers] == [[0, 0], [2, 2], [-1]]
        assert answers[1].results[1].tp == partitions[1].tp
        assert isinstance(answers[2].results[0].error, UnknownTopicIdError)
        await stream.close()
        await stream.close()

    with_transport(loop_thread, broker.port, work)
    assert [(hello.instance_id, hello.incarnation) for hello in broker.hellos] == [HELLO]
    assert [data.slice(96) for _, _, data in partitions[0].batches] == [batch_for(partitions[0]).payload] * 3


def test_batches_within_a_stream_s_limits_make_a_request_within_the_broker_s(broker: FakeBroker, loop_thread: LoopThread) -> None:
    (partition,) = broker.create("t")

    async def work(transport: ProduceTransport) -> None:
        limits = (await transport.open_stream(0, HELLO)).limits
        batch = batch_for(partition)._replace(tp=TopicIdPartition(b"t" * 16, INT32_MAX))
        for count in (0, 100):
            size = count * (len(batch.header) + batch.payload.size + BATCH_OVERHEAD_BYTES)
            request = encode_request(ProduceRequest(INT64_MAX, -1, INT32_MAX, count * [batch]), HELLO)
            assert len(request) <= size + GRPC_MAX_MESSAGE_BYTES - limits.bytes_max

    with_transport(loop_thread, broker.port, work)


def test_closed_stream_ends_a_waiting_receive(broker: FakeBroker, loop_thread: LoopThread) -> None:
    (partition,) = broker.create("t")

    async def work(transport: ProduceTransport) -> None:
        stream = await transport.open_stream(0, HELLO)
        await stream.send(ProduceRequest(1, 0, 1_000, [batch_for(partition)]))
        waiting = asyncio.create_task(stream.receive())
        await all_wait()
        await stream.close()
        with pytest.raises(BrokerUnreachableError):
            await waiting
        with pytest.raises(BrokerUnreachableError):
            await stream.send(ProduceRequest(2, 0, 1_000, []))

    with_transport(loop_thread, broker.port, work)


def test_cancelled_receive_is_cancelled_and_no_error(broker: FakeBroker, loop_thread: LoopThread) -> None:
    async def work(transport: ProduceTransport) -> None:
        stream = await transport.open_stream(0, HELLO)
        waiting = asyncio.create_task(stream.receive())
        await all_wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with_transport(loop_thread, broker.port, work)


def test_broker_that_is_gone_ends_send_and_receive(loop_thread: LoopThread) -> None:
    with fake_broker() as broker:
        (partition,) = broker.create("t")

        async def work(transport: ProduceTransport) -> None:
            stream = await transport.open_stream(0, HELLO)
            await stream.send(ProduceRequest(1, -1, 1_000, [batch_for(partition)]))
            await stream.receive()
            waiting = asyncio.create_task(stream.receive())
            stop.set_result(None)
            with pytest.raises(BrokerUnreachableError):
                await waiting
            with pytest.raises(BrokerUnreachableError):
                await stream.send(ProduceRequest(2, -1, 1_000, [batch_for(partition)]))

        stop: concurrent.futures.Future[None] = concurrent.futures.Future()

        async def main() -> None:
            transport = GrpcProduceTransport(ClientConfig(bootstrap_servers=f"127.0.0.1:{broker.port}"), SystemClock())
            await work(transport)
            await transport.close()

        ended = threading.Event()
        running = loop_thread.submit(main(), ended.set)
        stop.result(DEADLINE_S)
    assert ended.wait(DEADLINE_S)
    running.outcome()


def test_request_bytes_are_those_of_generated_code(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    batch = batch_for(partition)
    request = ProduceRequest(7, -1, 30_000, [batch, batch])
    like = produce_pb2.ProduceRequest.FromString(encode_request(request, HELLO))
    assert list(like.records) == [batch.header + batch.payload.to_pybytes()] * 2
    assert like.hello.incarnation == 3
    assert like.SerializeToString() == encode_request(request, HELLO)
