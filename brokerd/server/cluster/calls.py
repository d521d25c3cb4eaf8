"""Calls to the other nodes of a cluster, each on a connection of its own. server/internode.py answers them.

Each node draws a token when it starts, and registers it. A caller presents the token of the node that it calls. This proves that it
can read the store, and so is a node; rights in the auth file do not make a caller a node.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from brokerd.cluster.image import Node
from brokerd.config.broker import BrokerConfig
from brokerd.config.small_files import read_small_file
from brokerd.errors import NotReadyError
from brokerd.event_loop import end_if_cancelled
from brokerd.ids import address_of
from brokerd.wire.channel import NODE_ARGUMENTS
from brokerd.wire.errors import from_proto, from_trailer
from brokerd.wire.texts import in_plain_words

R = TypeVar("R", bound=Message)
SERVICE = "brokerd.internode.v1.Internode"
TOKEN = "brokerd-node-token"  # noqa: S105 - the header's name
_TIMEOUT_S = 40.0  # above the 30 s that some calls wait for a flush


class NodeCalls:
    """Calls to other nodes, and their connections."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises ConfigError."""
        self.credentials = call_credentials(config)  # a new value makes new connections
        # By node id, with address and credentials.
        self._channels: dict[int, tuple[tuple[str, grpc.ChannelCredentials | None], grpc.aio.Channel]] = {}

    async def call(self, node: Node, request: Message, response_type: type[R]) -> R:
        """Calls the method of this request, once. Raises the error in the response, NotReadyError if no response arrives."""
        name = request.DESCRIPTOR.name.removesuffix("Request")
        address = address_of(node.registration.host, node.registration.port)
        method: Any = (await self._channel(node.id, address)).unary_unary(f"/{SERVICE}/{name}")
        metadata = ((TOKEN, node.registration.token),)
        try:
            data = await method(request.SerializeToString(), timeout=_TIMEOUT_S, metadata=metadata)
            response = response_type.FromString(data)
        except grpc.aio.AioRpcError as error:
            answered = from_trailer(error.trailing_metadata())
            if answered is not None:
                raise answered from None
            details = in_plain_words(error.details() or error.code().name)
            raise NotReadyError(f"node {node.id} at {address} does not answer {name} ({details})") from None
        except (grpc.aio.BaseError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError):
                end_if_cancelled()  # else the connection was closed: the other node has a new address, or this one stops
            raise NotReadyError(f"node {node.id} at {address} is not asked {name}: the connection is lost") from None
        except DecodeError:
            raise NotReadyError(f"node {node.id} at {address} answers {name} with bytes that cannot be read") from None
        if "error" in response.DESCRIPTOR.fields_by_name and response.HasField("error"):
            raise from_proto(cast("Any", response).error)
        return response

    async def replicate(self, node: Node) -> Any:
        """Opens a Replicate stream, with bytes in both directions."""
        address = address_of(node.registration.host, node.registration.port)
        method: Any = (await self._channel(node.id, address)).stream_stream(f"/{SERVICE}/Replicate")
        return method(metadata=((TOKEN, node.registration.token),))

    async def close(self) -> None:
        """Closes all connections, which ends their calls."""
        channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            await channel.close()

    async def _channel(self, node_id: int, address: str) -> grpc.aio.Channel:
        known, credentials = self._channels.get(node_id), self.credentials
        if known is not None and known[0] == (address, credentials):
            return known[1]
        options = list(NODE_ARGUMENTS)
        channel = (
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
        )
        self._channels[node_id] = (address, credentials), channel
        if known is not None:
            await known[1].close()
        return channel


def call_credentials(config: BrokerConfig) -> grpc.ChannelCredentials | None:
    """The TLS credentials for calls between nodes, read from their files; None: plaintext. Raises ConfigError."""
    if not config.cluster_ssl_ca_file:
        return None
    return grpc.ssl_channel_credentials(
        read_small_file(config.cluster_ssl_ca_file, "cluster.ssl.ca.file"),
        read_small_file(config.ssl_key_file, "ssl.key.file"),
        read_small_file(config.ssl_certificate_file, "ssl.certificate.file"),
    )
