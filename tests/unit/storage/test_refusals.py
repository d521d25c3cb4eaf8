"""Refusals logs once when the disk begins to refuse appends, and once when it accepts them again."""

from __future__ import annotations

import errno
import logging

import pytest

from brokerd.storage.refusals import Refusals
from tests.support.clock import ManualClock

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_each_end_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    clock.advance(1_000)
    refusals = Refusals("/data", clock)
    refusals.worked()
    for _ in range(20):
        refusals.refused(FULL)
        clock.advance(1_000)
        refusals.worked()  # a full disk still accepts a few bytes
        assert refusals.since_ms == 1_000
        assert refusals.is_lasting == (clock.monotonic_ms() >= 7_000), "refused again after five seconds"
    clock.advance(5_000)
    for _ in range(2):
        refusals.worked()
    assert refusals.since_ms is None
    assert not refusals.is_lasting
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("ERROR", "data.dir /data: the disk refuses (No space left on device): make room, or repair it"),
        ("INFO", "data.dir /data: the disk takes appends again"),
    ]
    refusals.refused(FULL)
    assert len(caplog.records) == 3
    clock.advance(60_000)
    assert not refusals.is_lasting, "it was refused once, and has not been asked since"
