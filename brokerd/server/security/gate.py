"""What is served beside the broker's own service: health is open to everybody, all else needs a caller that is known.

The broker's own methods are not looked at here: each has its rule (rules.py) and is checked where it is called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
from grpc_health.v1 import health

from brokerd.server.security.authenticator import AUTHORIZATION, Authenticator, UnauthenticatedError
from brokerd.wire.methods import SERVICE

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]]"


class Gate(grpc.aio.ServerInterceptor):
    """Refuses what a stranger may not call, known method or not."""

    def __init__(self, authenticator: Authenticator, *, needs_certificate: bool) -> None:
        self._authenticator = authenticator
        self._needs_certificate = needs_certificate
        self._open = (f"/{SERVICE}/", f"/{health.SERVICE_NAME}/")

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> _Handler | None:
        """See gRPC."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(self._open):
            return handler
        refusal = self._refusal(handler_call_details)
        return handler if refusal is None else _refusing(handler, refusal)

    def _refusal(self, details: grpc.HandlerCallDetails) -> UnauthenticatedError | None:
        headers = [value for name, value in details.invocation_metadata or () if name.lower() == AUTHORIZATION]
        if self._needs_certificate and not headers:
            return None  # the handshake has checked the certificate
        try:
            self._authenticator.principal([(AUTHORIZATION, value) for value in headers])
        except UnauthenticatedError as error:
            return error
        return None


def _refusing(handler: grpc.RpcMethodHandler[Any, Any], error: UnauthenticatedError) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler of the same kind that refuses."""

    async def refuse(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)

    makers: dict[tuple[bool, bool], Callable[..., grpc.RpcMethodHandler[Any, Any]]] = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return makers[bool(handler.request_streaming), bool(handler.response_streaming)](refuse)
