"""Batches too large for the broker are split in place. Each part completes its own records; an oversized record fails alone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from brokerd.errors import Fate, MessageTooLargeError
from brokerd.producer.columns import encode_pieces, split_rows
from brokerd.producer.core.accumulator import Piece, ProducerBatch
from brokerd.producer.core.transport import RequestLimits
from brokerd.producer.producer import Producer
from tests.support.broker_double import NO_LIMITS, BrokerDouble, Fault, double_of
from tests.support.clock import ManualClock
from tests.support.wait import DEADLINE_S, wait_until

LIMIT = 3_000
SMALL = {"linger.ms": 1_000, "retry.backoff.ms": 1, "retry.backoff.max.ms": 2, "reconnect.backoff.ms": 1}


@pytest.fixture
def broker() -> BrokerDouble:
    return double_of(1, max_message_bytes=LIMIT)


def producer_of(broker: BrokerDouble, clock: Any = None, **settings: object) -> Producer:
    given = SMALL | {name.replace("_", "."): value for name, value in settings.items()}
    return Producer(given, transport_factory=broker.transport, clock=clock)


def rows(start: int, end: int, size: int = 100) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [(b"%06d" % i).ljust(size, b".") for i in range(start, end)]})


def numbers(broker: BrokerDouble) -> list[int]:
    return [int(value[:6]) for value in broker.values("t", 0)]


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_batch_larger_than_the_broker_takes_is_split_in_order(broker: BrokerDouble, in_flight: int, compression: str) -> None:
    settings = {"max.in.flight.batches.per.partition": in_flight, "compression.type": compression}
    with producer_of(broker, **settings) as producer:
        futures = [producer.send_batch("t", rows(at, at + 50)) for at in range(0, 1_000, 50)]
        single = producer.send("t", b"001000")
        producer.flush(DEADLINE_S)
        assert numbers(broker) == list(range(1_001))
        for first, future in zip(range(0, 1_000, 50), futures, strict=True):
            at = first
            for part in future.result(0).rows:
                assert (part.partition, part.offset) == (0, at)
                at += part.record_count
            assert at == first + 50
        assert single.result(0).offset == 1_000
        assert producer.first_error is None
        metrics = producer.metrics()
        assert (metrics["batch-split-total"] > 0) == (metrics["record-retry-total"] == 0) == (metrics["record-error-total"] == 0)
        assert metrics["buffer-available-bytes"] == metrics["buffer-total-bytes"]
        # The producer has learned the limit: later batches fit.
        asked = len(broker.requests)
        producer.send_batch("t", rows(1_001, 1_021))
        producer.flush(DEADLINE_S)
        assert producer.metrics()["batch-split-total"] == metrics["batch-split-total"]
        assert len(broker.requests) > asked


@pytest.mark.parametrize("limit", [10_000, LIMIT])
def test_what_was_learned_is_asked_again_when_it_is_old(broker: BrokerDouble, limit: int) -> None:
    """The limit was raised in the meantime, or is unchanged."""
    clock = ManualClock()
    with producer_of(broker, clock, metadata_max_age_ms=60_000) as producer:
        sent = 0

        def requests_for_more() -> int:
            nonlocal sent
            asked = len(broker.requests)
            producer.send_batch("t", rows(sent, sent + 50))
            sent += 50
            producer.flush(DEADLINE_S)
            return len(broker.requests) - asked

        assert requests_for_more() > 2, "of which one was refused"
        splits = producer.metrics()["batch-split-total"]
        broker.max_message_bytes = limit
        clock.advance(59_999)
        broker.create_topic("u", 1)
        assert producer.partitions_for("u") == 1, "metadata came meanwhile"
        assert [requests_for_more() for _ in range(5)] == [requests_for_more()] * 5
        assert producer.metrics()["batch-split-total"] == splits, "it is remembered"
        clock.advance(60_000)  # metadata is requested again, too
        if limit > LIMIT:
            wait_until(lambda: requests_for_more() == 1, what="batches as large as before")
        else:
            wait_until(lambda: requests_for_more() > 0 and producer.metrics()["batch-split-total"] > splits, what="another try")
            splits = producer.metrics()["batch-split-total"]
            assert [requests_for_more() for _ in range(5)] == [requests_for_more()] * 5
            assert producer.metrics()["batch-split-total"] == splits, "and learned again"
        assert producer.first_error is None
        assert numbers(broker) == list(range(sent))


def test_a_single_record_too_large_fails_alone_and_its_error_says_how_large(broker: BrokerDouble) -> None:
    values = [b"%06d" % i + b"." * (4_000 if i == 7 else 60) for i in range(60)]
    with producer_of(broker) as producer:
        futures = [producer.send("t", value) for value in values]
        producer.flush(DEADLINE_S)
        errors = [future.exception(0) for future in futures]
        assert [i for i, error in enumerate(errors) if error is not None] == [7]
        (error,) = (error for error in errors if error is not None)
        assert isinstance(error, MessageTooLargeError)
        assert error.fate is Fate.NOT_APPENDED
        text = str(error)
        assert text.startswith("one record of t-0 is too large for the broker")
        assert "max.message.bytes (3000)" in text
        assert "batch of 4" in text
        assert numbers(broker) == [i for i in range(60) if i != 7]
        for i, future in enumerate(futures):
            if i != 7:
                assert future.result(0).offset == i - (i > 7)
        assert producer.send("t", b"000061").result(DEADLINE_S).offset == 59


def test_each_callback_is_called_once_when_its_own_part_has_ended(broker: BrokerDouble) -> None:
    seen: list[tuple[int, Any]] = []
    with producer_of(broker) as producer:
        for i in range(60):
            size = 4_000 if i == 30 else 60
            future = producer.send("t", b"%06d" % i + b"." * size)
            future.add_done_callback(lambda done, i=i: seen.append((i, done.exception(0))))  # type: ignore[misc]
        whole = producer.send_batch("t", rows(60, 160))
        whole.add_done_callback(lambda done: seen.append((60, done.exception(0))))
        producer.flush(DEADLINE_S)
        assert sorted(i for i, _ in seen) == list(range(61))
        assert [i for i, error in seen if error is not None] == [30]
        assert whole.result(0).record_counts == {0: 100}


def test_what_awaits_a_split_batch_wakes(broker: BrokerDouble) -> None:
    with producer_of(broker) as producer:

        async def send() -> int:
            whole, single = producer.send_batch("t", rows(0, 100)), producer.send("t", b"000100")
            await whole
            return (await single).offset

        assert asyncio.run(asyncio.wait_for(send(), DEADLINE_S)) == 100


def test_a_batch_whose_earlier_attempt_was_written_is_split_and_not_written_twice(broker: BrokerDouble) -> None:
    """The limit is lowered between an attempt whose response is lost and the retry."""
    broker.max_message_bytes = 100_000
    broker.faults.append(Fault(kill_after=True))

    class Falling(BrokerDouble):
        def produce(self, request: Any) -> Any:
            results = super().produce(request)
            self.max_message_bytes = LIMIT
            return results

    broker.__class__ = Falling
    with producer_of(broker) as producer:
        producer.send_batch("t", rows(0, 100))
        producer.send_batch("t", rows(100, 200))
        producer.flush(DEADLINE_S)
        assert producer.first_error is None
        assert numbers(broker) == list(range(200))
        assert producer.metrics()["batch-split-total"] > 0


def test_without_idempotence_a_batch_is_split_in_order_too(broker: BrokerDouble) -> None:
    with producer_of(broker, enable_idempotence=False) as producer:
        producer.send_batch("t", rows(0, 300))
        producer.flush(DEADLINE_S)
    assert numbers(broker) == list(range(300))


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("has_headers", [False, True])
def test_split_rows_keep_everything_and_share_no_memory(compression: str, has_headers: bool) -> None:
    count = 1_000
    columns: dict[str, Any] = {
        "key": pa.array([None if i % 7 == 0 else b"k%d" % i for i in range(count)], pa.binary()),
        "value": pa.array([None if i % 11 == 0 else b"v" * (i % 50) for i in range(count)], pa.binary()),
    }
    if has_headers:
        kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
        columns["headers"] = pa.array([[{"key": "h", "value": b"%d" % i}] if i % 3 == 0 else None for i in range(count)], kind)
    columns["timestamp"] = pa.array(np.arange(count, dtype=np.int64) * 1000).view(pa.timestamp("us", tz="UTC"))
    data = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    batch = ProducerBatch(None, 0)  # type: ignore[arg-type]
    batch.add(Piece(data, count, data.nbytes, 5))
    batch.encoded = encode_pieces(batch.pieces, compression)
    batch.uncompressed_bytes = batch.encoded.payload.uncompressed_bytes
    pieces = split_rows(batch, batch.uncompressed_bytes // 4)
    assert 4 <= len(pieces) <= 5
    assert [piece.data.schema.names for piece in pieces] == [list(columns)] * len(pieces)
    assert pa.concat_batches([piece.data for piece in pieces]).equals(data)
    assert sum(piece.record_count for piece in pieces) == count
    for piece in pieces:
        held = sum(buffer.size for column in piece.data.columns for buffer in column.buffers() if buffer is not None)
        assert held <= 2 * piece.size_bytes
    assert [piece.record_count for piece in split_rows(batch, 10**9)] == [500, 500]


@pytest.mark.parametrize("in_flight", [1, 5])
def test_a_batch_that_fits_into_no_request_is_split_in_order(in_flight: int) -> None:
    broker = double_of(1, limits=RequestLimits(1_000, LIMIT))
    settings = {"max.in.flight.batches.per.partition": in_flight, "compression.type": "none"}
    with producer_of(broker, **settings) as producer:
        for at in range(0, 1_000, 50):
            producer.send_batch("t", rows(at, at + 50))
        producer.flush(DEADLINE_S)
        assert numbers(broker) == list(range(1_000))
        assert producer.first_error is None
        assert producer.metrics()["batch-split-total"] > 0


def test_one_record_that_fits_into_no_request_fails_alone() -> None:
    broker = double_of(1, limits=RequestLimits(1_000, LIMIT))
    with producer_of(broker, compression_type="none") as producer:
        futures = [producer.send("t", value) for value in (b"000000", b"x" * LIMIT, b"000001")]
        producer.flush(DEADLINE_S)
        with pytest.raises(
            MessageTooLargeError, match=r"one record of t-0 .*socket\.request\.max\.bytes .*max\.request\.size"
        ) as raised:
            futures[1].result(0)
        assert raised.value.fate is Fate.NOT_APPENDED
        assert numbers(broker) == [0, 1]
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]


@pytest.mark.parametrize("acks", ["all", "0"])
def test_batches_that_grow_when_encoded_are_divided_among_requests(acks: str) -> None:
    partitions, rounds = 20, 5
    broker = double_of(partitions, limits=NO_LIMITS._replace(bytes_max=LIMIT))
    with producer_of(broker, acks=acks, enable_idempotence=acks == "all") as producer:
        for number in range(rounds):
            for partition in range(partitions):
                producer.send("t", b"%d" % number, partition=partition)
            producer.flush(DEADLINE_S)
        assert producer.first_error is None
        assert producer.metrics()["record-retry-total"] == producer.metrics()["batch-split-total"] == 0
        assert producer.metrics()["requests-in-flight"] == 0
    assert all(broker.values("t", partition) == [b"0", b"1", b"2", b"3", b"4"] for partition in range(partitions))
    assert max(len(request.batches) for request in broker.requests) > 1
