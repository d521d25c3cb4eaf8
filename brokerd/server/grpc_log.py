"""gRPC's own log of a server: without what is nobody's fault here.

Where a client is gone while its response or its refusal is written, gRPC logs an error with its traceback, several kilobytes for
each call: anybody could fill the log with them, without a token.
"""

from __future__ import annotations

import logging

import grpc

LOGGER = "grpc._cython.cygrpc"


def leave_out_gone_clients() -> None:
    """From now on, in this process; more than once is as once."""
    logging.getLogger(LOGGER).addFilter(is_worth_a_line)


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """False for a call that ended only because its client is gone."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, grpc.aio.InternalError)
