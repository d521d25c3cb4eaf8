"""The service between the nodes of a cluster, as gRPC calls it: who may call it (cluster/calls.py), bytes in, handler, bytes out.

Like the broker's own methods, these are registered as streams of requests, so that gRPC assembles no message of a stranger.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from brokerd.errors import BrokerdError
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.calls import TOKEN
from brokerd.server.failures import internal, malformed, status_of
from brokerd.server.handlers.internode import METHODS, InternodeMethod
from brokerd.server.security.audit import host_of
from brokerd.server.security.authenticator import UnauthenticatedError
from brokerd.server.streams import Context, read_request
from brokerd.sharing import BROKER, CALLER

REQUEST_MAX_BYTES = 2_097_152
_ARRIVAL_S = 10.0


class InternodeService:
    """The methods that other nodes may call."""

    def __init__(self, broker: BrokerParts, token: str) -> None:
        self._broker = broker
        self._token = token

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server."""
        return {name: grpc.stream_unary_rpc_method_handler(self._unary(name, method)) for name, method in METHODS.items()}

    def _unary(self, name: str, method: InternodeMethod) -> Callable[[object, Context], Awaitable[bytes]]:
        async def call(_requests: object, context: Context) -> bytes:
            try:
                self._check_token(context)
                CALLER.set(BROKER)
                response = await method.handle(self._broker, await _read(method.request, context))
                return response.SerializeToString()
            except BrokerdError as error:
                await context.abort(*status_of(error))
            except grpc.aio.BaseError:
                raise  # the caller is gone
            except Exception as error:
                await context.abort(*status_of(internal(name, error)))

        return call

    def _check_token(self, context: Context) -> None:
        tokens = [value for name, value in context.invocation_metadata() or () if name == TOKEN]
        shown = tokens[0] if len(tokens) == 1 and isinstance(tokens[0], str) else ""
        if not hmac.compare_digest(shown.encode(), self._token.encode()):
            self._broker.audit.refused(host_of(str(context.peer())), "a call that only nodes of the cluster may make")
            raise UnauthenticatedError("only nodes of the cluster may call this")


async def _read(request_type: type[Message], context: Context) -> Message:
    what = request_type.DESCRIPTOR.name
    data = await read_request(context, what, _ARRIVAL_S)
    if len(data) > REQUEST_MAX_BYTES:
        raise malformed(what, f"has {len(data)} bytes, more than {REQUEST_MAX_BYTES}")
    try:
        return request_type.FromString(data)
    except DecodeError:
        raise malformed(what, "the bytes cannot be parsed") from None
