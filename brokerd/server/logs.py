"""The format of the daemon's log lines: one line per event, as text or as a JSON object. Other modules decide what is logged.

Text from clients may appear in messages and exceptions, so control characters are always escaped: no client can forge a line, or
change the terminal's colour.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

import grpc
from google.protobuf.message import DecodeError

from brokerd.wire.texts import one_line

GRPC = "grpc._cython.cygrpc"  # the logger of gRPC's server
_TEXT_TIME = "%Y-%m-%d %H:%M:%S"


def set_up_logging(*, level: str, log_format: str) -> None:
    """Sends all log lines to standard error, in the format of the setting log.format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def quiet_grpc() -> None:
    """Filters log lines of gRPC that unauthenticated callers can cause: kilobytes of traceback per call would fill the disk.
    Idempotent."""
    logging.getLogger(GRPC).addFilter(is_worth_a_line)


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """False for a header that is not UTF-8, a request that cannot be parsed, or a call whose client is gone."""
    error = record.exc_info[1] if record.exc_info else None
    return not str(record.msg).startswith("Invalid encoding on") and not isinstance(error, (grpc.aio.InternalError, DecodeError))


class TextFormatter(logging.Formatter):
    """Time, level, logger, message; a traceback follows on the same line, with its line ends written as \\n."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging."""
        when = f"{self.formatTime(record, _TEXT_TIME)},{int(record.msecs):03d}"
        text = f"{when} {record.levelname} {record.name}: {record.getMessage()}"
        traceback = _traceback(self, record)
        return one_line(f"{text}: {traceback}" if traceback else text)


class JsonFormatter(logging.Formatter):
    """One object: time (UTC), level, logger, message, and the exception, if any."""

    def format(self, record: logging.LogRecord) -> str:
        """See logging."""
        event = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        traceback = _traceback(self, record)
        if traceback:
            event["exception"] = traceback
        return json.dumps(event)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] is not None else ""
