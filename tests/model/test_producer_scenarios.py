"""Named scenarios of delivery, on the simulation's clock and network."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from brokerd.errors import (
    DuplicateSequenceError,
    Fate,
    LogDamagedError,
    NotLeaderError,
    NotReadyError,
    UnknownTopicIdError,
)
from brokerd.ids import TopicIdPartition, TopicInfo, TopicPartition
from brokerd.producer.core.streams import FetchMetadata, RequestProducerId
from brokerd.producer.core.transport import PartitionResult, ProduceResponse
from tests.support.producer_scenarios import OPENED, assert_nobody_starves, do, five_in_flight
from tests.support.producer_simulation import TOPIC, TOPIC_ID, Simulation


def errors(simulation: Simulation, partition: int = 0) -> list[str | None]:
    """The outcome of each record, as the error's name."""
    ended = [record.batch.error for record in simulation.records[partition].values()]
    return [None if error is None else type(error).__name__ for error in ended]


def answer(simulation: Simulation, result: PartitionResult) -> None:
    stream = simulation.streams[0]
    response = ProduceResponse(stream.requests.popleft().correlation_id, results=[result])
    simulation.core.on_response(stream.node_id, stream.hello.incarnation, response, simulation.now_ms)
    simulation.step()


def test_a_late_duplicate_is_a_success_without_an_offset() -> None:
    simulation = do(five_in_flight(), [*OPENED, ("append", 0, 2)])
    there = DuplicateSequenceError("older than the window", fate=Fate.NOT_APPENDED)
    answer(simulation, PartitionResult(TopicIdPartition(TOPIC_ID, 0), -1, -1, there))
    record = simulation.records[0][1]
    assert (record.ends, record.batch.error, record.batch.base_offset) == (1, None, -1)


def test_a_topic_created_anew_gets_what_the_old_one_certainly_did_not() -> None:
    simulation = do(five_in_flight(), [*OPENED, *[("append", 0, 2)] * 2])
    gone = UnknownTopicIdError("no such topic", fate=Fate.NOT_APPENDED)
    answer(simulation, PartitionResult(TopicIdPartition(TOPIC_ID, 0), -1, -1, gone))
    simulation.core.on_metadata({TOPIC: TopicInfo(b"another topic id", (0, 0, 0))}, simulation.now_ms)
    simulation.step()
    do(simulation, [("cut", 0), ("tick", 500)])
    assert [type(call) for call in simulation.calls] == [RequestProducerId, FetchMetadata]
    do(simulation, [("call", 0), ("open", 1), ("tick", 1)])
    assert errors(simulation)[3:5] == ["UnknownTopicIdError"] * 2
    assert "may have been in the old one" in str(simulation.records[0][3].batch.error)
    (sent,) = simulation.streams[-1].requests
    assert [(batch.identity.epoch, batch.base_sequence, batch.records) for batch in sent.batches] == [(1, 0, [1, 2])]


def test_what_the_old_topics_leader_says_is_not_of_the_new_one() -> None:
    """The old leader resigns or is damaged, in an epoch that the new topic's leader may never reach."""
    simulation = do(five_in_flight(), [*OPENED, *[("append", 0, 2)] * 2])
    new = TopicInfo(b"another topic id", (0, 0, 0), leader_epochs=(1, 1, 1))
    simulation.core.on_metadata({TOPIC: new}, simulation.now_ms)
    for error in (NotLeaderError("resigned", current_leader_epoch=7), LogDamagedError("damaged", current_leader_epoch=7)):
        answer(simulation, PartitionResult(TopicIdPartition(TOPIC_ID, 0), -1, -1, error))
    assert errors(simulation)[1:] == ["UnknownTopicIdError"] * 2 + ["LogDamagedError"] * 2
    assert simulation.core.topics.view(TOPIC) == new


def test_what_is_refused_for_a_while_is_not_sent_again_sooner() -> None:
    simulation = do(five_in_flight(), [*OPENED, ("append", 0, 2)])
    starting = NotReadyError("starting", fate=Fate.NOT_APPENDED, retry_after_ms=1_000)
    answer(simulation, PartitionResult(TopicIdPartition(TOPIC_ID, 0), -1, -1, starting))
    do(simulation, [("tick", 999)])
    assert not simulation.streams[0].requests
    do(simulation, [("tick", 1)])
    assert [batch.records for batch in simulation.streams[0].requests[0].batches] == [[1, 2]]


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
        assert not simulation.core.accumulator.incomplete
        do(simulation, [("tick", rng.choice((10, 1_000, 60_000, 900_000)))])
    core = simulation.core
    assert simulation.next_ms > simulation.now_ms  # idle until a later time
    assert len(core.streams.by_node) == 1
    assert core.streams.requests_in_flight == 0
    assert set(core.accumulator.partitions()) <= {TopicPartition(TOPIC, partition) for partition in range(3)}
    assert not core.accumulator.begin_flush()
    assert all(not state.sequenced for state in core.identity.sequences.values())
    simulation.check()


def test_a_node_that_missed_an_election_is_not_asked_again() -> None:
    """Node 0 was deposed and lacks records that node 1 has acknowledged. A stale node's metadata names node 0 again. If the
    producer sent to it, its OUT_OF_ORDER_SEQUENCE_NUMBER would be taken for the loss of acknowledged records."""
    simulation = do(five_in_flight(), OPENED)
    before = copy.deepcopy(simulation.log[0])
    elected = TopicInfo(TOPIC_ID, (1, 0, 0), leader_epochs=(5, 4, 4))
    simulation.core.on_metadata({TOPIC: elected}, simulation.now_ms)
    simulation.leaders[0], simulation.epochs = 1, [5, 4, 4]
    do(simulation, [("append", 0, 1), ("tick", 5), ("open", 1), ("request", 1), ("answer", 1)])
    assert errors(simulation) == [None, None]
    stale = TopicInfo(TOPIC_ID, (0, 0, 0), leader_epochs=(4, 4, 4))
    simulation.core.on_metadata({TOPIC: stale}, simulation.now_ms)
    do(simulation, [("append", 0, 1), ("tick", 5)])
    (asked,) = [stream.node_id for stream in simulation.streams if stream.requests]
    if asked == 0:
        simulation.leaders[0], simulation.log[0] = 0, before
    do(simulation, [("request", asked), ("answer", asked)])
    assert simulation.core.fatal_error is None
    assert errors(simulation) == [None, None, None]
    assert {record.batch.leader_epoch for record in simulation.records[0].values()} == {1, 5}
