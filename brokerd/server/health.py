"""grpc.health.v1: whether the broker serves, for any caller. Strangers may call it, so a call must not be able to delay anything
else: no lock, no queue; a message is awaited only briefly; a watcher that does not read delays only itself. gRPC's own servicer
writes to a watcher under the lock that a change of status needs, so one watcher that does not read would hold up a stop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from brokerd.server.failures import malformed
from brokerd.server.streams.messages import Context, read_message
from brokerd.wire.methods import SERVICE

_Status = health_pb2.HealthCheckResponse
_NAMES = (health.OVERALL_HEALTH, SERVICE)
_REQUEST_MAX_BYTES = 1_024
_PATIENCE_S = 10.0
HALF_OPEN_MAX = 16  # calls of one connection whose request has not arrived; a probe makes one call at a time
_WATCHERS_MAX = 1_000


class HealthService:
    """One status for the broker as a whole and for its service: they are always equal."""

    def __init__(self) -> None:
        self._is_serving = False
        self._watchers: set[asyncio.Event] = set()
        self._half_open: Counter[str] = Counter()  # by connection

    def set_serving(self, is_serving: bool) -> None:
        """Sets the status, also for current watchers. Never waits."""
        self._is_serving = is_serving
        for changed in self._watchers:
            changed.set()

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server."""
        return {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, _requests: object, context: Context) -> bytes:
        name = await self._asked(context)
        if name not in _NAMES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service: leave the name empty for the whole broker")
        return self._answer(name)

    async def _watch(self, _requests: object, context: Context) -> None:
        name = await self._asked(context)
        if len(self._watchers) >= _WATCHERS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_WATCHERS_MAX} clients watch already: use Check instead")
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            told = b""
            while True:
                changed.clear()
                response = self._answer(name)
                if response != told:
                    await context.write(response)
                    told = response
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    async def _asked(self, context: Context) -> str:
        peer = str(context.peer())  # gRPC forgets it once the call is over
        self._half_open[peer] += 1
        try:
            if self._half_open[peer] > HALF_OPEN_MAX:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{HALF_OPEN_MAX} calls of this connection are waiting for their requests"
                )
            return await _name_in(await _request(context), context)
        finally:
            self._half_open[peer] -= 1
            if not self._half_open[peer]:
                del self._half_open[peer]

    def _answer(self, name: str) -> bytes:
        if name not in _NAMES:
            return _Status(status=_Status.SERVICE_UNKNOWN).SerializeToString()
        return _Status(status=_Status.SERVING if self._is_serving else _Status.NOT_SERVING).SerializeToString()


async def _request(context: Context) -> bytes | None:
    """Its bytes; ends the call if none arrives."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await read_message(context)
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request arrived within {_PATIENCE_S:.0f} s")
    raise AssertionError("abort raises")


async def _name_in(data: bytes | None, context: Context) -> str:
    """The requested service; ends the call if the request is none."""
    try:
        if data is not None and len(data) <= _REQUEST_MAX_BYTES:
            return health_pb2.HealthCheckRequest.FromString(data).service
    except DecodeError:
        pass
    await context.abort(
        grpc.StatusCode.INVALID_ARGUMENT,
        malformed("HealthCheckRequest", "did not arrive, cannot be parsed, or is too large").message,
    )
    raise AssertionError("abort raises")
