"""Calls between nodes end with a response or a retriable error, whatever happens to the connection."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from brokerd.cluster.image import Node
from brokerd.cluster.keys import Registration
from brokerd.config.broker import BrokerConfig
from brokerd.config.client import GRPC_MAX_MESSAGE_BYTES
from brokerd.errors import NotReadyError
from brokerd.internode.v1.internode_pb2 import OpenMembersRequest, OpenMembersResponse
from brokerd.server.cluster.calls import SERVICE, NodeCalls
from brokerd.wire.channel import server_arguments


async def asked(calls: NodeCalls, port: int, token: str = "t") -> OpenMembersResponse:
    node = Node(1, 1, Registration("127.0.0.1", port, "d1", token=token))
    return await calls.call(node, OpenMembersRequest(), OpenMembersResponse)


async def test_a_call_under_way_when_the_node_has_another_address() -> None:
    connected: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    silent = await asyncio.start_server(lambda _reader, writer: connected.put_nowait(writer), "127.0.0.1", 0)
    port: int = silent.sockets[0].getsockname()[1]
    calls = NodeCalls(BrokerConfig())
    first = asyncio.create_task(asked(calls, port))
    ends = [await connected.get()]
    with pytest.raises(NotReadyError, match="does not answer OpenMembers"):
        await asked(calls, 1)
    with pytest.raises(NotReadyError, match="the connection is lost"):
        await first
    cancelled = asyncio.create_task(asked(calls, port))
    ends.append(await connected.get())
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await calls.close()
    silent.close()
    for end in ends:
        end.close()
        await end.wait_closed()


async def test_a_call_that_grpc_refuses_to_make() -> None:
    calls = NodeCalls(BrokerConfig())
    with pytest.raises(NotReadyError, match="is not asked OpenMembers"):
        await asked(calls, 1, "caf\u00e9")
    await calls.close()


async def test_copies_of_large_batches_may_be_more_than_a_client_takes() -> None:
    """For example, batches of a partition in sync and of one that catches up, or the snapshot of a million producers."""
    size_bytes = GRPC_MAX_MESSAGE_BYTES + 1

    async def replicate(_requests: object, context: Any) -> None:
        await context.write(bytes(size_bytes))

    server = grpc.aio.server(options=server_arguments(BrokerConfig()))
    handlers: dict[str, Any] = {"Replicate": grpc.stream_stream_rpc_method_handler(replicate)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    calls = NodeCalls(BrokerConfig())
    call = await calls.replicate(Node(1, 1, Registration("127.0.0.1", port, "d1", token="t")))
    assert len(await call.read()) == size_bytes
    await calls.close()
    await server.stop(None)
