"""Application threads stage records without waiting for the sender, and nothing else changes: the order of one thread's calls, what
flush and close cover, what a full buffer and a closed producer refuse.

The tests block the sender's thread and check what application threads do meanwhile, or act at one critical moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from brokerd.errors import BufferExhaustedError, Fate, InvalidProducerEpochError, ProducerClosedError
from brokerd.producer import columns
from brokerd.producer.core.accumulator import NEVER_MS
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.futures import BatchFuture
from brokerd.producer.intake import CHUNK_BYTES_MIN, STAGED_MAX, Intake, RecordChunk
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, Fault, double_of
from tests.support.clock import LateClock
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_producer import out_of_time, producer_of, rows

COUNT = 3_000  # rows of a batch that is too large for a chunk
SETTINGS: dict[str, Any] = {"linger_ms": 60_000, "delivery_timeout_ms": 200_000, "batch_size": 2**20}
TINY: dict[str, Any] = {"linger_ms": 0, "buffer_memory": CHUNK_BYTES_MIN, "batch_size": CHUNK_BYTES_MIN}
LARGE = pa.RecordBatch.from_pydict({"value": [b"v" * 1_000] * 12})  # more than half of TINY's buffer


@pytest.fixture
def broker() -> BrokerDouble:
    double = double_of(2)
    double.create_topic("other", 1)
    return double


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def know(producer: Producer) -> None:
    """Has the producer learn the topic, with nothing in flight."""
    producer.send("t", b"first", partition=1)
    producer.flush(DEADLINE_S)


@contextmanager
def held(producer: Producer) -> Iterator[None]:
    """Blocks the sender's thread between two steps, as a long encoding would."""
    know(producer)
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        assert is_over.wait(DEADLINE_S)

    loop = producer._sender._loop
    assert loop is not None
    loop.call_soon_threadsafe(hold)
    assert is_held.wait(DEADLINE_S)
    try:
        yield
    finally:
        is_over.set()


def send_large(producer: Producer, start: int, count: int = COUNT) -> BatchFuture:
    """Sends a batch to partition 0."""
    return producer.send_batch("t", rows(count, start), np.zeros(count, np.int32))


def is_waiting(producer: Producer) -> bool:
    """True while a call waits."""
    with producer._shared.lock:
        return bool(producer._shared._waits)


def numbers(broker: BrokerDouble) -> list[int]:
    """The numbers of the rows in partition 0."""
    return [int(value[1:]) for value in broker.values("t", 0)]


def test_records_and_batches_run_ahead_of_a_busy_sender_up_to_a_limit(broker: BrokerDouble, others: ThreadPoolExecutor) -> None:
    count = STAGED_MAX - 1
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            futures = [send_large(producer, number * COUNT) for number in range(count)]
            one = producer.send("t", b"v%d" % (count * COUNT), partition=0)
            last = others.submit(send_large, producer, count * COUNT + 1)
            assert not last.exception(DEADLINE_S)
            late = others.submit(send_large, producer, (count + 1) * COUNT + 1)
            wait_until(lambda: is_waiting(producer), what="one batch too many to wait for the sender")
            assert not one.done()
            assert not any(future.done() for future in futures)
        late.result(DEADLINE_S)
        producer.flush(DEADLINE_S)
        assert [sum(future.result(0).record_counts.values()) for future in futures] == [COUNT] * count
    assert numbers(broker) == list(range((count + 2) * COUNT + 1))


