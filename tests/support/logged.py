"""Messages logged by the subject of a test. Other threads of the process, even gRPC's, may log as well."""

from __future__ import annotations

import pytest


def messages_of(caplog: pytest.LogCaptureFixture, *loggers: str) -> list[str]:
    """The messages of these loggers and their children."""
    beginnings = tuple(f"{logger}." for logger in loggers)
    return [record.getMessage() for record in caplog.records if f"{record.name}.".startswith(beginnings)]
