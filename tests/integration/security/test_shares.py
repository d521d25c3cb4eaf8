"""Goal: connections and streams that one principal keeps open do not deprive others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.raw_http2 import RawHttp2
from brokerd.server import service
from brokerd.wire.methods import UNARY
from tests.integration.security.conftest import with_token
from tests.support.daemon import running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import TOKENS
from tests.support.raw_client import values_batch
from tests.support.wait import DEADLINE_S, wait_until

CALLS_MAX = 10


def test_calls_that_go_no_further_take_no_place_of_others(tmp_path: Path, auth_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_HALF_OPEN_MAX", CALLS_MAX)
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file)) as running,
        closing(RawHttp2(running.daemon.port, token=TOKENS["boss"])) as many,
        with_token(running.address, TOKENS["reader"]) as few,
    ):
        calls = [many.call(UNARY["Metadata"].path) for _ in range(CALLS_MAX + 1)]
        assert [many.status_of(call, DEADLINE_S) for call in calls[8:]] == ["8"] * 3, "RESOURCE_EXHAUSTED"
        broker_service = running.daemon._service
        assert broker_service is not None
        wait_until(lambda: broker_service._half_open.total == 8)
        assert few.metadata("clicks").topics


def test_streams_that_stay_open_take_no_place_of_others(tmp_path: Path, auth_file: Path) -> None:
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), auth_file=str(auth_file), max_streams=5) as running,
        with_token(running.address, TOKENS["boss"]) as many,
        with_token(running.address, TOKENS["reader"]) as few,
    ):
        (tp,) = many.create_topic("events-1")
        streams = [many.fetcher() for _ in range(4)]
        for stream in streams:
            stream.fetch({tp: 0})
        refused = many.producer()
        refused.post([(tp, values_batch(tp))])
        assert "4 of them of 'boss', and max.streams" in refused.status()[1]
        assert few.fetcher().fetch({tp: 0})[0].results[0].high_watermark == 0
