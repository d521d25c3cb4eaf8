"""Goal: whoever sends large batches splits the next one while the sender encodes the last, and all is the same as if he had waited:
the order of one thread's calls, what flush and close cover, what a full buffer and the producer's end refuse.

Method: the sender's thread is held inside a callback, and what application threads do meanwhile is looked at; or something is done
at the one moment that matters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from brokerd.errors import Fate, InvalidProducerEpochError, ProducerClosedError
from brokerd.producer.core.memory import Promise
from brokerd.producer.core.producer_core import ProducerCore
from brokerd.producer.futures import BatchFuture, Placement
from brokerd.producer.intake import POSTED_MAX, Intake
from brokerd.producer.producer import Producer
from brokerd.producer.rows import columns
from brokerd.producer.rows.record_buffer import CHUNK_BYTES_MIN, RecordChunk
from tests.support.broker_double import BrokerDouble
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_producer import producer_of, rows

COUNT = 3_000  # rows of a batch that is too large for a chunk
SETTINGS: dict[str, Any] = {"linger_ms": 60_000, "delivery_timeout_ms": 200_000, "batch_size": 2**20}


@pytest.fixture
def broker() -> BrokerDouble:
    double = BrokerDouble()
    double.create_topic("t", 2)
    double.create_topic("other", 1)
    return double


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@contextmanager
def held(producer: Producer) -> Iterator[None]:
    """Keeps the sender's thread busy, as a long encoding does; the topics are known."""
    producer.send("t", b"first", partition=1)
    producer.flush(DEADLINE_S)
    is_held, is_over = threading.Event(), threading.Event()

    def hold(_future: object) -> None:
        is_held.set()
        assert is_over.wait(DEADLINE_S)

    future = producer.send("other", b"x")
    future.add_done_callback(hold)
    flushing = threading.Thread(target=producer.flush, args=(DEADLINE_S,))
    flushing.start()
    assert is_held.wait(DEADLINE_S)
    try:
        yield
    finally:
        is_over.set()
        flushing.join(DEADLINE_S)


def send_large(producer: Producer, start: int, count: int = COUNT) -> BatchFuture:
    """Rows for partition 0."""
    return producer.send_batch("t", rows(count, start), np.zeros(count, np.int32))


def is_asked(producer: Producer) -> Callable[[], bool]:
    """True once some call waits for the sender."""
    return lambda: bool(producer._mailbox._posted)


def numbers(broker: BrokerDouble) -> list[int]:
    """The values in partition 0."""
    return [int(value[1:]) for value in broker.values("t", 0)]


def test_large_batches_run_ahead_of_a_busy_sender_up_to_a_bound(broker: BrokerDouble, others: ThreadPoolExecutor) -> None:
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            futures = [send_large(producer, number * COUNT) for number in range(POSTED_MAX)]
            assert not any(future.done() for future in futures)
            one_more = others.submit(send_large, producer, POSTED_MAX * COUNT)
            wait_until(is_asked(producer), what="the next batch waits for the sender")
            assert not one_more.done()
        futures.append(one_more.result(DEADLINE_S))
        producer.flush(DEADLINE_S)
        assert [sum(future.result(0).record_counts.values()) for future in futures] == [COUNT] * (POSTED_MAX + 1)
    assert numbers(broker) == list(range((POSTED_MAX + 1) * COUNT))


