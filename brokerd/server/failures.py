"""How failures look to clients: malformed requests, unsupported methods, and internal errors.

The only translation of errors to gRPC status codes. Internal details stay internal: a client gets an opaque sentence with a
number, and the log has the details under that number.
"""

from __future__ import annotations

import itertools
import logging
import secrets
from typing import TypeAlias

import grpc

from brokerd.errors import BrokerdError, ErrorCode, Fate, UnknownServerError, WireError
from brokerd.server.security.authenticator import UnauthenticatedError
from brokerd.server.security.topic_authorizer import ForbiddenError
from brokerd.wire.errors import to_trailer
from brokerd.wire.texts import plain_text

logger = logging.getLogger(__name__)

_RUN = secrets.token_hex(3)
_numbers = itertools.count(1)


class NotServedError(BrokerdError):
    """A method of the contract that this version does not support."""


class MalformedError(BrokerdError):
    """A request that no correct client sends; the text starts with the field's name."""


class StreamFencedError(BrokerdError):
    """A newer stream of the same producer instance has taken over."""


_OWN_STATUS_CODES = (
    (MalformedError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotServedError, grpc.StatusCode.UNIMPLEMENTED),
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
    """The status of a call that failed with an error raised on purpose: a code and text for any client, plus the error itself if
    it is in the table, so that retriable errors are retried."""
    if isinstance(error, WireError):
        error.message = plain_text(error.message)
        return _status_code(error), error.message, to_trailer(error)
    for kind, code in _OWN_STATUS_CODES:
        if isinstance(error, kind):
            return code, plain_text(error.message), ()
    return status_of(internal("a call", error))


def _status_code(error: WireError) -> grpc.StatusCode:
    code = _STATUS_CODES.get(error.code)
    if code is not None:
        return code
    return grpc.StatusCode.UNAVAILABLE if error.retriable else grpc.StatusCode.FAILED_PRECONDITION


def internal(where: str, error: Exception) -> UnknownServerError:
    """Logs an unexpected failure and returns the error that the client gets."""
    number = f"{_RUN}-{next(_numbers)}"
    logger.error("internal error %s in %s", number, where, exc_info=error)
    return UnknownServerError(f"internal error {number}: see the broker's log", fate=Fate.UNKNOWN)


def not_appended(error: WireError) -> WireError:
    """`error` for a request that was refused before anything was written; sets that fate unless it has one."""
    if error.fate is Fate.UNSPECIFIED:
        error.fate = Fate.NOT_APPENDED
    return error
