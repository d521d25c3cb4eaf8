"""A failure says which rows it concerns: a call that raised, a batch that failed in one partition, a block left by an exception."""

from __future__ import annotations

import logging
import re

import numpy as np
import pyarrow as pa
import pytest

from brokerd.errors import BufferExhaustedError, Fate, LogDamagedError
from brokerd.producer import columns
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, Fault, double_of
from tests.support.clock import LateClock
from tests.support.wait import DEADLINE_S
from tests.unit.producer.test_producer import out_of_time, producer_of, rows


def written(broker: BrokerDouble) -> list[bytes]:
    partitions = range(len(broker.topics["t"].partitions))
    return sorted(value for partition in partitions for value in broker.values("t", partition))


def test_what_cannot_be_sent_is_refused_before_any_row_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROUND_BYTES_MAX", 1_000)
    broker = double_of(4)
    with producer_of(broker) as producer:
        wanted = np.zeros(500, np.int32)
        wanted[-1] = 9
        with pytest.raises(ValueError, match="partition 9 does not exist"):
            producer.send_batch("t", rows(500), partitions=wanted)
        table = pa.Table.from_batches([rows(100), rows(100)])
        producer.send_batch("t", table).result(DEADLINE_S)
    assert len(written(broker)) == 200


def test_a_table_of_small_batches_is_taken_whole_or_not_at_all() -> None:
    broker = double_of(4)
    broker.topics["t"].leaders = [-1] * 4
    clock = LateClock()
    with producer_of(broker, clock, buffer_memory=60_000) as producer:
        producer.send_batch("t", rows(1000))
        table = pa.Table.from_batches([rows(200, start) for start in range(0, 2000, 200)])
        error = out_of_time(clock, lambda: producer.send_batch("t", table), lambda: producer._core.pool.is_exhausted)
        assert isinstance(error, BufferExhaustedError)
        assert error.taken_rows == 0
        assert "on their way" not in str(error)
        producer.close(0)
    assert producer.abandoned_count == 1000


def test_a_large_batch_that_is_taken_in_part_says_how_far_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROUND_BYTES_MAX", 10_000)
    broker = double_of(4)
    broker.topics["t"].leaders = [-1] * 4
    clock = LateClock()
    with producer_of(broker, clock, buffer_memory=60_000) as producer:
        error = out_of_time(clock, lambda: producer.send_batch("t", rows(5000)), lambda: producer._core.pool.is_exhausted)
        assert isinstance(error, BufferExhaustedError)
        assert re.search(r"the first \d+ of 5000 rows are on their way", str(error))
        taken = error.taken_rows
        assert 0 < taken < 5000
        broker.topics["t"].leaders = [0] * 4
        producer.flush(DEADLINE_S)
    assert written(broker) == [b"v%08d" % row for row in range(taken)]


def test_a_batch_that_fails_in_one_partition_says_which_rows_are_written() -> None:
    broker = double_of(1)
    broker.topics["t"].leaders = [0]
    broker.faults.extend([Fault(), Fault(error=LogDamagedError("rotten", fate=Fate.NOT_APPENDED))])
    with producer_of(broker, batch_size=10_000, max_in_flight_batches_per_partition=1) as producer:
        future = producer.send_batch("t", rows(1000))
        outcomes = future.outcomes(DEADLINE_S)
        assert isinstance(future.exception(0), LogDamagedError)
    ends = {row: (outcome, at) for outcome in outcomes for at, row in enumerate(outcome.rows.tolist())}
    assert sorted(ends) == list(range(1000))
    assert {outcome.error is None for outcome in outcomes} == {True, False}
    for row, (outcome, at) in ends.items():
        value = b"v%08d" % row
        if outcome.error is None:
            assert broker.values("t", outcome.partition)[outcome.offset + at] == value
        else:
            assert value not in broker.values("t", outcome.partition)


def test_rows_of_an_outcome_are_those_of_the_batch_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROUND_BYTES_MAX", 10_000)
    broker = double_of(4)
    with producer_of(broker) as producer:
        outcomes = producer.send_batch("t", rows(3000)).outcomes(DEADLINE_S)
    assert sum(len(outcome.rows) for outcome in outcomes) == 3000
    for outcome in outcomes:
        values = broker.values("t", outcome.partition)
        for at, row in enumerate(outcome.rows.tolist()):
            assert values[outcome.offset + at] == b"v%08d" % row


def leave_by_an_error(producer: Producer) -> None:
    with producer:
        for _ in range(100):
            producer.send("t", b"x")
        raise KeyError("the application's own")


def test_a_block_left_by_an_exception_still_sends_what_was_taken() -> None:
    broker = double_of(4)
    with pytest.raises(KeyError):
        leave_by_an_error(producer_of(broker, linger_ms=60_000, delivery_timeout_ms=100_000))
    assert len(written(broker)) == 100


def test_a_block_left_by_an_exception_says_how_many_it_gave_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.producer.producer.CLOSE_AFTER_ERROR_S", 0)
    broker = double_of(4)
    broker.topics["t"].leaders = [-1] * 4
    with caplog.at_level(logging.WARNING), pytest.raises(KeyError):
        leave_by_an_error(producer_of(broker))
    assert "100 record(s) were given up: the block that sent them was left by KeyError" in caplog.text
