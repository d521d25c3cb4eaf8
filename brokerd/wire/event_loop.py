"""What gRPC needs of an event loop that it shares a process with.

One thread of gRPC collects what was completed for all loops, and whichever loop is awake hands it to the loop that it
belongs to. So a loop must not be closed before all that gRPC has under way on it is over: the hand-over would raise
"Event loop is closed" inside another loop, which prints it and leaves the rest of what it had collected for its next turn.
What belongs to a channel is ended by brokerd/client/io/connection.py, what is left then is waited for with `settle`.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

_SETTLE_TIMEOUT_S = 2.0  # gRPC ends a cancelled call within milliseconds; what it never ends must not hold up a close


def ignore_poller_noise(loop: asyncio.AbstractEventLoop) -> None:
    """gRPC wakes every loop of a process through one socket; a loop that finds it already read gets BlockingIOError, which
    means nothing and would be logged thousands of times. All else is reported as usual; a handler that is there stays.
    """
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_handle_exception)


def _handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not (isinstance(context.get("exception"), BlockingIOError) and "PollerCompletionQueue" in repr(context.get("handle"))):
        loop.default_exception_handler(context)


async def settle() -> None:
    """Waits until gRPC's own tasks on the running loop are over, each of which waits for the end of a stream. To be called
    when every channel of the loop is closed, last before the loop is."""
    tasks = [task for task in asyncio.all_tasks() if is_grpc_task(task)]
    if tasks:
        await asyncio.wait(tasks, timeout=_SETTLE_TIMEOUT_S)


def is_grpc_task(task: asyncio.Task[Any]) -> bool:
    """True if the task runs compiled code, as gRPC's do. Cancelled, it would no longer see what gRPC completes for it."""
    return not inspect.iscoroutine(task.get_coro())
