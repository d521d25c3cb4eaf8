"""Goal: whenever the daemon is killed, no acknowledged record is lost, no offset holds two records, and no reader saw a record that
is gone. Method: a real daemon, SIGKILL at seeded random moments under load, the history judged by the checker.

BROKERD_TEST_SCALE=30 makes it 120 kills.
"""

from __future__ import annotations

import pytest

from tests.chaos.history import Outcome
from tests.chaos.run import run
from tests.support.scale import TEST_SCALE

_KILLS = 4
_SECONDS_A_KILL = 120.0  # an upper bound, for slow machines


@pytest.mark.slow
@pytest.mark.timeout(1_800 * TEST_SCALE)
def test_kills_under_load_lose_and_duplicate_nothing() -> None:
    kills = _KILLS * TEST_SCALE
    verdict = run(seconds=_SECONDS_A_KILL * kills, seed=20_260, kinds=["kill"], rounds=kills)
    assert verdict.is_clean, str(verdict)
    assert verdict.faults["kill"] == kills
    assert verdict.sends[Outcome.OK] >= kills, "after each kill something is acknowledged"


@pytest.mark.slow
@pytest.mark.timeout(1_800 * TEST_SCALE)
def test_cuts_pauses_and_restarts_under_load_lose_and_duplicate_nothing() -> None:
    rounds = 5 * TEST_SCALE
    kinds = ["cut", "drop-answers", "pause", "restart"]
    verdict = run(seconds=_SECONDS_A_KILL * rounds, seed=20_261, kinds=kinds, rounds=rounds)
    assert verdict.is_clean, str(verdict)
    assert all(verdict.faults[kind] for kind in kinds)
