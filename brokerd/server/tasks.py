"""Tasks that nobody awaits: retrieves their exceptions, which asyncio would otherwise report as never retrieved."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from brokerd.server.failures import internal

# The client is gone, or its stream was ended meanwhile; the code that reads the stream reports that.
ENDED = (grpc.aio.BaseError, asyncio.InvalidStateError)


def look_at_end(task: asyncio.Task[Any], what: str) -> None:
    """Logs the task's exception once it is over, unless its client is gone."""
    task.add_done_callback(lambda done: _look(done, what))


def forget_end(task: asyncio.Task[Any]) -> None:
    """Ignores the task's exception: it matters only to a caller who may have stopped waiting."""
    task.add_done_callback(_error_of)


def _look(task: asyncio.Task[Any], what: str) -> None:
    error = _error_of(task)
    if isinstance(error, Exception) and not isinstance(error, ENDED):
        internal(what, error)


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
