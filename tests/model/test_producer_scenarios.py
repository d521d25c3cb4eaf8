"""Named scenarios of delivery, on the simulation's clock and network."""

from __future__ import annotations

import random
from typing import Any

import pytest

from brokerd.errors import (
    DeliveryTimeoutError,
    DuplicateSequenceError,
    Fate,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnknownTopicIdError,
)
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.idempotence import EPOCH_MAX
from brokerd.producer.core.transport import PartitionResult, ProduceResponse, TopicView
from brokerd.record.header import SEQUENCE_MAX
from tests.support.producer_scenarios import assert_nobody_starves
from tests.support.producer_simulation import TOPIC, TOPIC_ID, Op, Simulation

OPENED: list[Op] = [("call", 0), ("append", 0, 1), ("call", 0), ("tick", 5), ("open", 0), ("request", 0), ("answer", 0)]


def five_in_flight(**settings: Any) -> Simulation:
    defaults: dict[str, Any] = {"max.in.flight.batches.per.partition": 5, "linger.ms": 0, "batch.size": 200}
    return Simulation(1, **defaults | settings)


def do(simulation: Simulation, ops: list[Op]) -> Simulation:
    for op in ops:
        getattr(simulation, "do_" + op[0])(*op[1:])
        simulation.step()
    return simulation


def finish(simulation: Simulation) -> Simulation:
    simulation.heal()
    simulation.check()
    return simulation


def errors(simulation: Simulation, partition: int = 0) -> list[str | None]:
    """The fate of each record, as error names."""
    ended = [record.batch.error for record in simulation.records[partition].values()]
    return [None if error is None else type(error).__name__ for error in ended]


def test_sequence_wraps_in_the_middle_of_a_batch() -> None:
    simulation = five_in_flight(start="wrap", **{"batch.size": 600})
    do(simulation, [("call", 0), ("append", 0, 2), ("tick", 1), ("open", 0)])
    stream = simulation.streams[0]
    assert stream.requests[0].batches[0].base_sequence == SEQUENCE_MAX - 2
    do(simulation, [("append", 0, 4), ("append", 0, 2)])
    assert [sent.batches[0].base_sequence for sent in stream.requests] == [SEQUENCE_MAX - 2, SEQUENCE_MAX, 3]
    do(simulation, [("request", 0), ("drop_request", 0), ("request", 0), ("answer", 0), ("answer", 0), ("cut", 0)])
    finish(simulation)
    assert simulation.log[0].records == list(range(8))
    assert errors(simulation) == [None] * 8


def test_epochs_used_up_ask_for_a_new_producer_id() -> None:
    simulation = five_in_flight(start="last epoch")
    identities = []
    do(simulation, [("call", 0)])
    for _ in range(3):
        # A batch refused for good leaves a gap: the epoch must rise.
        do(simulation, [("append", 0, 1), ("tick", 1), ("open", 0), ("request", 0, 3), ("answer", 0), ("append", 0, 1)])
        simulation.heal()
        assert simulation.core.sequences is not None
        identities.append(simulation.core.sequences.identity)
    assert [identity.epoch for identity in identities] == [EPOCH_MAX, 0, 1]
    assert identities[0].producer_id == 500
    assert identities[1].producer_id == identities[2].producer_id != 500
    finish(simulation)
    assert errors(simulation) == ["MessageTooLargeError", None] * 3


@pytest.mark.parametrize("loss", ["request", "answer"])
def test_five_in_flight_and_the_first_is_lost(loss: str) -> None:
    simulation = five_in_flight()
    do(simulation, [*OPENED, *[("append", 0, 2)] * 5])
    assert len(simulation.streams[0].requests) == 5
    if loss == "request":
        do(simulation, [("drop_request", 0), *[("request", 0)] * 4, *[("answer", 0)] * 4])
        assert len(simulation.log[0].records) == 1  # the others had to wait for it
    else:
        do(simulation, [*[("request", 0)] * 5, ("drop_answer", 0), *[("answer", 0)] * 4])
        assert len(simulation.log[0].records) == 11
    finish(simulation)
    assert simulation.log[0].records == list(range(11))
    assert errors(simulation) == [None] * 11
    assert simulation.core.sequences is not None
    assert simulation.core.sequences.identity.epoch == 0


def test_first_of_five_expires_and_the_rest_move_to_the_next_epoch() -> None:
    simulation = five_in_flight(**{"delivery.timeout.ms": 1_000})
    do(simulation, [*OPENED, ("append", 0, 2), ("tick", 100), *[("append", 0, 2)] * 4])
    do(simulation, [("drop_request", 0), *[("request", 0)] * 4, *[("answer", 0)] * 4, ("leader", 0, -1), ("tick", 950)])
    finish(simulation)
    assert errors(simulation) == [None] + [DeliveryTimeoutError.__name__] * 2 + [None] * 8
    assert simulation.core.sequences is not None
    assert simulation.core.sequences.identity.epoch == 1
    assert simulation.log[0].records == [0, *range(3, 11)]


