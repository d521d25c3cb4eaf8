"""Several nodes change topics at once (tests/support/topics_simulation.py). Planted bugs leave out one comparison each."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.cluster import assignments, changes
from brokerd.cluster.assignments import Held
from brokerd.cluster.changes import Transaction
from brokerd.cluster.image import ClusterImage
from tests.support import topics_simulation
from tests.support.mutants import Mutants
from tests.support.planting import Put
from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays, run_seeds
from tests.support.topics_simulation import Directory, Simulation, run_seed

RUNS = 150 * TEST_SCALE
SEARCHED = 1_000
MUTANTS = Mutants()


def test_a_topic_that_can_be_seen_is_whole() -> None:
    facts = run_seeds(run_seed, 0, RUNS)
    often = ("created", "grown", "altered", "deleted", "failed", "stopped in the middle", "data removed", "swept")
    assert min(facts[fact] for fact in often) > RUNS // 3, facts


def test_a_schedule_replays() -> None:
    assert_replays(lambda seed: [str(event) for event in Simulation(seed).run().items()], range(3))


def without_comparisons(put: Put, name: str) -> None:
    """Leaves out the comparisons of one kind of change."""
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
def a_topic_that_is_there_is_swept(put: Put) -> None:
    without_comparisons(put, "sweep")


@MUTANTS.add
def a_topic_is_created_though_its_partitions_were_swept(put: Put) -> None:
    original = changes.create_topic

    def careless(*args: Any) -> list[Transaction]:
        *made, last = original(*args)
        return [*made, last._replace(compares={key: at for key, at in last.compares.items() if at != changes.JUST_PUT})]

    put(changes, "create_topic", careless)


@MUTANTS.rare(650)
def the_last_partitions_are_swept_first(put: Put) -> None:
    original = changes.sweep
    put(changes, "sweep", lambda *args: original(*args)[::-1])


@MUTANTS.add
def a_tombstone_ends_with_the_first_directory(put: Put) -> None:
    original = changes.data_removed

    def hasty(*args: Any) -> Transaction:
        transaction = original(*args)
        return transaction._replace(puts={}, deletes=tuple(transaction.compares))

    put(changes, "data_removed", hasty)


@MUTANTS.add
def a_topic_replaces_another_one_of_its_name(put: Put) -> None:
    original = assignments.to_hold

    def hasty(image: ClusterImage, node_id: int, directory_id: str, held: Held) -> Any:
        for topic_id, _ in image.topics():
            known = held.get(topic_id)
            yield from original(image, node_id, directory_id, {} if known is None else {topic_id: known})

    put(assignments, "to_hold", hasty)


@MUTANTS.add
def a_directory_is_taken_off_before_it_removes(put: Put) -> None:
    original = Directory.follow

    def lazy(self: Directory, image: ClusterImage) -> list[bytes]:
        held = dict(self.held)
        removed = original(self, image)
        self.held.update((topic_id, held[topic_id]) for topic_id in removed if topic_id in held and held[topic_id].numbers)
        return removed

    put(Directory, "follow", lazy)


@MUTANTS.add
def every_node_holds_every_partition(put: Put) -> None:
    put(assignments, "_is_copy_due", lambda _entry, _node_id, _directory_id: True)


@MUTANTS.add
def what_was_only_heard_of_stays(put: Put) -> None:
    original = assignments.to_remove
    put(assignments, "to_remove", lambda image, directory_id, node_id, _held: original(image, directory_id, node_id, {}))


def test_an_emptied_store_removes_nothing() -> None:
    simulation = Simulation(3)
    simulation.run()
    before = [dict(directory.held) for directory in simulation.directories]
    assert any(topic.numbers for held in before for topic in held.values())
    for directory, held in zip(simulation.directories, before, strict=True):
        assert directory.follow(ClusterImage(topics_simulation.KEYS)) == [
            topic_id for topic_id, topic in held.items() if not topic.numbers
        ]
        assert {topic_id: topic for topic_id, topic in held.items() if topic.numbers} == directory.held


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)
