"""Ceiling of the clients: bare gRPC. `python -m benchmarks.floor` is a server that receives messages (Take), sends them (Give), or
writes and fdatasyncs each before its response (Sync), as raw bytes on bidirectional streams with the broker's channel arguments.
The functions below are its client. Must not contain brokerd logic.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc

from brokerd.event_loop import settle
from brokerd.wire.channel import CHANNEL_ARGUMENTS, SERVER_ARGUMENTS

MESSAGE_BYTES = 1_048_576
IN_FLIGHT = 8
T = TypeVar("T")
_TAKE, _GIVE, _SYNC = "/bench/Take", "/bench/Give", "/bench/Sync"


async def _take(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    async for _ in messages:
        yield b"ok"


async def _give(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    message = os.urandom(MESSAGE_BYTES)
    async for asked in messages:
        yield message[: int(asked)]


async def _sync(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryFile(dir=sys.argv[1] if len(sys.argv) > 1 else None) as file:
        async for message in messages:
            os.write(file.fileno(), message)
            await loop.run_in_executor(None, os.fdatasync, file.fileno())
            yield b"ok"


async def serve() -> None:
    """Serves until the process is terminated or interrupted."""
    handlers = {"Take": _take, "Give": _give, "Sync": _sync}
    server = grpc.aio.server(options=SERVER_ARGUMENTS)
    methods: dict[str, Any] = {name: grpc.stream_stream_rpc_method_handler(handler) for name, handler in handlers.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"floor ready on 127.0.0.1:{port}", flush=True)
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(0)


def take_seconds(address: str, messages: Sequence[bytes]) -> float:
    """Seconds to send all messages and receive all responses, with IN_FLIGHT unanswered."""

    async def run(stream: Any) -> float:
        start = time.perf_counter()
        waiting = 0
        for message in messages:
            await stream.write(message)
            waiting += 1
            if waiting == IN_FLIGHT:
                await stream.read()
                waiting -= 1
        for _ in range(waiting):
            await stream.read()
        return time.perf_counter() - start

    return _loop().run_until_complete(_on_stream(address, _TAKE, run))


def give_seconds(address: str, total_bytes: int) -> float:
    """Seconds to receive the bytes; each message is requested before the previous one arrives."""

    async def run(stream: Any) -> float:
        start = time.perf_counter()
        sizes = [MESSAGE_BYTES] * (total_bytes // MESSAGE_BYTES) + [total_bytes % MESSAGE_BYTES]
        ahead = 4
        for size in sizes[:ahead]:
            await stream.write(b"%d" % size)
        for number in range(len(sizes)):
            await stream.read()
            if number + ahead < len(sizes):
                await stream.write(b"%d" % sizes[number + ahead])
        return time.perf_counter() - start

    return _loop().run_until_complete(_on_stream(address, _GIVE, run))


def sync_latencies(address: str, message: bytes, count: int) -> list[float]:
    """The seconds of each of `count` round trips that include an fdatasync."""

    async def run(stream: Any) -> list[float]:
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            await stream.write(message)
            await stream.read()
            taken.append(time.perf_counter() - start)
        return taken

    return _loop().run_until_complete(_on_stream(address, _SYNC, run))


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One event loop for all calls: grpc.aio does not cope well with a loop per call."""
    loop = asyncio.new_event_loop()
    atexit.register(loop.close)
    return loop


async def _on_stream(address: str, method: str, run: Callable[[Any], Awaitable[T]]) -> T:
    async with grpc.aio.insecure_channel(address, options=CHANNEL_ARGUMENTS) as channel:
        stream: Any = channel.stream_stream(method)()
        await stream.wait_for_connection()
        result = await run(stream)
        await stream.done_writing()
    await settle()  # lets the stream's own task end: the loop runs only during measurements
    return result


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve())
