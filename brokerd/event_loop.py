"""Event loops of a process that has gRPC in it.

One thread of gRPC collects completed operations for all loops of a process, and whichever loop is awake passes each on to the loop
that owns it. gRPC never forgets a loop: an operation may complete after its loop has closed, and an ordinary loop then raises
"Event loop is closed" inside another one, which logs it. brokerd/client/io/connection.py ends the operations of a channel, and
`settle` waits for the remaining ones; GrpcLoop takes what comes later all the same.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple

Ts = TypeVarTuple("Ts")
_SETTLE_TIMEOUT_S = 2.0  # gRPC ends a cancelled call within milliseconds; one that it never ends must not block a close
_HAND_OVER = "grpc._cython.cygrpc"  # the module of the callbacks by which another loop hands an operation over


class GrpcLoop(asyncio.SelectorEventLoop):
    """An event loop that uses gRPC and may be closed: every one of ours is such a loop."""

    def call_soon_threadsafe(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        """See asyncio. In a closed loop an operation of gRPC is completed at once: that frees its memory, and its task has been
        cancelled."""
        try:
            return super().call_soon_threadsafe(callback, *args, context=context)
        except RuntimeError:
            if not (self.is_closed() and getattr(callback, "__module__", None) == _HAND_OVER):
                raise
            callback(*args)
            return asyncio.Handle(callback, args, self, context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """See asyncio. Says nothing when the loop that has closed is one of the application's, which uses gRPC too."""
        is_of_poller = "PollerCompletionQueue" in repr(context.get("handle"))
        if not (is_of_poller and str(context.get("exception")) == "Event loop is closed"):
            super().call_exception_handler(context)


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
