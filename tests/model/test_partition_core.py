"""Random schedules of one partition on one or two replicas; BROKERD_TEST_SCALE makes more of them.

`BROKERD_TEST_SCALE=200 pytest tests/model/test_partition_core.py` runs a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.partition import flush_state
from tests.support.partition_simulation import Simulation, run_seed
from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays, run_part

SCHEDULES = 500 * TEST_SCALE
PARTS = 2
OFTEN = (
    *(
        "appended",
        "repeated",
        "replicated",
        "marker",
        "held back",
        "released",
        "write failed",
        "sync failed",
        "cut",
        "elected",
        "joined",
        "left",
    ),
    *("killed", "power cut", "all crashed", "killed in a cut", "cut given up", "segments removed", "records deleted"),
    *("read by follower", "follower: NotLeaderError", "read on", "latest", "client: OffsetNotAvailableError"),
    *("client: NotLeaderError", "client: FencedLeaderEpochError", "client: UnknownLeaderEpochError"),
    *("InvalidProducerEpochError", "OutOfOrderSequenceError", "InvalidTxnStateError"),
)


@pytest.fixture(autouse=True)
def _own_window() -> Iterator[None]:
    window = flush_state.RECOVERY_WINDOW_BYTES
    yield
    flush_state.RECOVERY_WINDOW_BYTES = window


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_keep_every_promise(part: int) -> None:
    run_part(run_seed, part, SCHEDULES // PARTS, OFTEN, one_in=100)


def test_a_seed_replays_exactly() -> None:
    assert_replays(traced, range(10))


def traced(seed: int) -> list[str]:
    """The trace of one schedule."""
    trace: list[str] = []
    Simulation(seed, trace=trace).run()
    return trace
