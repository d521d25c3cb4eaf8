"""One pipeline with its own broker for each test, and a reader that polls its target throughout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.exactly_once.pipeline import Pipeline
from tests.spark.pipelines import flights
from tests.support.daemon import DaemonProcess
from tests.support.reading import EagerReader, committed_rows

ROWS = 6_000


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """A pipeline with its own broker, and a reader that polls throughout."""
    with DaemonProcess(tmp_path / "data") as daemon:
        made = Pipeline(daemon, tmp_path, flights(ROWS))
        with EagerReader(daemon.address, "target") as reader:
            yield made
        rows = committed_rows(daemon.address, "target")
        assert reader.seen.items() <= rows.items(), "a row was seen that is not there any more"
