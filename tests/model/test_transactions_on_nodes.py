"""Random schedules of transactions on two or three nodes: as in test_transactions.py, and nodes are killed and start again one by
one, the coordinator is replaced, and calls between nodes come late, twice or never. Rules that are left out must be missed.
"""

from __future__ import annotations

import pytest

from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays, run_part
from tests.support.transaction_node_bugs import MUTANTS
from tests.support.transaction_simulation import Simulation, run_nodes_seed

SCHEDULES = 200 * TEST_SCALE
SEARCHED = 1_000
PARTS = 2
OFTEN = (
    *("prepared", "prepared, with losers", "aborted", "repeated", "state", "deleted"),
    *("coordinator killed", "leader killed", "deposed", "late call", "crash"),
    *("Batch: Done", "Batch: InvalidTxnStateError", "Batch: CoordinatorNotAvailableError"),
    *("EndTransactionRequest: Done", "EndTransactionRequest: NotReadyError", "EndTransactionRequest: NotCoordinatorError"),
    *("EndTransactionRequest: TxnAbortedError", "InitProducerIdRequest: NotCoordinatorError", "Abort: Done"),
)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_keep_every_promise(part: int) -> None:
    run_part(run_nodes_seed, part, SCHEDULES // PARTS, OFTEN, one_in=200)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_nodes_seed, SEARCHED)


def test_a_seed_replays_exactly() -> None:
    assert_replays(traced, range(10))


def traced(seed: int) -> list[str]:
    """The trace of one schedule."""
    trace: list[str] = []
    Simulation(seed, trace=trace, node_count=3).run()
    return trace
