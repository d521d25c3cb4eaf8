"""The one translation between errors.py and the wire."""

from __future__ import annotations

from typing import cast

from brokerd.errors import Fate, WireError, error_from_code
from brokerd.wire.v1 import error_pb2


def to_proto(error: WireError) -> error_pb2.Error:
    """An error as it travels."""
    return error_pb2.Error(
        code=cast("error_pb2.ErrorCode", int(error.code)),
        message=error.message,
        retriable=error.retriable,
        fate=cast("error_pb2.Fate", int(error.fate)),
        retry_after_ms=error.retry_after_ms,
        current_leader=error.current_leader,
        current_leader_epoch=error.current_leader_epoch,
        log_start_offset=error.log_start_offset,
        expected_sequence=error.expected_sequence,
        current_epoch=error.current_epoch,
    )


def from_proto(error: error_pb2.Error) -> WireError:
    """An error as it came; a code unknown here becomes the general error of its range."""
    fate = Fate(error.fate) if error.fate in Fate._value2member_map_ else Fate.UNKNOWN
    return error_from_code(
        error.code,
        error.message,
        fate=fate,
        retry_after_ms=error.retry_after_ms,
        current_leader=error.current_leader,
        current_leader_epoch=error.current_leader_epoch,
        log_start_offset=error.log_start_offset,
        expected_sequence=error.expected_sequence,
        current_epoch=error.current_epoch,
    )
