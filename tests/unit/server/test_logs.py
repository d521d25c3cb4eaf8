"""Log lines: one per event in either format, whatever a message or an exception contains."""

from __future__ import annotations

import json
import logging
import sys

import grpc
import pytest
from google.protobuf.message import DecodeError

from brokerd.server.logs import GRPC, JsonFormatter, TextFormatter, quiet_grpc

HOSTILE = 'a\nERROR forged\r\x1b[31mred\x00\x85\u2028"quoted"'


def record(message: str, *args: object, error: Exception | None = None) -> logging.LogRecord:
    exc_info = None
    if error is not None:
        try:
            raise error
        except Exception:
            exc_info = sys.exc_info()
    return logging.LogRecord("brokerd.server", logging.WARNING, __file__, 1, message, args, exc_info)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@pytest.mark.parametrize("error", [None, ValueError(HOSTILE)])
def test_an_event_is_one_line_without_control_characters(formatter: logging.Formatter, error: Exception | None) -> None:
    line = formatter.format(record("client %s", HOSTILE, error=error))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_text_says_when_how_bad_where_and_what() -> None:
    line = TextFormatter().format(record("it is %s", "so", error=ValueError("why")))
    assert " WARNING brokerd.server: it is so: Traceback (most recent call last):\\n" in line
    assert line.endswith("ValueError: why")


def test_json_is_an_object_that_gives_the_message_back() -> None:
    event = json.loads(JsonFormatter().format(record("client %s", HOSTILE, error=ValueError("why"))))
    assert event["message"] == f"client {HOSTILE}"
    assert event["level"] == "warning"
    assert event["logger"] == "brokerd.server"
    assert event["time"].endswith("+00:00")
    assert event["exception"].endswith("ValueError: why")
    assert set(json.loads(JsonFormatter().format(record("x")))) == {"time", "level", "logger", "message"}


def test_what_a_stranger_can_cause_is_no_line_of_grpc_and_an_error_is_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger(GRPC)
    monkeypatch.setattr(logger, "filters", [])
    quiet_grpc()
    quiet_grpc()
    for error in (grpc.aio.InternalError("execute_batch"), DecodeError("no message"), ValueError("ours")):
        try:
            raise error
        except Exception:
            logger.exception("raised by a method")
    logger.warning("something else")

    assert [(record.message, bool(record.exc_info)) for record in caplog.records if record.name == GRPC] == [
        ("raised by a method", True),
        ("something else", False),
    ]
    assert len(logger.filters) == 1
