"""Calls between the nodes of a cluster: the caller's half (`Peers`) and the called node's (`InternodeService`).

Each node draws a token at its start, and registers it. A caller shows the token of the node that it calls: who may read the store
is a node, and nobody else is, whatever rights the auth file gives. Like the broker's own methods, these are registered as
streams of requests, so that gRPC assembles no message of a stranger.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from brokerd.cluster.image import ClusterImage, Node
from brokerd.config.broker import BrokerConfig
from brokerd.config.small_files import read_small_file
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import BrokerdError, Fate, NotReadyError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.server.failures import internal, malformed, status_of
from brokerd.server.security.audit import Audit, host_of
from brokerd.server.security.authenticator import UnauthenticatedError
from brokerd.server.streams import Context
from brokerd.sharing import BROKER, CALLER
from brokerd.wire.channel import CHANNEL_ARGUMENTS
from brokerd.wire.errors import from_proto, from_trailer
from brokerd.wire.texts import plain_text

R = TypeVar("R", bound=Message)
TOKEN = "brokerd-node-token"  # noqa: S105 - the header's name
REQUEST_MAX_BYTES = 2_097_152
_TIMEOUT_S = 10.0
_DETAILS_MAX_CHARACTERS = 300
_COORDINATOR_LOG = TopicIdPartition(COORDINATOR.id, 0)


class NodeCalls:
    """Calls to other nodes, and their connections."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises ConfigError."""
        self._credentials = _credentials(config)
        self._channels: dict[int, tuple[str, grpc.aio.Channel]] = {}  # by node id, with the address

    async def call(self, node: Node, request: Message, response_type: type[R]) -> R:
        """Calls the method of this request, once. Raises the error in the response, NotReadyError if there is none."""
        name, address = request.DESCRIPTOR.name.removesuffix("Request"), _address(node)
        method: Any = (await self._channel(node.id, address)).unary_unary(f"/{SERVICE}/{name}")
        metadata = ((TOKEN, node.registration.token),)
        try:
            data = await method(request.SerializeToString(), timeout=_TIMEOUT_S, metadata=metadata)
            response = response_type.FromString(data)
        except grpc.aio.AioRpcError as error:
            answered = from_trailer(error.trailing_metadata())
            if answered is not None:
                raise answered from None
            details = plain_text(error.details() or error.code().name, _DETAILS_MAX_CHARACTERS)
            raise NotReadyError(f"node {node.id} at {address} does not answer {name} ({details})") from None
        except DecodeError:
            raise NotReadyError(f"node {node.id} at {address} answers {name} with bytes that cannot be read") from None
        if "error" in response.DESCRIPTOR.fields_by_name and response.HasField("error"):
            raise from_proto(cast("Any", response).error)
        return response

    async def close(self) -> None:
        """Ends all calls."""
        channels, self._channels = self._channels, {}
        for _, channel in channels.values():
            await channel.close()

    async def _channel(self, node_id: int, address: str) -> grpc.aio.Channel:
        known = self._channels.get(node_id)
        if known is not None and known[0] == address:
            return known[1]
        options = list(CHANNEL_ARGUMENTS)
        channel = (
            grpc.aio.insecure_channel(address, options=options)
            if self._credentials is None
            else grpc.aio.secure_channel(address, self._credentials, options=options)
        )
        self._channels[node_id] = address, channel
        if known is not None:
            await known[1].close()
        return channel


class InternodeService:
    """The methods that other nodes may call."""

    def __init__(self, methods: Iterable[Method], token: str, audit: Audit) -> None:
        self._methods = list(methods)
        self._token = token
        self._audit = audit

    def method_handlers(self) -> Mapping[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server."""
        return {method.name: grpc.stream_unary_rpc_method_handler(self._unary(method)) for method in self._methods}

    def _unary(self, method: Method) -> Callable[[object, Context], Awaitable[bytes]]:
        async def call(_requests: object, context: Context) -> bytes:
            try:
                self._check_token(context)
                CALLER.set(BROKER)
                response = await method.handle(await _read(method, context))
                return response.SerializeToString()
            except BrokerdError as error:
                await context.abort(*status_of(error))
            except grpc.aio.BaseError:
                raise  # the caller is gone
            except Exception as error:
                await context.abort(*status_of(internal(method.name, error)))

        return call

    def _check_token(self, context: Context) -> None:
        tokens = [value for name, value in context.invocation_metadata() or () if name == TOKEN]
        shown = tokens[0] if len(tokens) == 1 and isinstance(tokens[0], str) else ""
        if not hmac.compare_digest(shown.encode(), self._token.encode()):
            self._audit.refused(host_of(str(context.peer())), "a call that only nodes of the cluster may make")
            raise UnauthenticatedError("only nodes of the cluster may call this")


async def _read(method: Method, context: Context) -> Message:
    what = method.request.DESCRIPTOR.name
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            data = cast("object", await context.read())
    except TimeoutError:
        raise malformed(what, f"did not arrive within {_TIMEOUT_S:.0f} s") from None
    if not isinstance(data, bytes) or len(data) > REQUEST_MAX_BYTES:
        raise malformed(what, f"did not arrive, or has more than {REQUEST_MAX_BYTES} bytes")
    try:
        return method.request.FromString(data)
    except DecodeError:
        raise malformed(what, "the bytes cannot be parsed") from None


def _address(node: Node) -> str:
    host = node.registration.host
    return f"[{host}]:{node.registration.port}" if ":" in host and not host.startswith("[") else f"{host}:{node.registration.port}"


def _credentials(config: BrokerConfig) -> grpc.ChannelCredentials | None:
    if not config.cluster_ssl_ca_file:
        return None
    return grpc.ssl_channel_credentials(
        read_small_file(config.cluster_ssl_ca_file, "cluster.ssl.ca.file"),
        read_small_file(config.ssl_key_file, "ssl.key.file"),
        read_small_file(config.ssl_certificate_file, "ssl.certificate.file"),
    )
