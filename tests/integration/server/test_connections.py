"""Limits on connections and sizes of requests: they hold, and a client learns which one it met."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]
from h2.exceptions import TooManyStreamsError

from benchmarks.raw_http2 import RawHttp2
from brokerd.client.blocking import LoopThread
from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.settings import from_mapping
from brokerd.errors import ConfigError, MessageTooLargeError
from brokerd.wire.channel import CALLS_PER_CONNECTION, CHANNEL_ARGUMENTS, SERVER_ARGUMENTS, STREAMS_PER_CONNECTION, server_arguments
from brokerd.wire.methods import FETCH, PRODUCE, UNARY
from brokerd.wire.v1 import fetch_pb2, metadata_pb2, topics_pb2
from tests.support.connections import connection_to
from tests.support.daemon import RunningDaemon
from tests.support.raw_client import LONG_MS, RawClient, values_batch
from tests.support.wait import DEADLINE_S, wait_until

_AROUND_A_VALUE_BYTES = 2_000


def is_served(client: RawClient) -> bool:
    """True if the broker responds; raises errors other than a lost connection."""
    code, _ = client.status()
    assert code in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    return code is grpc.StatusCode.OK


@pytest.mark.parametrize("settings", [{"max_connections": 2}], indirect=True)
def test_one_connection_too_many_is_closed_and_gets_in_when_another_leaves(running: RunningDaemon, client: RawClient) -> None:
    assert is_served(client)
    with RawClient(running.address) as third:
        with RawClient(running.address) as second:
            assert is_served(second)
            assert not is_served(third)
            assert is_served(client)
        wait_until(lambda: is_served(third))


@pytest.mark.parametrize("settings", [{"connections_max_idle_ms": 1_000}], indirect=True)
def test_an_idle_connection_is_closed_and_opened_again_by_the_next_call(running: RunningDaemon) -> None:
    path, request = UNARY["GetServerInfo"].path, metadata_pb2.GetServerInfoRequest().SerializeToString()

    async def call_wait_and_call() -> None:
        async with grpc.aio.insecure_channel(running.address) as channel:
            get_server_info: Any = channel.unary_unary(path)
            await get_server_info(request)
            await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)  # a second later, or already
            assert channel.get_state() is grpc.ChannelConnectivity.IDLE
            await get_server_info(request)

    with closing(LoopThread()) as loop_thread:
        loop_thread.run(asyncio.wait_for(call_wait_and_call(), DEADLINE_S))


def test_a_client_has_more_streams_than_a_connection_and_calls_beside_them(running: RunningDaemon, client: RawClient) -> None:
    """Uses three connections for streams that never end; on a single one, the 101st would wait for ever."""
    (tp,) = client.create_topic()
    count = 2 * STREAMS_PER_CONNECTION + 1
    assert running.daemon.config.max_streams_per_connection < count

    async def read_all() -> int:
        connection = connection_to(running.address)
        asked = fetch_pb2.PartitionFetch(topic_id=tp.topic_id, current_leader_epoch=1, partition_max_bytes=1_024)
        request = fetch_pb2.FetchRequest(max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1_024, partitions=[asked]).SerializeToString()
        try:
            streams = [connection.open_stream(FETCH) for _ in range(count)]
            for stream in streams:
                await stream.send(request)
            info = metadata_pb2.GetServerInfoRequest()
            await connection.call("GetServerInfo", info, metadata_pb2.GetServerInfoResponse, timeout_ms=int(DEADLINE_S * 1_000))
            await asyncio.to_thread(wait_until, lambda: len(running.daemon.broker.fetch_purgatory) == count)
            await asyncio.to_thread(client.producer().produce, tp, values_batch(tp))
            answers = [await stream.receive() for stream in streams]
            for stream in streams[1:]:
                stream.close()
            again = [connection.open_stream(FETCH) for _ in range(STREAMS_PER_CONNECTION)]
            assert len(connection._channels) <= 4, "what has ended makes room"
            for stream in again:
                stream.close()
            return len(answers)
        finally:
            await connection.close()

    with closing(LoopThread()) as loop_thread:
        assert loop_thread.run(read_all()) == count


def test_any_number_of_calls_at_once_are_answered(running: RunningDaemon) -> None:
    count = 1_000
    assert running.daemon.config.max_streams_per_connection > STREAMS_PER_CONNECTION + CALLS_PER_CONNECTION

    async def call_all() -> int:
        connection = connection_to(running.address)
        request, response = metadata_pb2.GetServerInfoRequest(), metadata_pb2.GetServerInfoResponse
        try:
            call = connection.call
            calls = [call("GetServerInfo", request, response, timeout_ms=int(DEADLINE_S * 1_000)) for _ in range(count)]
            return len(await asyncio.gather(*calls))
        finally:
            await connection.close()

    with closing(LoopThread()) as loop_thread:
        assert loop_thread.run(call_all()) == count


def test_a_connection_takes_no_more_calls_than_it_may_have(running: RunningDaemon) -> None:
    """HTTP/2 itself refuses a client that exceeds its flow control, before anything of the call is stored."""
    limit = running.daemon.config.max_streams_per_connection
    with closing(RawHttp2(running.daemon.port)) as stranger:
        first = stranger.call(FETCH)
        while stranger.h2.remote_settings.max_concurrent_streams > limit:
            stranger.pump(0.1)
        for _ in range(limit - 1):
            stranger.call(FETCH)
        with pytest.raises(TooManyStreamsError):
            stranger.call(FETCH)
        wait_until(lambda: running.daemon.open_stream_count == limit)
        stranger.reset(first)
        stranger.flush()
        wait_until(lambda: running.daemon.open_stream_count == limit - 1)
        stranger.call(FETCH)
        wait_until(lambda: running.daemon.open_stream_count == limit)


async def test_calls_beyond_the_limit_of_a_connection_wait(running: RunningDaemon) -> None:
    """The client is not brokerd's, and puts all its calls on one connection."""
    at_once, each = 150, 20
    assert at_once > running.daemon.config.max_streams_per_connection

    method = UNARY["GetServerInfo"]
    async with grpc.aio.insecure_channel(running.address) as channel:
        call: Any = channel.unary_unary(method.path)

        async def call_in_turn() -> None:
            for _ in range(each):
                await call(b"", timeout=DEADLINE_S)

        await asyncio.gather(*(call_in_turn() for _ in range(at_once)))


