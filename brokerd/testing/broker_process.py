"""The broker's process: the daemon of `brokerd start`, with faults in its files and calls, controlled by its keeper over a socket.

Request faults wrap the methods of the service, inside authentication. BEFORE is when the call (unary) or its message (Produce,
Fetch) has arrived, AFTER when the response is about to be sent. A lost response ends its call as a lost connection does: the client
cannot tell whether the request was handled.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from brokerd import wire as wire  # before gRPC: see brokerd.wire

# isort: split
import grpc

from brokerd.allocator import keep_freed_memory
from brokerd.config.broker import BrokerConfig
from brokerd.errors import BrokerdError
from brokerd.server.daemon import Daemon
from brokerd.server.handlers.produce import decode
from brokerd.server.logs import set_up_logging
from brokerd.storage.files import RealFiles
from brokerd.testing.channel import Channel
from brokerd.testing.faults import AFTER, BEFORE, KILL, LOSE, Armed, FailingDisk, FailingFiles, FaultPlan
from brokerd.wire.methods import SERVICE

_PARTITIONS_MAX = 1_000_000
Details = grpc.HandlerCallDetails
Continuation = Callable[[Details], Awaitable[Any]]


def serve(keeper: Channel, config: BrokerConfig, armed: Sequence[dict[str, Any]], disk: FailingDisk) -> None:
    """Runs the broker until the keeper stops it. `armed`: the pending request faults."""
    set_up_logging(level=config.log_level, log_format=config.log_format)
    keep_freed_memory()
    try:
        asyncio.run(_Process(keeper, armed, disk).run(config))
    except BrokerdError as error:
        keeper.send({"failed": error.message})


class _Process:
    def __init__(self, keeper: Channel, armed: Sequence[dict[str, Any]], disk: FailingDisk) -> None:
        self._keeper = keeper
        self._plan = FaultPlan(Armed(**one) for one in armed)
        self._disk = disk
        self._stop = asyncio.Event()

    async def run(self, config: BrokerConfig) -> None:
        """Runs the daemon from start to stop. Raises BrokerdError if it cannot start."""
        files = FailingFiles(RealFiles(config.data_dir), self._disk)
        daemon = Daemon(config, files=files, interceptors=(WatchedCalls(self._plan, self._happen),), waits=False)
        await daemon.start()
        asyncio.get_running_loop().add_reader(self._keeper.socket, self._hear)
        self._keeper.send({"ready": daemon.port})
        await self._stop.wait()
        await daemon.stop()

    def _hear(self) -> None:
        try:
            head = self._keeper.receive().head
        except EOFError:
            os._exit(1)
        if head["do"] == "stop":
            asyncio.get_running_loop().remove_reader(self._keeper.socket)
            self._stop.set()
            return
        if head["do"] == "arm":
            self._plan.arm(Armed(**head["fault"]))
        elif head["do"] == "disk":
            self._disk.fail(head["how"])
        self._keeper.send({"done": True})

    def _happen(self, fault: Armed) -> None:
        """Reports to the keeper that a fault has counted a request, then kills this process if the fault is a due kill."""
        self._keeper.send({"number": fault.number, "left": fault.left})
        if fault.kind == KILL and not fault.left:
            os.kill(os.getpid(), signal.SIGKILL)


class WatchedCalls(grpc.aio.ServerInterceptor):
    """Counts requests and triggers faults. `happen(fault)` is called at each count, and carries out kills."""

    def __init__(self, plan: FaultPlan, happen: Callable[[Armed], None]) -> None:
        self.plan = plan
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
        """Counts a request; True if its response must be dropped."""
        is_lost = False
        for fault in self.plan.meet(name, moment):
            self._happen(fault)
            is_lost |= fault.kind == LOSE and not fault.left
        return is_lost

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
    """A stream's context that counts messages; everything else is gRPC's own."""

    def __init__(self, calls: WatchedCalls, name: str, context: Any) -> None:
        self._calls = calls
        self._name = name
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        """The client's next message."""
        data = await self._context.read()
        if isinstance(data, bytes) and self._calls.plan.watches(self._name, BEFORE) and _is_request(self._name, data):
            self._calls.meet(self._name, BEFORE)
        return data

    async def write(self, data: bytes) -> None:
        """Sends a response."""
        if self._calls.meet(self._name, AFTER):
            await lose(self._context)
        await self._context.write(data)


def _is_request(name: str, data: bytes) -> bool:
    """False for a producer's hello, a Produce message without partitions."""
    return name != "Produce" or bool(decode(data, partitions_max=_PARTITIONS_MAX).partitions)


async def lose(context: Any) -> None:
    """Aborts a call with UNAVAILABLE, as a lost connection does. Raises gRPC's abort error."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the response was lost, as the test ordered")
