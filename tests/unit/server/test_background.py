"""A periodic job that keeps failing does not flood the log."""

from __future__ import annotations

import asyncio
import errno

import pytest

from brokerd.server import background
from tests.support.copies import until


@pytest.mark.parametrize(("again_s", "lines"), [(60.0, 2), (0.0, 6)])
async def test_a_problem_is_said_when_it_is_new_or_lasts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, again_s: float, lines: int
) -> None:
    monkeypatch.setattr(background, "_SAID_AGAIN_S", again_s)
    errors = [*[OSError(errno.ENOSPC, "No space left on device")] * 3, *[OSError(errno.EIO, "Input/output error")] * 3]

    async def job() -> None:
        if errors:
            raise errors.pop(0)

    running = asyncio.create_task(background._repeat("checkpoint", "/data", 0, job))
    await until(lambda: not errors)
    running.cancel()
    said = [record.message for record in caplog.records]
    assert said[0] == "checkpoint: No space left on device, in data.dir /data; retrying at each interval"
    assert len(said) == lines
