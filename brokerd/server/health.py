"""grpc.health.v1, open to any caller: gRPC's own servicer.

gRPC assembles a request of any size before it calls a unary method, and these two methods need no credentials. So they read a
stream, as all of the broker's methods do, and a call whose request does not arrive is ended. max.streams.per.connection limits how
many a connection may have.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

_REQUEST_MAX_BYTES = 1_024
_PATIENCE_S = 10.0

_Context = grpc.aio.ServicerContext[Any, Any]


class HealthService(health.aio.HealthServicer):
    """The status of the broker as a whole and of its service: serving, until `enter_graceful_shutdown`."""

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server."""
        serialize = HealthCheckResponse.SerializeToString
        return {
            "Check": grpc.stream_unary_rpc_method_handler(self._check, response_serializer=serialize),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=serialize),
        }

    async def _check(self, _requests: object, context: _Context) -> Any:
        return await self.Check(await self._request(context), context)

    async def _watch(self, _requests: object, context: _Context) -> None:
        await self.Watch(await self._request(context), context)

    async def _request(self, context: _Context) -> HealthCheckRequest:
        """The request of a call; ends the call if it does not arrive."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                data = await context.read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request arrived within {_PATIENCE_S:.0f} s")
        if isinstance(data, bytes) and len(data) <= _REQUEST_MAX_BYTES:
            with contextlib.suppress(DecodeError):
                return HealthCheckRequest.FromString(data)
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, "HealthCheckRequest: did not arrive, cannot be parsed, or is too large"
        )
        raise AssertionError("abort raises")
