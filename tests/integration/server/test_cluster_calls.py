"""Calls between nodes end with an answer or a retriable error, whatever becomes of the connection."""

from __future__ import annotations

import asyncio

import pytest

from brokerd.cluster.image import Node
from brokerd.cluster.keys import Registration
from brokerd.config.broker import BrokerConfig
from brokerd.errors import NotReadyError
from brokerd.internode.v1.internode_pb2 import OpenMembersRequest, OpenMembersResponse
from brokerd.server.cluster.calls import NodeCalls


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
