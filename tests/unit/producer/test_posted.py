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
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from brokerd.errors import Fate, InvalidProducerEpochError, ProducerClosedError
from brokerd.producer.core.memory import Promise
from brokerd.producer.futures import BatchFuture, Placement
from brokerd.producer.intake import POSTED_MAX, Intake
from brokerd.producer.mailbox import Work
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
    """Keeps the sender's thread busy between two steps, as a long encoding does. Topics are known, nothing is under way."""
    producer.send("t", b"first", partition=1)
    producer.flush(DEADLINE_S)
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        assert is_over.wait(DEADLINE_S)

    in_senders_thread(producer, hold)
    assert is_held.wait(DEADLINE_S)
    try:
        yield
    finally:
        is_over.set()


def in_senders_thread(producer: Producer, action: Callable[[], object]) -> None:
    """Has it done there, as an event is reported: between two steps, while none is due."""
    wakeup = producer._sender._wakeup
    loop = wakeup._loop
    assert loop is not None

    def act() -> None:
        if wakeup._event.is_set():
            loop.call_soon(act)
        else:
            action()

    loop.call_soon_threadsafe(act)


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
    assert producer._core.pool.used_bytes == len(producer._core.pool.promises) == 0
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
    assert producer._core.pool.used_bytes == len(producer._core.pool.promises) == 0
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


class Full:
    """A producer whose buffer is full of one batch, while another one waits for room; nothing is answered until `answer`."""

    def __init__(self, broker: BrokerDouble, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts = _split(rows(COUNT))
        self.size = sum(part.piece.size_bytes for part in self.parts)
        settings = {
            "buffer_memory": self.size + 1_000,
            "batch_size": self.size,
            "linger_ms": 0,
            "max_block_ms": 60_000,
            "request_timeout_ms": 100_000,
        }
        self.producer = producer_of(broker, **SETTINGS | settings)
        self.core = self.producer._core
        self._responses: list[tuple[Any, ...]] = []
        with held(self.producer):
            monkeypatch.setattr(self.core, "on_response", lambda *given: self._responses.append(given))
            self.first = send_large(self.producer, 0)
            self.waiting = others.submit(send_large, self.producer, COUNT)
            wait_until(is_asked(self.producer), what="the second batch waits for the sender")
        wait_until(lambda: bool(self._responses), what="the first batch is written")
        monkeypatch.undo()
        assert self.core.pool.is_exhausted

    def promise_interrupted(self) -> None:
        """Leaves what a call leaves that is interrupted after it set room aside and before it says whether there is any."""
        take_in = self.producer._intake._take_in
        interrupted, placement = [(0, columns.SplitRows(self.parts, None))], Placement("t", self.producer._mailbox)
        self.core.pool.promises.append(Promise(self.size, lambda: take_in("t", interrupted, placement, True)))

    def answer(self, before: Callable[[], object]) -> None:
        """Reports the response; `before` happens just before."""

        def report() -> None:
            before()
            self.producer._sender._report(partial(self.core.on_response, *self._responses[0][:-1]))

        in_senders_thread(self.producer, report)


@pytest.fixture
def full(broker: BrokerDouble, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> Iterator[Full]:
    made = Full(broker, others, monkeypatch)
    with made.producer:
        yield made


def test_room_promised_to_a_call_that_was_interrupted_keeps_nobody_waiting(broker: BrokerDouble, full: Full) -> None:
    """The sequence: a batch waits for room; another call is interrupted after it set room aside and before it wakes the sender;
    what filled the buffer is acknowledged, and nothing else makes the sender look."""
    full.answer(full.promise_interrupted)
    full.waiting.result(DEADLINE_S).result(DEADLINE_S)
    assert len(numbers(broker)) == 3 * COUNT


def test_such_room_keeps_nobody_waiting_for_the_room_of_a_batch_that_had_ended(broker: BrokerDouble, full: Full) -> None:
    """The sequence: the batch that fills the buffer is given up, and its response comes after that: no batch ends then."""
    in_senders_thread(full.producer, lambda: full.producer._sender._report(partial(full.core.abort, "as the test wants it")))
    assert full.first.exception(DEADLINE_S) is not None
    assert not full.waiting.done()
    full.answer(full.promise_interrupted)
    full.waiting.result(DEADLINE_S).result(DEADLINE_S)
    assert len(numbers(broker)) == 3 * COUNT


def test_room_that_a_resumed_call_gives_back_wakes_one_that_was_resumed_before(
    broker: BrokerDouble, others: ThreadPoolExecutor
) -> None:
    """The sequence: a call waits for a topic, the next one for room; the first comes for room too, behind it. Room becomes
    free: the first is resumed in vain, then the next one, which finds that it needs nothing and gives its room back."""
    with producer_of(broker, **SETTINGS | {"max_block_ms": 60_000}) as producer:
        pool, mailbox, room = producer._core.pool, producer._mailbox, producer._intake._room
        total, deadline_ms = pool.total_bytes, producer._deadline_ms()
        has_topic = threading.Event()

        def first() -> Work[None]:
            while not has_topic.is_set():
                yield
            yield from room(100, deadline_ms)
            pool.release(100)

        def second() -> Work[None]:
            assert pool.try_allocate(total)
            yield from room(total, deadline_ms)
            pool.release(total)

        asked = [others.submit(mailbox.ask, first())]
        wait_until(lambda: len(mailbox._waiting) == 1, what="the first waits")
        asked.append(others.submit(mailbox.ask, second()))
        wait_until(lambda: len(pool._waiters) == 1, what="the second waits for room")
        has_topic.set()
        producer._wake()
        wait_until(lambda: len(pool._waiters) == 2, what="the first waits for room behind it")
        in_senders_thread(producer, lambda: producer._sender._report(lambda _now_ms: pool.release(total)))
        for one in asked:
            one.result(DEADLINE_S)
