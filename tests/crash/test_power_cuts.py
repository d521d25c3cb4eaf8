"""Crashes over several lives of a data directory, seeded; BROKERD_TEST_SCALE makes more of them."""

from __future__ import annotations

import pytest

from tests.crash.power_cuts import run_seed
from tests.support.scale import TEST_SCALE
from tests.support.seeds import run_many, run_seeds

RUNS = 800 * TEST_SCALE


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_power_cuts_lose_nothing_acknowledged_and_bring_nothing_back() -> None:
    facts = run_many(run_seed, RUNS, chunk=200)
    # Each kind of fault happened, and work was done between them.
    for fact in ("power cut", "killed", "killed in recovery", "clean", "cut", "rot reported", "sync failed", "refused", "deleted"):
        assert facts.get(fact, 0) >= RUNS // 50, (fact, facts)
    assert facts["flushed"] > RUNS


def test_a_seed_runs_the_same_twice() -> None:
    assert run_seeds(run_seed, 77, 5) == run_seeds(run_seed, 77, 5)