def test_batches_run_ahead_only_where_buffer_memory_has_room(broker: BrokerDouble, others: ThreadPoolExecutor) -> None:
    size = sum(part.piece.size_bytes for part in _split(rows(COUNT)))
    with producer_of(broker, **SETTINGS | {"buffer_memory": 2 * size + size // 2, "batch_size": size}) as producer:
        with held(producer):
            send_large(producer, 0)
            send_large(producer, COUNT)
            third = others.submit(send_large, producer, 2 * COUNT)
            wait_until(is_asked(producer), what="the third batch waits for room")
        third.result(DEADLINE_S)
        producer.flush(DEADLINE_S)
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]
    assert numbers(broker) == list(range(3 * COUNT))


def _split(data: pa.RecordBatch) -> list[columns.PartitionPiece]:
    normalized = columns.normalize(data)
    return columns.split(normalized, np.zeros(data.num_rows, np.int32), 2, batch_size=2**20, timestamp_ms=0).pieces


def test_a_record_stays_behind_the_batch_that_was_sent_before_it(broker: BrokerDouble, others: ThreadPoolExecutor) -> None:
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            send_large(producer, 0)
            producer.send("t", b"v%d" % COUNT, partition=0)
            after = others.submit(send_large, producer, COUNT + 1)
            wait_until(is_asked(producer), what="a batch behind an open chunk waits for the sender")
        after.result(DEADLINE_S)
        producer.flush(DEADLINE_S)
    assert numbers(broker) == list(range(2 * COUNT + 1))


def both(producer: Producer) -> None:
    send_large(producer, 0)
    producer.send("t", b"v%d" % COUNT, partition=0)


def test_a_record_whose_chunk_is_due_at_once_stays_behind_its_batch(
    broker: BrokerDouble, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequence: the sender takes in what was posted, and has not looked at the chunks yet; a thread posts a batch and adds a
    record; the sender places the record's chunk."""
    with producer_of(broker, **SETTINGS | {"linger_ms": 0}) as producer:
        producer.send("t", b"first", partition=1)
        producer.flush(DEADLINE_S)
        place_posted = Intake.place_posted
        has_come = threading.Event()

        def place_then_more_comes(self: Intake) -> None:
            place_posted(self)
            if not has_come.is_set() and producer._mailbox.is_own_thread:
                has_come.set()
                others.submit(both, producer).result(DEADLINE_S)

        monkeypatch.setattr(Intake, "place_posted", place_then_more_comes)
        producer._wake()
        assert has_come.wait(DEADLINE_S)
        producer.flush(DEADLINE_S)
    assert numbers(broker) == list(range(COUNT + 1))


def test_a_batch_stays_behind_a_record_whose_chunk_is_being_placed(
    broker: BrokerDouble, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequence: a thread sends a record; the sender takes the chunk off; the thread finds none, and sends a batch; the sender
    places what was posted, then the record."""
    place_rows_of = Intake._place_rows_of
    sent: list[Future[BatchFuture]] = []
    with producer_of(broker, **SETTINGS) as producer:
        producer.send("t", b"first", partition=1)
        producer.flush(DEADLINE_S)

        def more_comes(self: Intake, topic: str, chunk: RecordChunk) -> None:
            if not sent:
                sent.append(others.submit(send_large, producer, 1))
                wait_until(lambda: bool(producer._mailbox._posted or sent[0].done()), what="the batch is asked for, or left")
            place_rows_of(self, topic, chunk)

        monkeypatch.setattr(Intake, "_place_rows_of", more_comes)
        producer.send("t", b"v0", partition=0)
        producer.flush(DEADLINE_S)
        sent[0].result(DEADLINE_S)
    assert numbers(broker) == list(range(COUNT + 1))


def test_a_record_that_comes_as_its_chunk_is_taken_stays_behind_its_batch(broker: BrokerDouble, others: ThreadPoolExecutor) -> None:
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            send_large(producer, 0)
            chunk = RecordChunk("t", 2, 0, CHUNK_BYTES_MIN, producer._mailbox)
            assert chunk.take() is None
            producer._intake.chunks["t"] = chunk  # as whoever looked it up just before still sees it
            late = others.submit(producer.send, "t", b"v%d" % COUNT, partition=0)
            wait_until(is_asked(producer), what="who came late asks for the rest to be taken")
            producer._intake.chunks.pop("t")
        late.result(DEADLINE_S)
        producer.flush(DEADLINE_S)
    assert numbers(broker) == list(range(COUNT + 1))


@pytest.mark.parametrize("end", [Producer.flush, Producer.close])
def test_flush_and_close_cover_what_was_posted(
    broker: BrokerDouble, others: ThreadPoolExecutor, end: Callable[[Producer, float], None]
) -> None:
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            future = send_large(producer, 0)
            ending = others.submit(end, producer, DEADLINE_S)
            wait_until(is_asked(producer), what="the sender is asked to send all")
        ending.result(DEADLINE_S)
        assert future.done()
        assert future.result(0).record_counts == {0: COUNT}


def test_callbacks_of_batches_that_are_not_placed_yet_are_called_once(broker: BrokerDouble) -> None:
    told: list[BatchFuture] = []
    with producer_of(broker, **SETTINGS) as producer:
        with held(producer):
            future = send_large(producer, 0)
            future.add_done_callback(told.append)
        producer.flush(DEADLINE_S)
        assert told == [future]


def test_what_is_posted_after_the_end_is_refused(broker: BrokerDouble) -> None:
    producer = producer_of(broker, **SETTINGS)
    send_large(producer, 0)
    producer.flush(DEADLINE_S)
    producer.close()
    with pytest.raises(ProducerClosedError) as caught:
        send_large(producer, COUNT)
    assert caught.value.taken_rows == 0
    assert producer._core.pool.used_bytes == producer._core.pool.promise_count == 0
    assert numbers(broker) == list(range(COUNT))


def test_what_is_posted_while_the_producer_closes_is_refused_or_sent(broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence: a thread looks whether it may post; the producer is closed, and all is placed; the thread posts, and nobody
    would ever look again."""
    producer = producer_of(broker, **SETTINGS)
    send_large(producer, 0)
    producer.flush(DEADLINE_S)
    promise = producer._core.pool.promise

    def close_then_promise(_pool: object, wanted: Promise) -> bool:
        producer.close()
        return promise(wanted)

    monkeypatch.setattr("brokerd.producer.core.memory.BufferPool.promise", close_then_promise)
    with pytest.raises(ProducerClosedError):
        send_large(producer, COUNT)
    assert producer._core.pool.used_bytes == producer._core.pool.promise_count == 0
    assert numbers(broker) == list(range(COUNT))


def test_what_was_posted_ends_with_a_producer_that_fails(broker: BrokerDouble) -> None:
    producer = producer_of(broker, **SETTINGS)
    told: list[BatchFuture] = []
    with held(producer):
        future = send_large(producer, 0)
        future.add_done_callback(told.append)
        fenced = InvalidProducerEpochError("fenced", fate=Fate.NOT_APPENDED)
        producer._core.fail_for_good(fenced, 0)
    assert isinstance(future.exception(DEADLINE_S), InvalidProducerEpochError)
    producer.close(DEADLINE_S)
    assert told == [future]
    assert producer._core.pool.used_bytes == 0


def test_rows_in_several_rounds_are_done_when_the_last_is(broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROUND_BYTES_MAX", 40_000)
    with producer_of(broker, **SETTINGS | {"linger_ms": 0}) as producer:
        future = send_large(producer, 0, 5 * COUNT)
        assert [len(outcome.rows) for outcome in future.outcomes(DEADLINE_S)].count(0) == 0
        assert sum(future.result(0).record_counts.values()) == 5 * COUNT
    assert numbers(broker) == list(range(5 * COUNT))


def test_room_promised_to_a_call_that_was_interrupted_keeps_nobody_waiting(
    broker: BrokerDouble, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequence: a batch waits for room; another call is interrupted after it set room aside and before it wakes the sender;
    what filled the buffer is acknowledged, and nothing else makes the sender look."""
    parts = _split(rows(COUNT))
    size = sum(part.piece.size_bytes for part in parts)
    on_response = ProducerCore.on_response
    settings = {"buffer_memory": size + 1_000, "batch_size": size, "linger_ms": 0, "max_block_ms": 20_000}
    with producer_of(broker, **SETTINGS | settings) as producer:
        pool = producer._core.pool

        def promised_before(self: ProducerCore, *given: Any) -> None:
            if pool.is_exhausted and not pool.promise_count:
                interrupted = [(0, columns.SplitRows(parts, None))]
                placement = Placement("t", producer._mailbox)
                pool._promises.append(Promise(size, lambda: producer._intake._take_in("t", interrupted, placement, True)))
                monkeypatch.undo()
            on_response(self, *given)

        with held(producer):
            send_large(producer, 0)
            waiting = others.submit(send_large, producer, COUNT)
            wait_until(is_asked(producer), what="the second batch waits for room")
            monkeypatch.setattr(ProducerCore, "on_response", promised_before)
        waiting.result(DEADLINE_S).result(DEADLINE_S)
    assert len(numbers(broker)) == 3 * COUNT
