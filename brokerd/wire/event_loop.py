"""What gRPC needs of an event loop that it shares a process with."""

from __future__ import annotations

import asyncio
from typing import Any


def ignore_poller_noise(loop: asyncio.AbstractEventLoop) -> None:
    """gRPC wakes every loop of a process through one socket; a loop that finds it already read gets BlockingIOError, which
    means nothing and would be logged thousands of times. All else is reported as usual; a handler that is there stays.
    """
    if loop.get_exception_handler() is None:
        loop.set_exception_handler(_handle_exception)


def _handle_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not (isinstance(context.get("exception"), BlockingIOError) and "PollerCompletionQueue" in repr(context.get("handle"))):
        loop.default_exception_handler(context)
