"""What is served beside the broker's own service: health is open to everybody, all else needs a caller that is known.

The broker's own methods are not looked at here: each has its rule (rules.py) and is checked where it is called. All of them look
before they read a message, so what is let through here must read a stream: gRPC would read a single message by itself.
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
CountFruitless: TypeAlias = "Callable[[str], None]"  # a call over the connection of that peer came to nothing


class UnknownMethods(grpc.aio.ServerInterceptor):
    """Answers calls of methods that there are not, as gRPC itself would, and counts them."""

    def __init__(self, count_fruitless: CountFruitless) -> None:
        async def refuse(_requests: object, context: _Context) -> None:
            count_fruitless(str(context.peer()))
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

        self._refusal: _Handler = grpc.stream_stream_rpc_method_handler(refuse)

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """See gRPC."""
        return await continuation(handler_call_details) or self._refusal


class Gate(grpc.aio.ServerInterceptor):
    """Refuses what a stranger may not call."""

    def __init__(self, authenticator: Authenticator, count_fruitless: CountFruitless) -> None:
        self._authenticator = authenticator
        self._count_fruitless = count_fruitless
        self._open = (f"/{SERVICE}/", f"/{health.SERVICE_NAME}/")

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """See gRPC."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(self._open):
            return handler
        return self._guarded(handler)

    def _guarded(self, handler: _Handler) -> _Handler:
        """The same method, for those who are known: by token or by certificate, which only the call itself tells."""
        serve = handler.stream_stream
        assert serve is not None, "a method that reads streams, or its message is read before anybody is asked"

        async def guarded(requests: object, context: _Context) -> AsyncIterator[Any]:
            try:
                self._authenticator.principal(context.invocation_metadata() or (), context.auth_context())
            except UnauthenticatedError as error:
                self._count_fruitless(str(context.peer()))
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
            answers: Any = serve(requests, context)  # type: ignore[arg-type]
            async for answer in answers:
                yield answer

        return grpc.stream_stream_rpc_method_handler(guarded, handler.request_deserializer, handler.response_serializer)
