"""Translates errors to gRPC status codes; no other module does. For an internal error, the client gets a number, and the broker's
log has the details under that number.

Also collects exceptions of tasks that are not awaited, which asyncio would report as never retrieved.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import Coroutine, Iterator
from typing import Any, TypeAlias, TypeVar

import grpc

from brokerd.errors import BrokerdError, ErrorCode, Fate, UnknownServerError, WireError
from brokerd.server.security.authenticator import UnauthenticatedError
from brokerd.server.security.topic_authorizer import ForbiddenError
from brokerd.wire.errors import to_proto, to_trailer
from brokerd.wire.texts import plain_text

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The client is gone, or its stream was ended; the code that reads the stream reports that.
ENDED = (grpc.aio.BaseError, asyncio.InvalidStateError)
_RUN = secrets.token_hex(3)
_numbers = itertools.count(1)


class MalformedError(BrokerdError):
    """A request that violates the contract, which no correct client sends; the text starts with the field's name."""


class StreamFencedError(BrokerdError):
    """A newer stream of the same producer instance has taken over."""


_OWN_STATUS_CODES = (
    (MalformedError, grpc.StatusCode.INVALID_ARGUMENT),
    (StreamFencedError, grpc.StatusCode.ABORTED),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (ForbiddenError, grpc.StatusCode.PERMISSION_DENIED),
)
_STATUS_CODES = {
    ErrorCode.UNKNOWN_SERVER_ERROR: grpc.StatusCode.INTERNAL,
    ErrorCode.INVALID_REQUEST: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorCode.RESOURCE_EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def malformed(field: str, problem: str) -> MalformedError:
    """The error for a field that violates its contract."""
    return MalformedError(f"{field}: {problem}")


Trailer: TypeAlias = tuple[tuple[str, bytes], ...]


def status_of(error: BrokerdError) -> tuple[grpc.StatusCode, str, Trailer]:
    """The status of a call that failed with an error raised on purpose: a code and text for any client, and as trailing metadata
    the WireError itself, so that clients retry retriable errors."""
    if isinstance(error, WireError):
        error.message = plain_text(error.message)
        others = grpc.StatusCode.UNAVAILABLE if error.retriable else grpc.StatusCode.FAILED_PRECONDITION
        return _STATUS_CODES.get(error.code, others), error.message, to_trailer(error)
    for kind, code in _OWN_STATUS_CODES:
        if isinstance(error, kind):
            return code, plain_text(error.message), ()
    return status_of(internal("a call", error))


def internal(where: object, error: Exception) -> UnknownServerError:
    """Logs an unexpected failure and returns the error that the client gets."""
    number = f"{_RUN}-{next(_numbers)}"
    logger.error("internal error %s in %s", number, where, exc_info=error)
    return UnknownServerError(f"internal error {number}: see the broker's log", fate=Fate.UNKNOWN)


@contextlib.contextmanager
def fails_with(result: Any, what: object) -> Iterator[None]:
    """Sets `result.error` if the body fails, so that the rest of the response can be filled. `what` names the part in the log."""
    try:
        yield
    except WireError as error:
        result.error.CopyFrom(to_proto(error))
    except Exception as error:
        result.error.CopyFrom(to_proto(internal(what, error)))


def not_appended(error: WireError) -> WireError:
    """Sets the fate NOT_APPENDED on the error of a request refused before any write, unless it has a fate."""
    if error.fate is Fate.UNSPECIFIED:
        error.fate = Fate.NOT_APPENDED
    return error


def look_at_end(task: asyncio.Task[Any], what: str) -> None:
    """Logs the task's exception once it ends, unless its client is gone."""

    def look(_task: object) -> None:
        error = _error_of(task)
        if isinstance(error, Exception) and not isinstance(error, ENDED):
            internal(what, error)

    task.add_done_callback(look)


async def to_its_end(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]] | None = None) -> T:
    """Runs `work` to its end, even if the caller stops waiting. Returns or raises what it does. `tasks` holds the running task."""
    task = asyncio.create_task(work)
    task.add_done_callback(_error_of)  # retrieves the exception: the caller may have stopped waiting
    if tasks is not None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    return await asyncio.shield(task)


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()
