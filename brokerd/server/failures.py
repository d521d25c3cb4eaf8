"""How failures look from outside: malformed requests, what is not served, and what should not have happened.

The translation of errors to gRPC status codes is here and nowhere else. What happened inside stays inside: a client gets
an opaque sentence and a number, the log has the rest under that number.
"""

from __future__ import annotations

import itertools
import logging
import secrets

import grpc

from brokerd.errors import (
    BrokerdError,
    Fate,
    InvalidRequestError,
    NotReadyError,
    ResourceExhaustedError,
    UnknownServerError,
    WireError,
)
from brokerd.server.security.authenticator import ForbiddenError, UnauthenticatedError

logger = logging.getLogger(__name__)

_RUN = secrets.token_hex(3)
_numbers = itertools.count(1)


class NotServedError(BrokerdError):
    """A method of the contract that this version does not serve."""


class MalformedError(BrokerdError):
    """A request that no correct client sends; the text begins with the field's name."""


class StreamFencedError(BrokerdError):
    """A newer stream of the same producer instance has taken over."""


def malformed(field: str, problem: str) -> MalformedError:
    """The error for a field that is out of its contract."""
    return MalformedError(f"{field}: {problem}")


def status_of(error: BrokerdError) -> tuple[grpc.StatusCode, str]:
    """The status that a call ends with for an error raised on purpose."""
    if isinstance(error, (MalformedError, InvalidRequestError)):
        return grpc.StatusCode.INVALID_ARGUMENT, error.message
    if isinstance(error, NotServedError):
        return grpc.StatusCode.UNIMPLEMENTED, error.message
    if isinstance(error, StreamFencedError):
        return grpc.StatusCode.ABORTED, error.message
    if isinstance(error, UnauthenticatedError):
        return grpc.StatusCode.UNAUTHENTICATED, error.message
    if isinstance(error, ForbiddenError):
        return grpc.StatusCode.PERMISSION_DENIED, error.message
    if isinstance(error, ResourceExhaustedError):
        return grpc.StatusCode.RESOURCE_EXHAUSTED, error.message
    if isinstance(error, NotReadyError):
        return grpc.StatusCode.UNAVAILABLE, error.message
    return grpc.StatusCode.FAILED_PRECONDITION, error.message


def internal(where: str, error: Exception) -> UnknownServerError:
    """Writes an unexpected failure to the log and returns what a client may know of it."""
    number = f"{_RUN}-{next(_numbers)}"
    logger.error("internal error %s in %s", number, where, exc_info=error)
    return UnknownServerError(f"internal error {number}: the broker's log says more", fate=Fate.UNKNOWN)


def not_appended(error: WireError) -> WireError:
    """`error` of a request that was refused before anything was written, with that fate unless it has one."""
    if error.fate is Fate.UNSPECIFIED:
        error.fate = Fate.NOT_APPENDED
    return error
