"""Filtered log lines of gRPC's server: clients that go are no errors, all else is."""

from __future__ import annotations

import logging

import grpc
import pytest

from brokerd.server.grpc_log import LOGGER, leave_out_gone_clients


def test_a_client_that_is_gone_is_no_line_and_an_error_is_one(caplog: pytest.LogCaptureFixture) -> None:
    leave_out_gone_clients()
    leave_out_gone_clients()
    logger = logging.getLogger(LOGGER)
    for error in (grpc.aio.InternalError("execute_batch"), ValueError("ours")):
        try:
            raise error
        except Exception:
            logger.exception("raised by a method")
    logger.warning("something else")

    assert [(record.message, bool(record.exc_info)) for record in caplog.records] == [
        ("raised by a method", True),
        ("something else", False),
    ]
    assert len(logger.filters) == 1
