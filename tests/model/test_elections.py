"""Elections under random schedules (tests/support/election_simulation.py), and the mistakes of a controller that they must find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from brokerd.cluster import election
from brokerd.cluster.image import Node
from brokerd.cluster.keys import InSyncReplica, PartitionEntry
from brokerd.ids import NO_LEADER
from tests.support.coordination_store import Store
from tests.support.election_simulation import Process, Simulation, run_seed
from tests.support.mutants import Mutants
from tests.support.planting import Put
from tests.support.scale import TEST_SCALE
from tests.support.seeds import assert_replays, run_seeds

RUNS = 300 * TEST_SCALE
SEARCHED = 3_000
MUTANTS = Mutants()
bug = MUTANTS.method
Nodes = Mapping[int, Node]


def test_a_leader_has_all_that_was_acknowledged() -> None:
    facts = run_seeds(run_seed, 0, RUNS)
    often = ("died", "emptied", "lost its lease", "led", "elected", "too late", "acknowledged", "left", "led in the end")
    assert min(facts[fact] for fact in often) > RUNS // 2, facts
    assert min(facts[fact] for fact in ("without a leader", "joined", "waits in the end")) > RUNS // 20, facts


def test_a_schedule_replays() -> None:
    assert_replays(lambda seed: [str(event) for event in Simulation(seed).run().items()], range(3))


@MUTANTS.add
def an_emptied_disk_is_elected(put: Put) -> None:
    put(election, "_is_alive", lambda replica, nodes: replica.node_id in nodes)


@MUTANTS.add
def a_replica_outside_the_isr_is_elected(put: Put) -> None:
    elect = election.elect

    def unclean(entry: PartitionEntry, nodes: Nodes) -> PartitionEntry | None:
        elected = elect(entry, nodes)
        alive = [node_id for node_id in entry.replicas if node_id in nodes]
        if elected is None or elected.leader != NO_LEADER or not alive:
            return elected
        node = nodes[alive[0]]
        isr = (InSyncReplica(node.id, node.registration.directory_id),)
        return elected._replace(isr=isr, leader=node.id, leader_node_epoch=node.epoch)

    put(election, "elect", unclean)


@MUTANTS.add
def another_life_of_the_leader_goes_on_in_its_epoch(put: Put) -> None:
    elect = election.elect

    def forgiving(entry: PartitionEntry, nodes: Nodes) -> PartitionEntry | None:
        elected = elect(entry, nodes)
        return (
            elected._replace(leader_epoch=entry.leader_epoch) if elected is not None and elected.leader == entry.leader else elected
        )

    put(election, "elect", forgiving)


@MUTANTS.add
def a_leader_that_is_gone_keeps_the_partition(put: Put) -> None:
    elect = election.elect

    def patient(entry: PartitionEntry, nodes: Nodes) -> PartitionEntry | None:
        return elect(entry, nodes) if entry.leader in nodes or entry.leader == NO_LEADER else None

    put(election, "elect", patient)


@MUTANTS.add
def a_partition_without_a_leader_is_forgotten(put: Put) -> None:
    elect = election.elect
    put(election, "elect", lambda entry, nodes: None if entry.leader == NO_LEADER else elect(entry, nodes))


@bug(Store, "compare_and_set")
def the_controller_does_not_compare(_compare: Any, self: Store, key: str, _mod_revision: int, value: bytes) -> bool:
    self.write(key, value)
    return True


@bug(Simulation, "acknowledge", first=1_630)
def one_that_joins_does_not_count(acknowledge: Any, self: Simulation, leader: Process, tp: Any) -> None:
    leader.leading[tp].joining.clear()
    acknowledge(self, leader, tp)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run_seed, SEARCHED)
