"""Topics that several nodes change at once (tests/support/topics_simulation.py), and the comparisons left out one by one."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.cluster import changes
from brokerd.cluster.changes import Transaction
from tests.support.mutants import Mutants
from tests.support.planting import Put
from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays, run_seeds
from tests.support.topics_simulation import Simulation, run_seed

RUNS = 150 * TEST_SCALE
SEARCHED = 1_000
MUTANTS = Mutants()


def test_a_topic_that_can_be_seen_is_whole() -> None:
    facts = run_seeds(run_seed, 0, RUNS)
    often = ("created", "grown", "altered", "deleted", "failed", "stopped in the middle", "data removed")
    assert min(facts[fact] for fact in often) > RUNS // 3, facts


def test_a_schedule_replays() -> None:
    assert_replays(lambda seed: [str(event) for event in Simulation(seed).run().items()], range(3))


def without_comparisons(put: Put, name: str) -> None:
    """Leaves the comparisons of a kind of change out."""
    original = getattr(changes, name)

    def careless(*args: Any) -> Any:
        decided = original(*args)
        if isinstance(decided, Transaction):
            return decided._replace(compares={})
        return [transaction._replace(compares={}) for transaction in decided]

    put(changes, name, careless)


@MUTANTS.add
def a_name_that_is_taken_is_taken_over(put: Put) -> None:
    without_comparisons(put, "create_topic")


@MUTANTS.add
def a_topic_grows_from_an_old_count(put: Put) -> None:
    without_comparisons(put, "grow_topic")


@MUTANTS.add
def a_topic_is_altered_by_an_old_entry(put: Put) -> None:
    without_comparisons(put, "change_topic")


@MUTANTS.add
def a_topic_is_deleted_by_an_old_entry(put: Put) -> None:
    without_comparisons(put, "delete_topic")


@MUTANTS.add
def the_name_comes_before_the_partitions(put: Put) -> None:
    original = changes.create_topic
    put(changes, "create_topic", lambda *args: original(*args)[::-1])


@MUTANTS.add
def a_tombstone_ends_with_the_first_directory(put: Put) -> None:
    original = changes.data_removed

    def hasty(*args: Any) -> Transaction:
        transaction = original(*args)
        return transaction._replace(puts={}, deletes=tuple(transaction.compares))

    put(changes, "data_removed", hasty)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)
