"""Random schedules of replication (tests/support/replication_simulation.py), and planted bugs that they must find.

Three thousand; `python -m tests.model.long_replication` runs a hundred thousand, `BROKERD_TEST_SCALE=20` twenty times as many as
`make test` does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from brokerd.producer.core.accumulator import ProducerBatch
from tests.model.test_producer_mutants import MUTANTS as PRODUCER_MUTANTS
from tests.support.replication_bugs import MUTANTS
from tests.support.replication_simulation import Simulation, run_seed
from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays, run_part, run_seeds

SCHEDULES = 240 * TEST_SCALE
PARTS = 4
MORE_SCHEDULES, MORE_PARTS = 2_760 * TEST_SCALE, 24
SEARCHED = 2_000
OFTEN = (
    *("elected", "led", "joined", "left", "acknowledged", "acknowledged, without numbers", "read", "healed"),
    *("power cut", "killed", "started", "paused", "link cut", "cut off from the store", "lease ended", "stream broken"),
    *("answer lost", "made late", "never made", "records deleted", "replicas changed", "stopped", "store down", "emptied"),
    *("store went back", "disk full", "reads fail", "writes fail"),
    *("producer: NotLeaderError", "producer: FencedLeaderEpochError", "producer: no answer", "not enough replicas"),
    *("producer: given up", "producer: another epoch"),
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_keep_every_promise(part: int) -> None:
    run_part(run_seed, part, SCHEDULES // PARTS, OFTEN, one_in=12)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(MORE_PARTS))
def test_more_random_schedules_keep_every_promise(part: int) -> None:
    count = MORE_SCHEDULES // MORE_PARTS
    run_seeds(run_seed, SCHEDULES + part * count, count)


def test_a_seed_replays_exactly() -> None:
    assert_replays(traced, range(4))


def traced(seed: int) -> list[str]:
    """The trace of one schedule."""
    trace: list[str] = []
    Simulation(seed, trace=trace).run()
    return trace


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)


OF_PRODUCERS = (
    *("sequence_reassigned_on_retry", "reenqueued_at_the_tail", "expired_batch_freed_while_in_flight"),
    "epoch_not_bumped_after_expiry",
)


@pytest.mark.parametrize("name", OF_PRODUCERS)
def test_planted_mistake_of_the_producer_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug must also be found with real replicas."""

    def run_core(number: int) -> None:
        run_seed(Simulation.cores_in * number + 2)

    PRODUCER_MUTANTS.assert_found(name, monkeypatch.setattr, run_core, SEARCHED)


def test_a_wrong_offset_of_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = ProducerBatch.complete
    monkeypatch.setattr(ProducerBatch, "complete", lambda batch, offset, stamp: complete(batch, offset + 1, stamp))
    with pytest.raises(AssertionError, match=r"record \d+ is at \d+, not at \d+|is acknowledged, at \d+, and not in the log"):
        run_seeds(run_seed, 2, 1)