def test_every_argument_of_the_server_stands_once() -> None:
    names = [name for name, _ in server_arguments(BrokerConfig())]
    assert len(names) == len(set(names))
    assert {name for name, _ in SERVER_ARGUMENTS} < set(names)


def test_grpc_knows_every_argument() -> None:
    """gRPC ignores unknown argument names."""
    library = Path(cygrpc.__file__).read_bytes()
    names = {name for name, _ in (*CHANNEL_ARGUMENTS, *server_arguments(BrokerConfig()))}
    assert [name for name in sorted(names) if name.encode() + b"\0" not in library] == []


def test_the_largest_legal_batch_passes(running: RunningDaemon, client: RawClient) -> None:
    largest = running.daemon.config.message_max_bytes
    (tp,) = client.create_topic()
    batch = values_batch(tp, size=largest - _AROUND_A_VALUE_BYTES)
    assert largest - batch.size in range(_AROUND_A_VALUE_BYTES)
    assert not client.producer().produce(tp, batch).HasField("error")
    assert client.latest(tp) == 1


def test_a_request_beyond_the_limit_says_which_settings_to_change(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    limit = running.daemon.config.socket_request_max_bytes
    data = client.producer().request([(tp, pa.py_buffer(bytes(limit)))])

    async def send() -> None:
        connection = connection_to(running.address)
        try:
            stream = connection.open_stream(PRODUCE)
            await stream.send(data)
            await stream.receive()
        finally:
            await connection.close()

    with closing(LoopThread()) as loop_thread, pytest.raises(MessageTooLargeError) as caught:
        loop_thread.run(send())
    for word in (running.address, "max.request.size", "socket.request.max.bytes", str(limit)):
        assert word in caught.value.message
    assert client.latest(tp) == 0


def test_a_topic_s_batches_must_fit_too(running: RunningDaemon, client: RawClient) -> None:
    client.create_topic()
    wide, fits = str(running.daemon.config.largest_batch_bytes + 1), str(running.daemon.config.largest_batch_bytes)

    def create(size: str) -> str:
        topic = topics_pb2.NewTopic(name=f"t{size}", partitions=1, configs={"max.message.bytes": size})
        return str(client.call("CreateTopics", topics_pb2.CreateTopicsRequest(topics=[topic])).results[0].error.message)

    def alter(size: str, *, validate_only: bool) -> str:
        request = topics_pb2.AlterTopicConfigsRequest(name="t", set={"max.message.bytes": size}, validate_only=validate_only)
        return str(client.call("AlterTopicConfigs", request).result.error.message)

    for told in (create(wide), alter(wide, validate_only=True), alter(wide, validate_only=False)):
        assert "socket.request.max.bytes" in told
    assert create(fits) == alter(fits, validate_only=True) == alter(fits, validate_only=False) == ""


def test_a_batch_must_fit_into_a_request() -> None:
    with pytest.raises(ConfigError, match=r"message\.max\.bytes .* socket\.request\.max\.bytes"):
        check_broker(from_mapping(BrokerConfig, {"socket.request.max.bytes": 17_000_000}))
    check_broker(from_mapping(BrokerConfig, {"socket.request.max.bytes": 17_825_792}))
