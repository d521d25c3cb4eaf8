"""The interceptor of all calls, before any handler. Beside the broker's own service, health is open to everybody and every other
service (reflection) is for authenticated callers.

The broker's own methods pass: each has its rule (method_rules.py) and checks its caller itself, before it reads a message. So must
what is admitted here, and therefore its methods read streams: gRPC would read a single message by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health

from brokerd.server.security.authenticator import Authenticator, UnauthenticatedError
from brokerd.wire.methods import SERVICE

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class AuthenticationInterceptor(grpc.aio.ServerInterceptor):
    """Refuses strangers every service but the broker's own, which authenticates its callers itself, and health."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._open = (f"/{SERVICE}/", f"/{health.SERVICE_NAME}/")

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """See gRPC."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(self._open):
            return handler
        return self._authenticated(handler)

    def _authenticated(self, handler: _Handler) -> _Handler:
        """The same method, which checks its caller's token or certificate first: only the call itself tells them."""
        serve = handler.stream_stream
        assert serve is not None, "a method must read a stream, or gRPC reads its message before the caller is authenticated"

        async def authenticate_and_serve(requests: object, context: _Context) -> AsyncIterator[Any]:
            try:
                self._authenticator.principal(context.invocation_metadata() or (), context.auth_context())
            except UnauthenticatedError as error:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
            responses: Any = serve(requests, context)  # type: ignore[arg-type]
            async for response in responses:
                yield response

        return grpc.stream_stream_rpc_method_handler(
            authenticate_and_serve, handler.request_deserializer, handler.response_serializer
        )