@pytest.mark.parametrize("kind", ["forget", "push_out"])
def test_a_producer_that_the_broker_has_forgotten_asks_for_another_id(kind: str) -> None:
    simulation = five_in_flight()
    do(simulation, [*OPENED, (kind, 0), ("append", 0, 1)])
    finish(simulation)
    assert errors(simulation) == [None, None]
    assert simulation.core.sequences is not None
    assert simulation.core.sequences.identity == (1_002, 0)


def test_acknowledged_records_that_vanish_are_reported_never_papered_over() -> None:
    simulation = five_in_flight()
    do(simulation, [*OPENED, ("append", 0, 1), ("request", 0), ("answer", 0)])
    entry = next(iter(simulation.log[0].producers.values()))
    entry.batches.pop()
    simulation.log[0].records.pop()
    do(simulation, [("append", 0, 1), ("request", 0), ("answer", 0)])
    assert isinstance(simulation.core.fatal_error, OutOfOrderSequenceError)
    assert "lost acknowledged records of t-0" in str(simulation.core.fatal_error)
    assert simulation.core.pool.used_bytes == 0


def answer(simulation: Simulation, result: PartitionResult) -> None:
    stream = simulation.streams[0]
    response = ProduceResponse(stream.requests.popleft().correlation_id, results=[result])
    simulation.core.on_response(stream.node_id, stream.hello.incarnation, response, simulation.now_ms)
    simulation.step()


def test_fenced_is_final() -> None:
    simulation = do(five_in_flight(), [*OPENED, *[("append", 0, 2)] * 3])
    fenced = InvalidProducerEpochError("fenced", fate=Fate.NOT_APPENDED)
    answer(simulation, PartitionResult(TopicIdPartition(TOPIC_ID, 0), -1, -1, 0, fenced))
    assert simulation.core.fatal_error is fenced
    assert errors(simulation)[1:] == ["InvalidProducerEpochError"] * 6
    do(simulation, [("request", 0), ("answer", 0)] * 2)
    assert simulation.core.pool.used_bytes == 0


def test_a_late_duplicate_is_a_success_without_an_offset() -> None:
    simulation = do(five_in_flight(), [*OPENED, ("append", 0, 2)])
    there = DuplicateSequenceError("older than the window", fate=Fate.NOT_APPENDED)
    answer(simulation, PartitionResult(TopicIdPartition(TOPIC_ID, 0), -1, -1, 0, there))
    record = simulation.records[0][1]
    assert (record.ends, record.batch.error, record.batch.base_offset) == (1, None, -1)


def test_a_topic_created_anew_gets_what_the_old_one_certainly_did_not() -> None:
    simulation = do(five_in_flight(), [*OPENED, *[("append", 0, 2)] * 2])
    gone = UnknownTopicIdError("no such topic", fate=Fate.NOT_APPENDED)
    answer(simulation, PartitionResult(TopicIdPartition(TOPIC_ID, 0), -1, -1, 0, gone))
    simulation.core.on_metadata({TOPIC: TopicView(b"another topic id", (0, 0, 0))}, simulation.now_ms)
    simulation.step()
    do(simulation, [("cut", 0), ("tick", 500), ("open", 1), ("tick", 1)])
    assert errors(simulation)[3:5] == ["UnknownTopicIdError"] * 2
    assert "may have been in the old one" in str(simulation.records[0][3].batch.error)
    (sent,) = simulation.streams[-1].requests
    assert [(batch.base_sequence, batch.records) for batch in sent.batches] == [(0, [1, 2])]


def test_nobody_starves() -> None:
    assert_nobody_starves()


@pytest.mark.parametrize("in_flight", [1, 5])
def test_a_day_of_idling_and_bursts_leaves_nothing_behind(in_flight: int) -> None:
    rng = random.Random(in_flight)
    settings: dict[str, Any] = {"max.in.flight.batches.per.partition": in_flight}
    simulation = Simulation(1, **settings)
    day_ms = 24 * 3600 * 1000
    while simulation.now_ms < day_ms:
        for _ in range(rng.randint(1, 8)):
            do(simulation, [("append", rng.randrange(3), rng.randint(1, 4))])
        if rng.random() < 0.3:
            do(simulation, [("open", 0), ("request", 0, rng.randrange(3)), ("answer", 0), ("throttle", 0, 50), ("cut", 0)])
        simulation.heal()
        assert simulation.core.pool.used_bytes == 0
        assert not simulation.core.accumulator.has_incomplete
        do(simulation, [("tick", rng.choice((10, 1_000, 60_000, 900_000)))])
    core = simulation.core
    assert simulation.next_ms > simulation.now_ms  # idle: nothing to do now
    assert len(core.streams.by_node) == 1
    assert core.streams.requests_in_flight == 0
    assert set(core.accumulator.partitions()) <= {TopicPartition(TOPIC, partition) for partition in range(3)}
    assert not core.accumulator.begin_flush()
    assert core.sequences is not None
    assert all(not state.sequenced for state in core.sequences._partitions.values())
    simulation.check()
