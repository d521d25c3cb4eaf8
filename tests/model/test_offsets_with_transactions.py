"""A group's offsets that go with a transaction: random schedules of programs, zombies, plain commits, crashes and disks that refuse
(tests/support/offsets_simulation.py), and the rules left out one by one, each of which the schedules must miss."""

from __future__ import annotations

import pytest

from tests.support.offsets_bugs import MUTANTS
from tests.support.offsets_simulation import run_seed
from tests.support.scale import TEST_SCALE
from tests.support.seeds import run_seeds

RUNS = 120 * TEST_SCALE
SEARCHED = 3_000


def test_a_group_is_where_its_transactions_and_commits_have_left_it() -> None:
    facts = run_seeds(run_seed, 1_000, RUNS)
    rare = {"crashed in its start", "trouble", "lost"}
    assert min(facts[fact] for fact in rare) > RUNS // 100, facts
    often = ("decided", "committed", "refused", "renewed", "waited", "crashed", "deleted", "compacted")
    assert min(facts[fact] for fact in often) > RUNS, facts


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_left_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)
