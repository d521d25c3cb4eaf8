"""How many connections there may be, and how large a request: the limits hold, and a client learns which one it met."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import grpc
import pyarrow as pa
import pytest

from brokerd.client.connection import Connection
from brokerd.client.loop_thread import LoopThread
from brokerd.client.security import ClientSecurity
from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.client import ClientConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import ConfigError, MessageTooLargeError
from brokerd.wire.channel import SERVER_ARGUMENTS, server_arguments
from brokerd.wire.methods import PRODUCE
from brokerd.wire.v1 import metadata_pb2, topics_pb2
from tests.support.daemon import RunningDaemon
from tests.support.raw_client import RawClient, values_batch
from tests.support.wait import wait_until

_AROUND_A_VALUE_BYTES = 2_000


def is_served(client: RawClient) -> bool:
    """True if the broker answers; an error other than a lost connection is raised."""
    code = grpc.StatusCode.OK
    try:
        client.call("GetServerInfo", metadata_pb2.GetServerInfoRequest())
    except grpc.RpcError as error:
        code = error.code()
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
def test_an_idle_connection_is_closed_and_opened_again_by_the_next_call(running: RunningDaemon, client: RawClient) -> None:
    states: list[grpc.ChannelConnectivity] = []
    channel: Any = client.channel
    channel.subscribe(states.append)
    # gRPC looks at a channel's state now and then: one that did not last is not told, so the channel is used until it is.
    wait_until(lambda: is_served(client) and grpc.ChannelConnectivity.READY in states)
    wait_until(lambda: states[-1] is grpc.ChannelConnectivity.IDLE)
    wait_until(lambda: is_served(client), what="another connection")


def test_every_argument_of_the_server_stands_once() -> None:
    names = [name for name, _ in server_arguments(BrokerConfig())]
    assert len(names) == len(set(names))
    assert {name for name, _ in SERVER_ARGUMENTS} < set(names)


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
        connection = Connection(running.address, ClientSecurity(ClientConfig()))
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
