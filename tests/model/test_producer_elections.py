"""Leader changes, old leaders unaware of them, and stale metadata. Acknowledged records are in the log once and in order, and none
is reported lost although it is there. Bugs planted one at a time, which the schedules must find."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.errors import DeliveryTimeoutError, WireError
from brokerd.ids import TopicInfo
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.core.streams import NodeConnection, SendRequest
from tests.support.mutants import Mutants
from tests.support.producer_scenarios import OPENED, do, five_in_flight
from tests.support.producer_schedules import report, run_seed_with_elections, schedule_with_elections
from tests.support.producer_simulation import Simulation
from tests.support.scale import TEST_SCALE
from tests.support.simulated_network import ALL_ERRORS, COORDINATOR_ERRORS

SCHEDULES = 1_000 * TEST_SCALE
PARTS = 5
SEARCHED = 3_000
AWAY_AND_BACK, DEPOSED = -2, -1  # not seeds: the scenarios below
MUTANTS = Mutants()
bug = MUTANTS.method


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_with_elections_keep_every_promise(part: int) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            run_seed_with_elections(seed)
        except Exception as error:
            raise AssertionError(report(seed, schedule_with_elections)) from error


def started(**settings: Any) -> Simulation:
    """Node 0 has acknowledged one record of partition 0."""
    return do(five_in_flight(**settings), OPENED)


def lead_away_and_back() -> None:
    """Leaders A, B, A. Two batches are unread at paused A. One expires at B; the other is proven absent there and gets a new
    sequence. When A leads again and reads its old stream, it must refuse both."""
    simulation = started(**{"request.timeout.ms": 3_000})
    do(simulation, [("append", 0, 2), ("tick", 2_000), ("append", 0, 2), ("leader", 0, 1), ("cut", 0)])
    do(simulation, [("tick", 120), ("ask",), ("tick", 50), ("open", 1), ("tick", 850)])
    assert [record.ends for record in simulation.records[0].values()] == [1, 1, 1, 0, 0], "the first batch has expired at B"
    do(simulation, [("cut", 1), ("drop_request", 1), ("tick", 120), ("ask",), ("serve", 1), ("ask",)])
    assert not simulation.records[0][4].batch.is_fate_unknown, "the second one is known not to be there"
    do(simulation, [("leader", 0, 0), ("request", 0), ("request", 0)])
    simulation.heal()
    simulation.check()
    assert simulation.log[0].records == [0, 3, 4]


def deposed_before_old_metadata() -> None:
    """B has acknowledged a record that A lacks, and a stale node names A, which does not know yet that it was deposed."""
    simulation = started()
    do(
        simulation,
        [("depose", 0, 1), ("cut", 0), ("append", 0, 1), ("tick", 120), ("ask",), ("tick", 50), ("serve", 1), ("serve", 1)],
    )
    assert [record.ends for record in simulation.records[0].values()] == [1, 1], "B has acknowledged"
    do(simulation, [("cut", 1), ("append", 0, 1), ("tick", 120), ("old_metadata", 0), ("tick", 50)])
    do(simulation, [("serve", 0), ("serve", 1)])
    simulation.heal()
    simulation.check()


MUTANTS.instead(
    "brokers_take_batches_of_any_epoch",
    Simulation,
    "check_epoch",
    lambda _self, _sent, _node_id, _epoch: None,
    first=AWAY_AND_BACK,
)
MUTANTS.instead("metadata_leads_back", TopicInfo, "newer_than", lambda self, _seen: self, first=DEPOSED)


@bug(ProducerCore, "_request", first=AWAY_AND_BACK)
def batches_without_an_epoch(
    request: Any, self: ProducerCore, connection: NodeConnection, drained: list[Any], now_ms: int
) -> SendRequest:
    command: SendRequest = request(self, connection, drained, now_ms)
    for batch in drained:
        batch.leader_epoch = -1
    return command


def run(seed: int) -> None:
    """Runs a seed's schedule, or one of the scenarios."""
    scenarios = {AWAY_AND_BACK: lead_away_and_back, DEPOSED: deposed_before_old_metadata}
    scenarios.get(seed, lambda: run_seed_with_elections(seed))()


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS.assert_found(name, monkeypatch.setattr, run, SEARCHED)


def test_batches_that_a_paused_leader_reads_when_it_leads_again_are_refused() -> None:
    lead_away_and_back()


def test_old_metadata_and_a_leader_that_was_deposed_are_no_loss() -> None:
    deposed_before_old_metadata()


@pytest.mark.parametrize("error", COORDINATOR_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("in_flight", [1, 5])
def test_a_batch_is_sent_again_in_order_if_its_leader_cannot_ask_the_coordinator(error: WireError, in_flight: int) -> None:
    simulation = started(**{"max.in.flight.batches.per.partition": in_flight})
    do(simulation, [("append", 0, 2), ("append", 0, 2), ("request", 0, ALL_ERRORS.index(error)), ("answer", 0)])
    simulation.heal()
    simulation.check()
    assert simulation.log[0].records == [0, 1, 2, 3, 4]


def test_a_partition_without_a_leader_waits_and_the_others_go_on() -> None:
    simulation = started()
    do(simulation, [("leader", 0, -1), ("append", 0, 1), ("append", 1, 1), ("append", 2, 1), ("serve", 0)])
    assert [len(log.records) for log in simulation.log] == [1, 1, 1]
    do(simulation, [("tick", 120), ("ask",), ("append", 1, 1), ("serve", 0)])
    assert [len(log.records) for log in simulation.log] == [1, 2, 1]
    assert [record.ends for record in simulation.records[0].values()] == [1, 0], "delivery.timeout.ms decides"
    do(simulation, [("leader", 0, 1)])
    simulation.heal()
    simulation.check()
    assert [len(log.records) for log in simulation.log] == [2, 2, 1]


def test_a_partition_that_nobody_leads_fails_after_its_time_alone() -> None:
    simulation = started()
    do(simulation, [("leader", 0, -1), ("append", 0, 1), ("append", 1, 1), ("serve", 0), ("tick", 3_001)])
    failed = [record.batch.error for record in simulation.records[0].values()]
    assert [type(error) for error in failed] == [type(None), DeliveryTimeoutError]
    assert [record.batch.error for record in simulation.records[1].values()] == [None]


def test_the_stream_to_one_node_fails_and_the_others_go_on() -> None:
    simulation = started()
    do(simulation, [("leader", 1, 1), ("append", 1, 1), *[("serve", 0), ("tick", 120), ("ask",)] * 2, ("tick", 50), ("open", 1)])
    assert [stream.node_id for stream in simulation.streams if stream.is_open] == [0, 1]
    do(simulation, [("cut", 1), ("append", 0, 1), ("append", 2, 1), ("serve", 0)])
    assert [len(log.records) for log in simulation.log] == [2, 0, 1]
    simulation.heal()
    simulation.check()
    assert [len(log.records) for log in simulation.log] == [2, 1, 1]
