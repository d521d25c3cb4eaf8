"""The rules of transactions left out one by one, in the coordinator and in what carries out its decisions: the random schedules
must catch each. What they do not catch, they do not prove."""

from __future__ import annotations

import pytest

from tests.support import transaction_rule_bugs
from tests.support.transaction_bugs import MUTANTS
from tests.support.transaction_simulation import Simulation

SEEDS_MAX = 4_000


def test_all_bugs_are_known() -> None:
    assert vars(transaction_rule_bugs).keys() & MUTANTS.keys()
    assert len(MUTANTS) >= 49


def is_caught(seed: int) -> bool:
    """True if this seed's schedule fails with what is planted now."""
    try:
        Simulation(seed).run()
    except Exception:
        return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_it, seed = MUTANTS[name]
    plant_it(monkeypatch)
    if not is_caught(seed):
        found = next((other for other in range(SEEDS_MAX) if is_caught(other)), None)
        assert found is not None, f"no schedule catches {name}"
        pytest.fail(f"seed {seed} does not catch {name} any more, {found} does: write it down")


def test_without_a_bug_nothing_is_caught() -> None:
    assert not any(is_caught(seed) for seed in range(100))
