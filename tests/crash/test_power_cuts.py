"""Crashes over several lives of a data directory, seeded; BROKERD_TEST_SCALE makes more of them."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.crash.power_cuts import run_seeds

RUNS = 10_000 * int(os.environ.get("BROKERD_TEST_SCALE", "1"))
CHUNK = 250
WORKERS = min(os.cpu_count() or 1, 8)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)  # every cut and every piece of damage is logged, as it should


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_power_cuts_lose_nothing_acknowledged_and_bring_nothing_back() -> None:
    facts: dict[str, int] = {}
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        for chunk in pool.map(run_seeds, range(0, RUNS, CHUNK), [CHUNK] * (RUNS // CHUNK)):
            for fact, times in chunk.items():
                facts[fact] = facts.get(fact, 0) + times
    # The faults did happen, and work was done between them.
    for fact in ("power cut", "killed", "killed in recovery", "clean", "cut", "rot reported", "sync failed", "refused", "deleted"):
        assert facts.get(fact, 0) >= RUNS // 50, (fact, facts)
    assert facts["flushed"] > RUNS


def test_a_seed_runs_the_same_twice() -> None:
    assert run_seeds(77, 5) == run_seeds(77, 5)
