"""Translates the errors of brokerd/errors.py to and from protobuf; no other module does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from google.protobuf.message import DecodeError

from brokerd.errors import ERROR_CLASSES, ErrorCode, ErrorFields, Fate, WireError, error_from_code
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import error_pb2

# A call that fails as a whole has a gRPC status code, which carries less than an error. The error itself travels in the trailing
# metadata under this key.
TRAILER_KEY = "brokerd-error-bin"
# The longest delay that one response may impose on a client.
RETRY_AFTER_MAX_MS = 30_000
_NUMBERS = [name for name in ErrorFields.__annotations__ if name != "fate"]


def to_proto(error: WireError) -> error_pb2.Error:
    """An error in its wire form."""
    return error_pb2.Error(
        code=cast("error_pb2.ErrorCode", int(error.code)),
        message=plain_text(error.message),
        retriable=error.retriable,
        fate=cast("error_pb2.Fate", int(error.fate)),
        **{name: getattr(error, name) for name in _NUMBERS},
    )


def from_proto(error: error_pb2.Error) -> WireError:
    """An error from its wire form, with its text made safe to print. An unknown code becomes the general error of its range, or a
    retriable one if the broker marks it so."""
    fate = Fate(error.fate) if error.fate in Fate._value2member_map_ else Fate.UNKNOWN
    code: int = error.code
    if code not in ERROR_CLASSES and error.retriable and not error_from_code(code, "").retriable:
        code = ErrorCode.NOT_READY
    found = error_from_code(code, plain_text(error.message), fate=fate)
    for name in _NUMBERS:
        setattr(found, name, getattr(error, name))
    # Bounded, since the peer chooses the value.
    found.retry_after_ms = min(max(0, error.retry_after_ms), RETRY_AFTER_MAX_MS)
    return found


def to_trailer(error: WireError) -> tuple[tuple[str, bytes], ...]:
    """An error as the trailing metadata of the call that it ends."""
    return ((TRAILER_KEY, to_proto(error).SerializeToString()),)


def from_trailer(metadata: Iterable[Any] | None) -> WireError | None:
    """The error in the trailing metadata of a failed call; None if there is none or it cannot be read."""
    for key, value in metadata or ():
        if key == TRAILER_KEY and isinstance(value, bytes):
            try:
                return from_proto(error_pb2.Error.FromString(value))
            except DecodeError:
                return None
    return None
