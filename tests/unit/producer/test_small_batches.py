"""A small Arrow batch is not handed over to the sender, and keeps the promises of `send_batch`: its rows stay in order with records
of `send` and get their offsets, its failure affects no other batch, and the caller may reuse its memory.
"""

from __future__ import annotations

import datetime
import itertools
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from brokerd.errors import MessageTooLargeError
from brokerd.producer.columns import small_batch_bytes
from brokerd.producer.intake import SMALL_BATCH_BYTES, Intake
from brokerd.record.schema import HEADERS, TIMESTAMP
from tests.support.broker_double import BrokerDouble, double_of
from tests.support.wait import DEADLINE_S
from tests.unit.producer.test_producer import producer_of, rows

PARTITIONS = 4


@pytest.fixture
def broker() -> BrokerDouble:
    return double_of(PARTITIONS)


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """The arguments of all further calls of a method of the intake."""
    calls: list[Any] = []
    method = getattr(Intake, name)

    def wrapper(self: Intake, *given: Any, **named: Any) -> Any:
        calls.append(given)
        return method(self, *given, **named)

    monkeypatch.setattr(Intake, name, wrapper)
    return calls


@pytest.mark.parametrize("has_keys", [True, False])
def test_small_batches_ask_nothing_of_the_senders_thread(
    broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch, has_keys: bool
) -> None:
    data = rows(10) if has_keys else rows(10).select(["value"])
    with producer_of(broker, linger_ms=60_000) as producer:
        producer.send_batch("t", data)
        producer.flush()
        asked = [counted(monkeypatch, name) for name in ("for_room", "split")]
        futures = [producer.send_batch("t", data) for _ in range(20)]
        producer.flush()
        assert asked == [[], []]
        assert sum(sum(future.result(0).record_counts.values()) for future in futures) == 200


def test_large_batches_are_handed_over(broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    large = rows(5_000)
    assert small_batch_bytes(large) > SMALL_BATCH_BYTES
    staged = counted(monkeypatch, "for_room")
    with producer_of(broker, batch_size=2**20) as producer:
        producer.send_batch("t", large).result(DEADLINE_S)
    assert len(staged) == 1


def test_records_and_small_batches_of_one_chunk_know_their_places(broker: BrokerDouble) -> None:
    with producer_of(broker, linger_ms=60_000) as producer:
        batches, singles = [], []
        for start in range(0, 300, 10):
            batches.append((start, producer.send_batch("t", rows(9, start))))
            singles.append((start + 9, producer.send("t", b"v%08d" % (start + 9), key=b"k%d" % start)))
        producer.flush()
        assert len(broker.requests) == 1, "all of it went through one chunk"
    for number, single in singles:
        place = single.result(0)
        assert broker.values("t", place.partition)[place.offset] == b"v%08d" % number
    for start, batch in batches:
        seen = []
        for outcome in batch.outcomes(0):
            for at, row in enumerate(outcome.rows.tolist()):
                assert broker.values("t", outcome.partition)[outcome.offset + at] == b"v%08d" % (start + row)
                seen.append(row)
        assert sorted(seen) == list(range(9))
        assert sum(batch.result(0).record_counts.values()) == 9
    for partition in range(PARTITIONS):
        assert broker.values("t", partition) == sorted(broker.values("t", partition))


def test_everything_of_a_row_arrives_whatever_its_neighbours_bring(broker: BrokerDouble) -> None:
    bare = pa.RecordBatch.from_pydict({"value": pa.array([b"bare"], pa.binary())})
    headers = pa.array([[{"key": "h", "value": b"x"}], None], HEADERS.type)
    full = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([b"full", None], pa.binary()),
            "headers": headers,
            "timestamp": pa.array([5_000, None], TIMESTAMP.type),
        }
    )
    with producer_of(broker, linger_ms=60_000) as producer:
        zeros = [np.zeros(count, np.int32) for count in (1, 2)]
        producer.send_batch("t", bare, zeros[0])
        producer.send("t", b"single", headers={"s": b"y"}, timestamp=7, partition=0)
        producer.send_batch("t", full, zeros[1])
        producer.send_batch("t", bare, zeros[0])
        producer.flush()
    written = broker.records("t", 0)
    assert [row["value"] for row in written] == [b"bare", b"single", b"full", None, b"bare"]
    assert [row["key"] for row in written] == [None, None, b"k", None, None]
    assert [row["headers"] for row in written] == [
        None,
        [{"key": "s", "value": b"y"}],
        [{"key": "h", "value": b"x"}],
        None,
        None,
    ]
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    millis = [(row["timestamp"] - epoch) // datetime.timedelta(milliseconds=1) for row in written]
    assert (millis[1], millis[2]) == (7, 5)
    assert all(milli > 1_000_000 for milli in (millis[0], millis[3], millis[4]))


def test_named_partitions_and_those_of_the_key_go_together(broker: BrokerDouble) -> None:
    wanted = np.array([3, -1, 0, -1], np.int32)
    with producer_of(broker, linger_ms=60_000) as producer:
        by_key = producer.send_batch("t", rows(4))
        mixed = producer.send_batch("t", rows(4), wanted)
        wanted[:] = 1  # the caller may reuse its array
        producer.flush()
    places = [
        {row: outcome.partition for outcome in future.outcomes(0) for row in outcome.rows.tolist()} for future in (by_key, mixed)
    ]
    assert places[1] == {0: 3, 1: places[0][1], 2: 0, 3: places[0][3]}


def test_the_memory_of_a_batch_is_its_callers_again(broker: BrokerDouble) -> None:
    text = bytearray(b"first")
    offsets = pa.py_buffer(np.array([0, 5], np.int32))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(text)])
    with producer_of(broker, linger_ms=60_000) as producer:
        future = producer.send_batch("t", pa.RecordBatch.from_arrays([value], ["value"]))
        text[:] = b"later"
        producer.flush()
        partition = future.result(0).rows[0].partition
    assert broker.values("t", partition) == [b"first"]


