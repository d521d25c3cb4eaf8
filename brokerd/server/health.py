"""grpc.health.v1: whether the broker serves, for whoever asks. Strangers may, so nothing that one of them does holds anybody up: no
lock, no queue; a message is waited for no longer than a moment; who watches and does not read waits by himself.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2

from brokerd.server.failures import malformed
from brokerd.server.security.gate import CountFruitless
from brokerd.server.streams.messages import Context, read_message
from brokerd.wire.methods import SERVICE

_Status = health_pb2.HealthCheckResponse
_NAMES = (health.OVERALL_HEALTH, SERVICE)
_REQUEST_MAX_BYTES = 1_024
_PATIENCE_S = 10.0
_WATCHERS_MAX = 1_000


class HealthService:
    """One answer for the broker as a whole and for its service: what holds for one holds for the other."""

    def __init__(self, count_fruitless: CountFruitless) -> None:
        self._count_fruitless = count_fruitless
        self._is_serving = False
        self._watchers: set[asyncio.Event] = set()

    def set_serving(self, is_serving: bool) -> None:
        """What is told from now on, to those who watch too. Never waits."""
        self._is_serving = is_serving
        for changed in self._watchers:
            changed.set()

    def generic_handler(self) -> grpc.GenericRpcHandler:
        """What a gRPC server is given."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler(health.SERVICE_NAME, handlers)

    async def _check(self, _requests: object, context: Context) -> bytes:
        name = await self._asked(context)
        if name not in _NAMES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service: leave it empty for the broker as a whole")
        return self._answer(name)

    async def _watch(self, _requests: object, context: Context) -> None:
        name = await self._asked(context)
        if len(self._watchers) >= _WATCHERS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_WATCHERS_MAX} clients watch already: ask with Check")
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            told = b""
            while True:
                changed.clear()
                answer = self._answer(name)
                if answer != told:
                    await context.write(answer)
                    told = answer
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    async def _asked(self, context: Context) -> str:
        peer = str(context.peer())  # gRPC knows it no more once the call is over
        try:
            return await _asked_name(context)
        except BaseException:  # taken back, or no request
            self._count_fruitless(peer)
            raise

    def _answer(self, name: str) -> bytes:
        if name not in _NAMES:
            return _Status(status=_Status.SERVICE_UNKNOWN).SerializeToString()
        return _Status(status=_Status.SERVING if self._is_serving else _Status.NOT_SERVING).SerializeToString()


async def _asked_name(context: Context) -> str:
    """The service that is asked for; ends the call where nobody says so."""
    data: bytes | None = None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            data = await read_message(context)
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no request came within {_PATIENCE_S:.0f} s")
    try:
        if data is not None and len(data) <= _REQUEST_MAX_BYTES:
            return health_pb2.HealthCheckRequest.FromString(data).service
    except DecodeError:
        pass
    await context.abort(
        grpc.StatusCode.INVALID_ARGUMENT,
        malformed("HealthCheckRequest", "did not come, cannot be parsed, or is too large").message,
    )
    raise AssertionError("abort raises")
