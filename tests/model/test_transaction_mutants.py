"""The rules of transactions left out one by one, in the coordinator and in what carries out its decisions: the random schedules
must catch each. What they do not catch, they do not prove."""

from __future__ import annotations

import pytest

from tests.support import transaction_rule_bugs
from tests.support.transaction_bugs import MUTANTS
from tests.support.transaction_simulation import run_seed

SEARCHED = 3_000


def test_all_bugs_are_known() -> None:
    assert vars(transaction_rule_bugs).keys() & MUTANTS.keys()
    assert len(MUTANTS) >= 56


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)