def test_batches_run_ahead_only_where_buffer_memory_has_room(broker: BrokerDouble, others: ThreadPoolExecutor) -> None:
    split = columns.split(columns.normalize(rows(COUNT)), np.zeros(COUNT, np.int32), 2, batch_size=2**20, timestamp_ms=0)
    size = sum(part.piece.size_bytes for part in split.pieces)
    with producer_of(broker, **SETTINGS | {"buffer_memory": 2 * size + size // 2, "batch_size": size}) as producer:
        with held(producer):
            send_large(producer, 0)
            send_large(producer, COUNT)
            third = others.submit(send_large, producer, 2 * COUNT)
            wait_until(lambda: is_waiting(producer), what="the third batch waits for room")
            assert not third.done()
        third.result(DEADLINE_S)
        producer.flush(DEADLINE_S)
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]
    assert numbers(broker) == list(range(3 * COUNT))


def test_records_and_batches_stay_in_the_order_of_the_calls(broker: BrokerDouble) -> None:
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            send_large(producer, 0)
            producer.send("t", b"v%d" % COUNT, partition=0)
            send_large(producer, COUNT + 1)
        producer.flush(DEADLINE_S)
    assert numbers(broker) == list(range(2 * COUNT + 1))


def test_a_batch_stays_behind_a_record_that_is_being_placed(
    broker: BrokerDouble, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application sends a record; the sender seals its chunk; the application sends a batch; the sender places the record."""
    place_chunk = Intake._place_chunk
    sent: list[BatchFuture] = []
    with producer_of(broker, **SETTINGS | {"linger_ms": 0}) as producer:
        know(producer)

        def more_comes(self: Intake, chunk: RecordChunk) -> None:
            if not sent:
                sent.append(others.submit(send_large, producer, 1).result(DEADLINE_S))
            place_chunk(self, chunk)

        monkeypatch.setattr(Intake, "_place_chunk", more_comes)
        producer.send("t", b"v0", partition=0)
        producer.flush(DEADLINE_S)
    assert numbers(broker) == list(range(COUNT + 1))


@pytest.mark.parametrize("is_in_time", [True, False])
def test_a_record_for_a_chunk_that_is_sealed_meanwhile_is_written_once(broker: BrokerDouble, *, is_in_time: bool) -> None:
    """A thread looks up its chunk; the sender seals the chunk before or after the thread adds its record."""
    with producer_of(broker, **SETTINGS) as producer:
        know(producer)
        producer.send("t", b"before", partition=0)
        chunk = producer._chunks["t"]
        add = chunk.add

        def add_and_flush(row: Any) -> None:
            if is_in_time:
                add(row)
            chunk.add = add
            producer.flush(DEADLINE_S)
            if not is_in_time:
                add(row)

        chunk.add = add_and_flush
        future = producer.send("t", b"between", partition=0)
        producer.send("t", b"after", partition=0)
        producer.flush(DEADLINE_S)
        assert future.result(0).offset == 1
    assert broker.values("t", 0) == [b"before", b"between", b"after"]


@pytest.mark.parametrize("end", [Producer.flush, Producer.close])
def test_flush_and_close_cover_what_was_staged(
    broker: BrokerDouble, others: ThreadPoolExecutor, end: Callable[[Producer, float], None]
) -> None:
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            future, one = send_large(producer, 0), producer.send("t", b"x", partition=1)
            ending = others.submit(end, producer, DEADLINE_S)
        ending.result(DEADLINE_S)
        assert future.done()
        assert one.done()
        assert future.result(0).record_counts == {0: COUNT}


def test_callbacks_of_batches_that_are_not_placed_yet_are_called_once(broker: BrokerDouble) -> None:
    told: list[BatchFuture] = []
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            future = send_large(producer, 0)
            future.add_done_callback(told.append)
        producer.flush(DEADLINE_S)
        assert told == [future]


def test_what_comes_after_the_end_is_refused(broker: BrokerDouble) -> None:
    producer = producer_of(broker, **SETTINGS)
    send_large(producer, 0)
    producer.close()
    with pytest.raises(ProducerClosedError) as caught:
        send_large(producer, COUNT)
    assert caught.value.taken_rows == 0
    assert producer._core.pool.used_bytes == 0
    assert numbers(broker) == list(range(COUNT))


def test_what_was_staged_ends_with_a_producer_that_fails(broker: BrokerDouble) -> None:
    producer = producer_of(broker, **SETTINGS)
    told: list[BatchFuture] = []
    with held(producer):
        future = send_large(producer, 0)
        future.add_done_callback(told.append)
        with producer._shared.lock:
            producer._core.fail_for_good(InvalidProducerEpochError("fenced", fate=Fate.NOT_APPENDED), 0)
    assert isinstance(future.exception(DEADLINE_S), InvalidProducerEpochError)
    producer.close(DEADLINE_S)
    assert told == [future]
    assert producer._core.pool.used_bytes == 0


def test_a_record_that_comes_between_the_last_look_at_chunks_and_the_end_is_sent(
    broker: BrokerDouble, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender has placed all records; a thread sends one more; the producer closes; the sender continues."""
    producer = producer_of(broker, **SETTINGS)
    know(producer)
    place_due = Intake.place_due
    sent: list[Any] = []

    def send_then_close(self: Intake, now_ms: int) -> int:
        next_ms = place_due(self, now_ms)
        if not sent:
            sent.append(others.submit(producer.send, "t", b"v0", partition=0).result(DEADLINE_S))
            producer._core.close(NEVER_MS)
        return next_ms

    monkeypatch.setattr(Intake, "place_due", send_then_close)
    with producer._shared.lock:
        producer._wake()
    wait_until(lambda: bool(sent))
    producer.close(DEADLINE_S)
    assert sent[0].result(0).offset == 0


def test_rows_in_several_rounds_are_done_when_the_last_is(broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROUND_BYTES_MAX", 40_000)
    with producer_of(broker, **SETTINGS | {"linger_ms": 0}) as producer:
        future = send_large(producer, 0, 5 * COUNT)
        assert [len(outcome.rows) for outcome in future.outcomes(DEADLINE_S)].count(0) == 0
        assert sum(future.result(0).record_counts.values()) == 5 * COUNT
    assert numbers(broker) == list(range(5 * COUNT))


def test_what_waits_for_memory_is_refused_where_the_producers_end_makes_the_room(
    broker: BrokerDouble, others: ThreadPoolExecutor
) -> None:
    broker.faults.extend([Fault(drop_request=True)] * 1_000)
    producer = producer_of(broker, **TINY)
    given_up = producer.send_batch("t", LARGE)
    waiting = others.submit(producer.send_batch, "t", LARGE)
    wait_until(lambda: producer._core.pool.is_exhausted, what="the second batch waits for memory")
    producer.close(0)
    with pytest.raises(ProducerClosedError):
        waiting.result(DEADLINE_S)
    assert given_up.done()
    assert producer._core.pool.used_bytes == 0


def test_what_waits_for_memory_is_refused_while_close_still_waits(broker: BrokerDouble, others: ThreadPoolExecutor) -> None:
    broker.faults.extend([Fault(drop_request=True)] * 1_000)
    producer = producer_of(broker, **TINY, request_timeout_ms=600_000, delivery_timeout_ms=1_200_000)
    producer.send_batch("t", LARGE)
    waiting = others.submit(producer.send_batch, "t", LARGE)
    wait_until(lambda: producer._core.pool.is_exhausted, what="the second batch waits for memory")
    closing = others.submit(producer.close, 2 * DEADLINE_S)
    with pytest.raises(ProducerClosedError):
        waiting.result(DEADLINE_S)
    assert not closing.done()
    producer.close(0)
    closing.result(DEADLINE_S)


def test_a_full_buffer_is_waited_for(broker: BrokerDouble) -> None:
    clock = LateClock()
    with producer_of(broker, clock, **TINY | {"linger_ms": 60_000}) as producer:
        know(producer)
        broker.faults.extend([Fault(drop_request=True)] * 1_000)
        error = out_of_time(clock, lambda: fill(producer), lambda: producer._core.pool.is_exhausted)
        assert isinstance(error, BufferExhaustedError)
        assert "full of records" in str(error)
        producer.close(0)


def fill(producer: Producer) -> None:
    """Sends more than fits while nothing is acknowledged."""
    for _ in range(1_000):
        producer.send("t", b"v" * 1_000)


def test_chunks_of_many_topics_stay_within_buffer_memory(broker: BrokerDouble) -> None:
    topics = [f"t{number}" for number in range(50)]
    for topic in topics:
        broker.create_topic(topic, 1)
    with producer_of(broker, linger_ms=60_000, buffer_memory=8 * CHUNK_BYTES_MIN, batch_size=CHUNK_BYTES_MIN) as producer:
        for number in range(5):
            for topic in topics:
                producer.send(topic, b"%d" % number)
                assert producer._core.pool.used_bytes <= 8 * CHUNK_BYTES_MIN
        producer.flush(DEADLINE_S)
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]
    assert all(broker.values(topic, 0) == [b"0", b"1", b"2", b"3", b"4"] for topic in topics)


@pytest.mark.parametrize("is_large", [True, False])
def test_a_call_that_waits_for_room_and_the_sender_do_not_keep_each_other_awake(
    broker: BrokerDouble, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, *, is_large: bool
) -> None:
    monkeypatch.setattr("brokerd.producer.waiting._LOOK_AGAIN_S", DEADLINE_S)
    looks, steps = [0], [0]
    has_room, step = Intake._has_room, ProducerCore.step

    def looking(self: Intake, *rest: Any) -> bool:
        looks[0] += 1
        return has_room(self, *rest)

    def stepping(self: ProducerCore, now_ms: int, **rest: Any) -> Any:
        steps[0] += 1
        return step(self, now_ms, **rest)

    def reached(wanted: int) -> bool:
        return steps[0] >= wanted

    monkeypatch.setattr(ProducerCore, "step", stepping)
    with producer_of(broker, **TINY | {"request_timeout_ms": 60_000, "delivery_timeout_ms": 200_000}) as producer:
        know(producer)
        broker.faults.append(Fault(drop_answer=True))
        producer.send_batch("t", LARGE)
        monkeypatch.setattr(Intake, "_has_room", looking)
        others.submit(producer.send_batch if is_large else producer.send, "t", LARGE if is_large else b"v" * 12_000)
        wait_until(lambda: is_waiting(producer))
        for wanted in range(steps[0] + 1, steps[0] + 6):
            with producer._shared.lock:
                producer._wake()
            wait_until(partial(reached, wanted))
        assert looks == [1]
        producer.close(0)
