"""A broker on files in memory and a raw client of it; nodes of a cluster with short retries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.server.cluster import controller, directory, membership
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.raw_client import LONG_MS, RawClient


@pytest.fixture
def files() -> MemoryFiles:
    """The broker's data directory."""
    return MemoryFiles()


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of the broker; a test overrides them with `@pytest.mark.parametrize("settings", [{...}], indirect=True)`."""
    given: dict[str, Any] = getattr(request, "param", {})
    return given


@pytest.fixture
def running(tmp_path: Path, files: MemoryFiles, settings: dict[str, Any]) -> Iterator[RunningDaemon]:
    """The broker."""
    with running_daemon(tmp_path / "data", files=files, **{"fetch_max_wait_ms": LONG_MS, **settings}) as daemon:
        yield daemon


@pytest.fixture
def client(running: RunningDaemon) -> Iterator[RawClient]:
    """A client of the broker."""
    with RawClient(running.address) as raw_client:
        yield raw_client


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes nodes of a cluster retry soon after etcd refuses or does not respond."""
    for module in (membership, controller, directory):
        assert module._RETRY_S == 1
        monkeypatch.setattr(module, "_RETRY_S", 0.02)
