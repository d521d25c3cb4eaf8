"""Random schedules of transactions on replicated partitions (tests/support/replicated_transactions.py), and planted bugs that they
must find.

`make replicated-transactions` runs thirty thousand; `BROKERD_TEST_SCALE=20` twenty times as many as `make test` does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.replicated_bugs import DISASTER_MUTANTS, MUTANTS
from tests.support.replicated_transactions import Simulation, run_disaster, run_seed, steady_hashes
from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays, run_part

SCHEDULES = 140 * TEST_SCALE
DISASTERS = 32 * TEST_SCALE
PARTS = 4
SEARCHED = 400
OFTEN = (
    *("elected", "led", "joined", "left", "healed", "killed", "power cut", "paused", "link cut", "lease ended", "made a topic"),
    *("prepared", "prepared, with losers", "repeated", "struck in a commit", "led elsewhere", "call lost", "twin", "driver killed"),
    *("call: VerifyMembers", "call: FreezeMembers", "call: WriteMarkers", "call: Release", "call: PreparedHolds"),
    *("Batch: Done", "Batch: InvalidTxnStateError", "Batch: NotLeaderError", "Batch: CoordinatorNotAvailableError"),
    *("EndTransactionRequest: Done", "EndTransactionRequest: NotCoordinatorError", "EndTransactionRequest: TxnAbortedError"),
)
OFTEN_IN_DISASTERS = ("elected unclean", "records lost", "rows lost", "disk full", "reads fail", "writes fail")


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_keep_every_promise(part: int) -> None:
    run_part(run_seed, part, SCHEDULES // PARTS, OFTEN, one_in=8)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_random_disasters_keep_every_promise() -> None:
    run_part(run_disaster, 0, DISASTERS, OFTEN_IN_DISASTERS, one_in=16)


def test_a_seed_replays_exactly() -> None:
    assert_replays(traced, range(4))


def traced(seed: int) -> list[str]:
    """The trace of one schedule."""
    trace: list[str] = []
    with steady_hashes():
        Simulation(seed, trace=trace).run()
    return trace


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)


@pytest.mark.parametrize("name", DISASTER_MUTANTS)
def test_planted_mistake_after_an_unclean_election_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DISASTER_MUTANTS.assert_found(name, monkeypatch.setattr, run_disaster, SEARCHED)
