"""Random kills of drivers, Python workers and the broker do not change a pipeline's output. BROKERD_TEST_KILLS sets their number,
BROKERD_TEST_SEED the seed, BROKERD_TEST_NODES the nodes (default: one, and three). A failure names the seed and each kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.exactly_once.random_kills import KINDS, QUERIES, RestlessPipeline, last_error, planned
from tests.support.daemon import DaemonProcess
from tests.support.scale import TEST_SCALE
from tests.support.several_nodes import SeveralNodes

KILLS = int(os.environ.get("BROKERD_TEST_KILLS", 10 * TEST_SCALE))
SEED = int(os.environ.get("BROKERD_TEST_SEED", "1"))
NODES = [int(number) for number in os.environ.get("BROKERD_TEST_NODES", "1 3").split()]


@pytest.fixture
def own_daemon(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[DaemonProcess | SeveralNodes]:
    """A broker that may be killed, or three nodes of which one may be."""
    with DaemonProcess(tmp_path / "data") if request.param == 1 else SeveralNodes() as process:
        yield process


def test_a_plan_is_its_seeds() -> None:
    assert planned(1, 30) == planned(1, 30) != planned(2, 30)
    assert {kill.kind for kill in planned(1, 30)} == set(KINDS)


def test_a_report_says_why_a_query_failed() -> None:
    begin = "FAILED counts [STREAM_FAILED] Query [id = 1] terminated with exception: "
    assert last_error(f"{begin}StorageError: the disk is full. Then NotReadyError: it stops") == "NotReadyError"
    assert (
        last_error(f"{begin}Python worker exited unexpectedly (crashed). Consider") == "Python worker exited unexpectedly (crashed)"
    )


@pytest.mark.long
@pytest.mark.timeout(900 + 60 * KILLS)
@pytest.mark.parametrize("foreach", [*QUERIES, "append_to"])
@pytest.mark.parametrize("own_daemon", NODES, indirect=True)
def test_pipeline_under_random_kills_writes_what_an_undisturbed_one_does(
    own_daemon: DaemonProcess | SeveralNodes, tmp_path: Path, foreach: str
) -> None:
    with RestlessPipeline(own_daemon, tmp_path, foreach=foreach) as pipeline:
        print(pipeline.endure(SEED, KILLS))
    assert {kind.partition(" ")[0] for kind in pipeline.killed} == set(KINDS[:KILLS])