def test_a_batch_that_fails_is_told_of_its_own_rows_alone(broker: BrokerDouble) -> None:
    broker.max_message_bytes = 2_000
    large = pa.RecordBatch.from_pydict({"value": [os.urandom(5_000)]})
    with producer_of(broker, linger_ms=60_000) as producer:
        data = [rows(3), rows(3), large, rows(3)]
        partitions = [np.full(one.num_rows, partition, np.int32) for partition, one in enumerate(data)]
        futures = [producer.send_batch("t", one, wanted) for one, wanted in zip(data, partitions, strict=True)]
        producer.flush()
        assert len(broker.requests) == 1
    assert [type(future.exception(0)) for future in futures] == [type(None), type(None), MessageTooLargeError, type(None)]
    assert [outcome.rows.tolist() for future in futures for outcome in future.outcomes(0)] == [[0, 1, 2], [0, 1, 2], [0], [0, 1, 2]]


def test_a_batch_that_is_split_by_the_broker_still_has_its_rows(broker: BrokerDouble) -> None:
    broker.max_message_bytes = 2_000
    with producer_of(broker, linger_ms=60_000) as producer:
        futures = [(start, producer.send_batch("t", rows(40, start))) for start in range(0, 400, 40)]
        producer.flush()
        assert producer.metrics()["batch-split-rate"] > 0
    for start, future in futures:
        assert sum(future.result(0).record_counts.values()) == 40
        for outcome in future.outcomes(0):
            for at, row in enumerate(outcome.rows.tolist()):
                assert broker.values("t", outcome.partition)[outcome.offset + at] == b"v%08d" % (start + row)


def test_any_mixture_is_written_once_and_in_order(broker: BrokerDouble) -> None:
    numbers = itertools.count()
    with producer_of(broker, linger_ms=0) as producer:
        start = 0
        for count in [1, 7, 0, 3_000, 2, 1, 900, 4] * 5:
            if count:
                producer.send_batch("t", rows(count, start), np.full(count, 2, np.int32))
            else:
                producer.send("t", b"v%08d" % start, partition=2)
            start += count or 1
        producer.flush()
    assert broker.values("t", 2) == [b"v%08d" % number for number in itertools.islice(numbers, start)]
