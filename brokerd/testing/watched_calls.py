"""Where a fault meets a call: around the methods of the broker's service, inside authentication.

A request has come when its call (unary) or its message (Produce, Fetch) is there; it is done when its response is about to be sent.
A response is lost by ending its call as a lost connection does: its client cannot know whether the request was done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from brokerd import wire as wire  # before gRPC: see there

# isort: split
import grpc

from brokerd.server.handlers.produce import decode
from brokerd.testing.faults import AFTER, BEFORE, LOSE, Armed, FaultPlan
from brokerd.wire.methods import SERVICE

_PARTITIONS_MAX = 1_000_000
Details = grpc.HandlerCallDetails
Continuation = Callable[[Details], Awaitable[Any]]


class WatchedCalls(grpc.aio.ServerInterceptor):
    """Has faults happen. `happen(fault)` is told of each count, and kills the process where the fault says so."""

    def __init__(self, plan: FaultPlan, happen: Callable[[Armed], None]) -> None:
        self._plan = plan
        self._happen = happen

    async def intercept_service(self, continuation: Continuation, handler_call_details: Details) -> Any:
        """See gRPC."""
        handler = await continuation(handler_call_details)
        service, _, name = str(handler_call_details.method).lstrip("/").partition("/")
        if handler is None or service != SERVICE:
            return handler
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._stream(name, handler.stream_stream))
        return grpc.stream_unary_rpc_method_handler(self._unary(name, handler.stream_unary))

    def meet(self, name: str, moment: str) -> bool:
        """Counts a request; True if its response is to be lost."""
        is_lost = False
        for fault in self._plan.meet(name, moment):
            self._happen(fault)
            is_lost |= fault.kind == LOSE and not fault.left
        return is_lost

    def watches(self, name: str, moment: str) -> bool:
        """True if a fault counts these requests."""
        return self._plan.watches(name, moment)

    def _unary(self, name: str, serve: Callable[[Any, Any], Awaitable[bytes]]) -> Callable[[Any, Any], Awaitable[bytes]]:
        async def call(requests: Any, context: Any) -> bytes:
            self.meet(name, BEFORE)
            response = await serve(requests, context)
            if self.meet(name, AFTER):
                await lose(context)
            return response

        return call

    def _stream(self, name: str, serve: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Any, Any], Awaitable[None]]:
        async def call(requests: Any, context: Any) -> None:
            await serve(requests, _WatchedContext(self, name, context))

        return call


class _WatchedContext:
    """A stream's context whose messages are counted; all else is gRPC's own."""

    def __init__(self, calls: WatchedCalls, name: str, context: Any) -> None:
        self._calls = calls
        self._name = name
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        """The client's next message."""
        data = await self._context.read()
        if isinstance(data, bytes) and self._calls.watches(self._name, BEFORE) and _is_request(self._name, data):
            self._calls.meet(self._name, BEFORE)
        return data

    async def write(self, data: bytes) -> None:
        """Sends a response."""
        if self._calls.meet(self._name, AFTER):
            await lose(self._context)
        await self._context.write(data)


def _is_request(name: str, data: bytes) -> bool:
    """False for a producer's hello, which asks for nothing."""
    return name != "Produce" or bool(decode(data, partitions_max=_PARTITIONS_MAX).partitions)


async def lose(context: Any) -> None:
    """Ends a call as a lost connection ends it for its client. Raises gRPC's error for that."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the response was lost, as the test ordered")
