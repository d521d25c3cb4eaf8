"""The service between the nodes of a cluster, as gRPC calls it: who may call it (cluster/calls.py), bytes in, handler, bytes out.

Like the broker's own methods, these are registered as streams of requests, so that gRPC assembles no message of a stranger.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from brokerd.errors import BrokerdError
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.calls import TOKEN
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.failures import internal, malformed, status_of
from brokerd.server.handlers.internode import METHODS, InternodeMethod
from brokerd.server.replication.serving import ReplicaStream
from brokerd.server.security.audit import host_of
from brokerd.server.security.authenticator import UnauthenticatedError
from brokerd.server.streams import Context, read_request
from brokerd.sharing import BROKER, CALLER

logger = logging.getLogger(__name__)
REQUEST_MAX_BYTES = 2_097_152
_ARRIVAL_S = 10.0
_NEWS_MS = 60_000  # after the start, a wrong token is most likely the one of the life before: no alarm


class InternodeService:
    """The methods that other nodes may call."""

    def __init__(self, broker: BrokerParts, cluster: ClusterNode) -> None:
        self._broker = broker
        self._cluster = cluster
        self._started_ms = broker.clock.monotonic_ms()

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server."""
        unary: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.stream_unary_rpc_method_handler(self._unary(name, method)) for name, method in METHODS.items()
        }
        return {**unary, "Replicate": grpc.stream_stream_rpc_method_handler(self._replicate)}

    async def _replicate(self, _requests: object, context: Context) -> None:
        async with _ends(context, "Replicate"):
            self._check_token(context)
            CALLER.set(BROKER)
            await ReplicaStream(self._broker, *self._cluster.replica_streams(), context).run()

    def _unary(self, name: str, method: InternodeMethod) -> Callable[[object, Context], Awaitable[bytes]]:
        async def call(_requests: object, context: Context) -> bytes:
            async with _ends(context, name):
                self._check_token(context)
                CALLER.set(BROKER)
                response = await method.handle(self._broker, await _read(method.request, context))
            return response.SerializeToString()

        return call

    def _check_token(self, context: Context) -> None:
        tokens = [value for name, value in context.invocation_metadata() or () if name == TOKEN]
        shown = tokens[0] if len(tokens) == 1 and isinstance(tokens[0], str) else ""
        if not hmac.compare_digest(shown.encode(), self._cluster.token.encode()):
            host = host_of(str(context.peer()))
            if shown and self._broker.clock.monotonic_ms() - self._started_ms < _NEWS_MS:
                logger.debug("%s does not know the new registration of this node yet: its call is refused", host)
            else:
                self._broker.audit.refused(host, "a call that only nodes of the cluster may make")
            raise UnauthenticatedError("only nodes of the cluster may call this")


@contextlib.asynccontextmanager
async def _ends(context: Context, name: str) -> AsyncIterator[None]:
    """Ends the call with the error that its body raises."""
    try:
        yield
    except (BrokerdError, DecodeError) as error:
        failure = error if isinstance(error, BrokerdError) else malformed(name, "the bytes cannot be parsed")
        await context.abort(*status_of(failure))
    except grpc.aio.BaseError:
        raise  # the caller is gone
    except Exception as error:
        await context.abort(*status_of(internal(name, error)))


async def _read(request_type: type[Message], context: Context) -> Message:
    what = request_type.DESCRIPTOR.name
    data = await read_request(context, what, _ARRIVAL_S)
    if len(data) > REQUEST_MAX_BYTES:
        raise malformed(what, f"has {len(data)} bytes, more than {REQUEST_MAX_BYTES}")
    return request_type.FromString(data)
