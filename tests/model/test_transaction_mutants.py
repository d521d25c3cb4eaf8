"""The rules of transactions left out one by one, in the coordinator and in what carries out its decisions: the random schedules
must catch each. What they do not catch, they do not prove."""

from __future__ import annotations

import pytest

from tests.support import transaction_rule_bugs
from tests.support.transaction_bugs import MUTANTS
from tests.support.transaction_simulation import run_seed

SEEDS_MAX = 2_000  # from where the search for a bug begins


def test_all_bugs_are_known() -> None:
    assert vars(transaction_rule_bugs).keys() & MUTANTS.keys()
    assert len(MUTANTS) >= 56


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found_from(name, monkeypatch, run_seed, SEEDS_MAX)


def test_without_a_bug_nothing_is_found() -> None:
    for seed in range(100):
        run_seed(seed)
