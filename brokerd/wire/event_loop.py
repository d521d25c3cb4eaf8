"""Adapts an event loop to the gRPC that shares its process.

One thread of gRPC collects completed operations for all loops, and whichever loop is awake passes each on to the loop that owns
it. So a loop must not be closed while gRPC has operations in progress on it: the hand-over would raise "Event loop is closed"
inside another loop, which logs it and postpones the rest of its collected operations. brokerd/client/io/connection.py ends the
operations of a channel; `settle` waits for the remaining ones.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

_SETTLE_TIMEOUT_S = 2.0  # gRPC ends a cancelled call within milliseconds; one that it never ends must not block a close


def ignore_poller_noise(loop: asyncio.AbstractEventLoop) -> None:
    """Ignores BlockingIOError from gRPC's poller. gRPC wakes every loop of a process through one socket; a loop that finds it
    already drained gets this error, which means nothing and would be logged thousands of times. Other errors are reported as
    usual, and an installed handler stays in place.
    """
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_handle_exception)


def _handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not (isinstance(context.get("exception"), BlockingIOError) and "PollerCompletionQueue" in repr(context.get("handle"))):
        loop.default_exception_handler(context)


async def settle() -> None:
    """Waits until gRPC's own tasks on the running loop have finished; each of them waits for the end of a stream. Call it after
    every channel of the loop is closed, as the last step before closing the loop."""
    tasks = [task for task in asyncio.all_tasks() if is_grpc_task(task)]
    if tasks:
        await asyncio.wait(tasks, timeout=_SETTLE_TIMEOUT_S)


def is_grpc_task(task: asyncio.Task[Any]) -> bool:
    """True if the task runs compiled code, as gRPC's do. If it were cancelled, it would miss the operations that gRPC completes
    for it."""
    return not inspect.iscoroutine(task.get_coro())
