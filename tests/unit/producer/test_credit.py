"""Chunks that application threads open themselves: no hand-over for topics that are known, memory that is bounded all the same,
and nothing that is left behind where the producer ends at that very moment.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from brokerd.errors import BufferExhaustedError, ProducerClosedError
from brokerd.producer.intake import Intake
from brokerd.producer.producer import Producer
from brokerd.producer.rows.record_buffer import CHUNK_BYTES_MIN, RecordChunk
from tests.support.broker_double import BrokerDouble, Fault
from tests.support.clock import ManualClock
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_producer import producer_of

TOPICS = [f"t{number}" for number in range(200)]


@pytest.fixture
def broker() -> BrokerDouble:
    double = BrokerDouble()
    for topic in TOPICS:
        double.create_topic(topic, 2)
    return double


def know(producer: Producer, topics: list[str]) -> None:
    """Has the producer know the topics, with nothing staged."""
    for topic in topics:
        producer.send(topic, b"first")
    producer.flush()


def test_records_for_known_topics_ask_nothing_of_the_senders_thread(broker: BrokerDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    open_chunk = Intake.open_chunk

    def counted(self: Intake, *wanted: Any) -> Any:
        asked.append(wanted)
        return open_chunk(self, *wanted)

    with producer_of(broker, linger_ms=60_000) as producer:
        know(producer, TOPICS)
        monkeypatch.setattr(Intake, "open_chunk", counted)
        futures = [producer.send(topic, b"%d" % number) for number in range(5) for topic in TOPICS]
        producer.flush()
        assert asked == []
        assert all(future.result(0).offset >= 0 for future in futures)


def test_chunks_on_credit_stay_within_buffer_memory(broker: BrokerDouble) -> None:
    room = 8
    with producer_of(
        broker, ManualClock(), linger_ms=60_000, buffer_memory=room * CHUNK_BYTES_MIN, batch_size=CHUNK_BYTES_MIN
    ) as producer:
        know(producer, TOPICS)
        intake = producer._intake
        opened = [chunk for topic in TOPICS if (chunk := intake.open_on_credit(topic, 100, None)) is not None]
        assert len(opened) <= room
        producer.flush()  # the sender pays for them
        assert producer.metrics()["buffer-available-bytes"] >= 0


def test_a_chunk_on_credit_is_paid_for_and_given_back(broker: BrokerDouble) -> None:
    with producer_of(broker) as producer:
        know(producer, ["t0"])
        total = producer.metrics()["buffer-total-bytes"]
        for number in range(300):
            producer.send("t0", b"%d" % number)
        producer.flush()
        assert producer.metrics()["buffer-available-bytes"] == total


@pytest.mark.parametrize("size", [CHUNK_BYTES_MIN + 1, 10 * CHUNK_BYTES_MIN])
def test_what_is_larger_than_the_credit_is_asked_for(broker: BrokerDouble, size: int) -> None:
    with producer_of(broker) as producer:
        know(producer, ["t0"])
        assert producer._intake.open_on_credit("t0", size, None) is None
        assert producer.send("t0", b"v" * size).result(DEADLINE_S).offset == 1


def test_a_partition_that_is_not_known_is_asked_for(broker: BrokerDouble) -> None:
    with producer_of(broker) as producer:
        know(producer, ["t0"])
        assert producer._intake.open_on_credit("t0", 10, 2) is None
        with pytest.raises(ValueError, match=r"partition 2 does not exist"):
            producer.send("t0", b"v", partition=2)


def test_a_record_that_comes_while_the_producer_closes_is_refused_or_sent(broker: BrokerDouble) -> None:
    """The sequence: a thread looks whether the producer is open; it is closed, and all chunks are placed; the thread puts its chunk
    there, where nobody would ever look again."""
    producer = producer_of(broker)
    know(producer, ["t0"])
    setdefault = dict.setdefault

    class LateChunks(dict[str, RecordChunk]):
        def setdefault(self, topic: str, chunk: Any = None) -> Any:
            producer.close()
            return setdefault(self, topic, chunk)

    producer._intake.chunks = LateChunks()
    producer._chunks = producer._intake.chunks
    with pytest.raises(ProducerClosedError):
        producer.send("t0", b"late")
    with pytest.raises(ProducerClosedError):
        producer.send("t0", b"later")
    assert [*broker.values("t0", 0), *broker.values("t0", 1)] == [b"first"]


def test_what_waits_for_memory_is_refused_where_the_producers_end_makes_the_room(broker: BrokerDouble) -> None:
    """The sequence: a send_batch waits for room; close() gives up what filled the buffer, which is room enough; nobody is left who
    would send the rows."""
    broker.faults.extend([Fault(drop_request=True)] * 1_000)
    producer = producer_of(broker, linger_ms=0, buffer_memory=CHUNK_BYTES_MIN, batch_size=CHUNK_BYTES_MIN)
    large = pa.RecordBatch.from_pydict({"value": [b"v" * 1_000] * 12})
    given_up = producer.send_batch("t0", large)
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(producer.send_batch, "t0", large)
        wait_until(lambda: producer._core.pool.is_exhausted, what="the second batch waits for memory")
        producer.close(0)
        with pytest.raises(ProducerClosedError):
            waiting.result(DEADLINE_S)
    assert given_up.done()
    assert producer._core.pool.used_bytes == 0


def test_what_waits_for_memory_is_refused_while_close_still_waits(broker: BrokerDouble) -> None:
    broker.faults.extend([Fault(drop_request=True)] * 1_000)
    small: dict[str, Any] = {"linger_ms": 0, "buffer_memory": CHUNK_BYTES_MIN, "batch_size": CHUNK_BYTES_MIN}
    producer = producer_of(broker, **small, request_timeout_ms=600_000, delivery_timeout_ms=1_200_000)
    large = pa.RecordBatch.from_pydict({"value": [b"v" * 1_000] * 12})
    producer.send_batch("t0", large)
    with ThreadPoolExecutor(2) as others:
        waiting = others.submit(producer.send_batch, "t0", large)
        wait_until(lambda: producer._core.pool.is_exhausted, what="the second batch waits for memory")
        closing = others.submit(producer.close, 2 * DEADLINE_S)
        with pytest.raises(ProducerClosedError):
            waiting.result(DEADLINE_S)
        assert not closing.done()
        producer.close(0)
        closing.result(DEADLINE_S)


def test_a_record_for_a_chunk_that_came_after_the_end_is_refused(broker: BrokerDouble) -> None:
    producer = producer_of(broker)
    know(producer, ["t0"])
    producer.close()
    chunk = RecordChunk("t0", 2, 0, CHUNK_BYTES_MIN, producer._mailbox, is_paid=False)
    producer._intake.chunks["t0"] = chunk
    with pytest.raises(ProducerClosedError):
        producer.send("t0", b"late")
    producer.close()


def test_a_record_that_was_refused_is_not_sent_by_a_close_that_still_waits(broker: BrokerDouble) -> None:
    producer = producer_of(broker, linger_ms=0, request_timeout_ms=60_000, delivery_timeout_ms=120_000)
    know(producer, ["t0"])
    broker.faults.append(Fault(drop_request=True))
    producer.send("t0", b"never answered")
    with ThreadPoolExecutor(1) as others:
        closing = others.submit(producer.close, DEADLINE_S)
        wait_until(lambda: producer._intake.is_closed, what="close() has begun")
        chunk = RecordChunk("t0", 2, 0, CHUNK_BYTES_MIN, producer._mailbox, is_paid=False)
        producer._intake.chunks["t0"] = chunk
        with pytest.raises(ProducerClosedError):
            producer.send("t0", b"refused")
        producer._wake()
        wait_until(lambda: not producer._intake.chunks, what="the sender looks at the chunk")
        producer.close(0)
        closing.result(DEADLINE_S)
    assert producer._core.pool.used_bytes == 0
    assert producer.abandoned_count == 1  # the one that was taken


def test_a_full_buffer_is_waited_for_as_before(broker: BrokerDouble) -> None:
    with producer_of(
        broker, linger_ms=60_000, buffer_memory=CHUNK_BYTES_MIN, batch_size=CHUNK_BYTES_MIN, max_block_ms=1_000
    ) as producer:
        know(producer, ["t0"])
        broker.faults.extend([Fault(drop_request=True)] * 1_000)
        with pytest.raises(BufferExhaustedError, match="full of records"):
            fill(producer)
        producer.close(0)


def fill(producer: Producer) -> None:
    """More than fits, while nothing is acknowledged."""
    for _ in range(1_000):
        producer.send("t0", b"v" * 1_000)
