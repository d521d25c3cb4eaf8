"""Lives of a partition and its producers, seeded; BROKERD_TEST_SCALE makes more of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.partition import flush_state
from tests.model.lives import run_seed
from tests.support.scale import TEST_SCALE
from tests.support.seeds import run_many, run_seeds

# 243 of these seeds lost state when starts trusted only snapshots below the recovery point.
RUNS = 250 * TEST_SCALE


@pytest.fixture(autouse=True)
def _own_window() -> Iterator[None]:
    window = flush_state.RECOVERY_WINDOW_BYTES
    yield
    flush_state.RECOVERY_WINDOW_BYTES = window


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_the_state_of_producers_is_the_fold_of_all_batches_whatever_ends_a_life() -> None:
    facts = run_many(run_seed, RUNS, chunk=50)
    # Each kind of fault happened, and state outlived its records.
    ends = ("power cut", "killed", "closed", "killed in a start", "killed in a life", "a start was read-only")
    faults = (".snapshot failed", "leader-epochs failed", "checkpoint failed", "-0 failed", ".log failed", "not written")
    answers = (
        "repeated",
        "InvalidProducerEpochError",
        "OutOfOrderSequenceError",
        "DuplicateSequenceError",
        "UnknownProducerIdError",
    )
    derived = ("a derived file was harmed", "an old snapshot is there again", "one of another future")
    for fact in (*ends, *faults, *answers, *derived, "segments removed", "expired"):
        assert facts.get(fact, 0) >= RUNS // 50, (fact, facts)
    assert facts["state outlived its records"] > RUNS // 2


def test_a_seed_runs_the_same_twice() -> None:
    assert run_seeds(run_seed, 77, 3) == run_seeds(run_seed, 77, 3)
