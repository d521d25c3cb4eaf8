"""Event loops for processes that use gRPC.

One gRPC thread collects the completed operations of all event loops of a process, and any loop that is awake hands each operation
to the loop that owns it. gRPC never forgets a loop: an operation may complete after its loop has closed, and an ordinary loop then
raises "Event loop is closed" inside another loop, which logs it. brokerd/client/broker_client.py ends a channel's operations,
`settle` waits for the remaining ones, and GrpcLoop handles any that complete even later.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")
_SETTLE_TIMEOUT_S = 2.0  # gRPC ends a cancelled call within milliseconds; a call that never ends must not block close
_HAND_OVER = "grpc._cython.cygrpc"  # the module of gRPC's callbacks that hand an operation to its loop


class GrpcLoop(asyncio.SelectorEventLoop):
    """An event loop that uses gRPC and may be closed. All of brokerd's event loops are GrpcLoops."""

    def call_soon_threadsafe(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        """See asyncio. On a closed loop, completes a gRPC operation at once to free its memory; its task was cancelled."""
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not (self.is_closed() and getattr(callback, "__module__", None) == _HAND_OVER):
                raise
            callback(*args)
            return asyncio.Handle(callback, args, self, context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See asyncio. Ignores the error of handing an operation to a closed loop, which may be one of the application's."""
        is_of_poller = "PollerCompletionQueue" in repr(context.get("handle"))
        if not (is_of_poller and str(context.get("exception")) == "Event loop is closed"):
            super().call_exception_handler(context)


def cancellations() -> int:
    """How often the current task was cancelled."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def end_if_cancelled(*, since: int = 0) -> None:
    """Raises CancelledError in a task that is being cancelled. If a stream ends at the moment of a cancellation, gRPC raises the
    stream's error alone: a task that goes on after such an error calls this first, or it would miss its cancellation.
    `since`: the number of earlier cancellations, of a task that cleans up after them."""
    if cancellations() > since:
        raise asyncio.CancelledError


async def settle() -> None:
    """Waits for gRPC's own tasks on the running loop, each of which waits for the end of a stream. Call it after closing all
    channels of the loop, as the last step before closing the loop."""
    tasks = [task for task in asyncio.all_tasks() if is_grpc_task(task)]
    if tasks:
        await asyncio.wait(tasks, timeout=_SETTLE_TIMEOUT_S)


def is_grpc_task(task: asyncio.Task[Any]) -> bool:
    """True if the task runs compiled code, as gRPC's tasks do. Once cancelled, such a task misses operations completed for it."""
    return not inspect.iscoroutine(task.get_coro())
