"""The public Producer against the broker double, with the real core, sender and encoding."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from brokerd.clock import Clock
from brokerd.errors import (
    AbortedBatchError,
    BrokerUnreachableError,
    BufferExhaustedError,
    ConfigError,
    DeliveryTimeoutError,
    Fate,
    InvalidProducerEpochError,
    MessageTooLargeError,
    NotReadyError,
    ProducerClosedError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from brokerd.ids import TopicPartition
from brokerd.producer.core.partitioner import partition_for_keys
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, Fault, double_of
from tests.support.clock import LateClock, ManualClock
from tests.support.wait import DEADLINE_S, wait_until

MAX_BLOCK_MS = 60_000  # the default
FAST: dict[str, object] = {
    "linger.ms": 0,
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 2,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 2,
}


@pytest.fixture
def broker() -> BrokerDouble:
    return double_of(4)


class Given(Producer):
    """Closes without waiting if a test fails, since a manual clock no longer advances."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, AssertionError | pytest.fail.Exception):
            self.close(0)
        super().__exit__(kind, error, trace)


def producer_of(broker: BrokerDouble, clock: Clock | None = None, **settings: object) -> Producer:
    given = {**FAST, **{name.replace("_", "."): value for name, value in settings.items()}}
    return Given(given, transport_factory=broker.transport, clock=clock)


@pytest.fixture
def producer(broker: BrokerDouble) -> Iterator[Producer]:
    with producer_of(broker) as made:
        yield made


def out_of_time(clock: LateClock, call: Callable[[], object], is_due: Callable[[], bool]) -> BaseException | None:
    """The error of a call whose max.block.ms ends once `is_due`, however long that takes."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call)
        wait_until(lambda: waiting.done() or is_due())
        clock.late_ms += MAX_BLOCK_MS
        return waiting.exception(DEADLINE_S)


def is_missed(producer: Producer, topic: str) -> bool:
    """True once the producer has heard that there is no such topic."""
    return producer._core.topics.error_of(topic, 0) is not None


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_pydict(
        {"key": [b"k%d" % (i % 50) for i in numbers], "value": [b"v%08d" % i for i in numbers]},
        schema=pa.schema([("key", pa.binary()), ("value", pa.binary())]),
    )


def assert_in_order(broker: BrokerDouble, count: int, partitions: int = 4) -> None:
    """Every row is there once, each partition in the order of sending, each key in Kafka's partition."""
    everything: list[bytes] = []
    for partition in range(partitions):
        values = broker.values("t", partition)
        assert values == sorted(values)
        everything += values
        keys = pa.array([row["key"] for row in broker.records("t", partition)], pa.binary())
        assert set(partition_for_keys(keys, partitions).tolist()) <= {partition}
    assert sorted(everything) == [b"v%08d" % i for i in range(count)]


def test_send_batch_puts_each_row_once_in_order(broker: BrokerDouble, producer: Producer) -> None:
    futures = [producer.send_batch("t", rows(1000, start)) for start in range(0, 20_000, 1000)]
    producer.flush(DEADLINE_S)
    assert_in_order(broker, 20_000)
    result = futures[3].result(0)
    assert sum(result.record_counts.values()) == 1000
    for part in result.rows:
        assert broker.values("t", part.partition)[part.offset] >= b"v%08d" % 3000
    assert sum(total.record_count for total in producer.delivered().values()) == 20_000


def test_send_returns_where_each_record_is(broker: BrokerDouble, producer: Producer) -> None:
    futures = [producer.send("t", b"v%08d" % i, key=b"k%d" % (i % 50)) for i in range(10_000)]
    producer.flush(DEADLINE_S)
    assert_in_order(broker, 10_000)
    values = [broker.values("t", partition) for partition in range(4)]
    for i, future in enumerate(futures):
        topic, partition, offset, *_ = future.result(0)
        assert (topic, values[partition][offset]) == ("t", b"v%08d" % i)


def test_everything_of_a_record_arrives(broker: BrokerDouble, producer: Producer) -> None:
    sent = producer.send("t", "text", key="é", headers=[("h", b"1"), ("h", None)], partition=2, timestamp=1_700_000_000_123)
    producer.send("t", None, key=b"gone", partition=2)
    producer.send("t", b"", partition=2, headers={"a": b"b"})
    where = sent.result(DEADLINE_S)
    producer.flush(DEADLINE_S)
    assert (where.partition, where.offset, where.timestamp) == (2, 0, 1_700_000_000_123)
    first, second, third = broker.records("t", 2)
    assert (first["key"], first["value"]) == ("é".encode(), b"text")
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert int(first["timestamp"].timestamp() * 1000) == 1_700_000_000_123
    assert (second["value"], second["headers"]) == (None, None)
    assert (third["key"], third["value"], third["headers"]) == (None, b"", [{"key": "a", "value": b"b"}])


def test_given_partitions_override_the_key_and_minus_one_does_not(broker: BrokerDouble, producer: Producer) -> None:
    batch = rows(8)
    wanted = np.array([3, 3, -1, 0, -1, 3, 0, 3], np.int32)
    producer.send_batch("t", batch, partitions=wanted).result(DEADLINE_S)
    hashed = partition_for_keys(batch.column(0), 4).tolist()
    for partition in range(4):
        expected = [b"v%08d" % i for i, want in enumerate(wanted.tolist()) if (want if want >= 0 else hashed[i]) == partition]
        assert broker.values("t", partition) == expected


@pytest.mark.parametrize("is_batch", [True, False])
def test_rows_without_a_key_stick_and_spread(broker: BrokerDouble, is_batch: bool) -> None:
    with producer_of(broker, batch_size=20_000) as producer:
        if is_batch:
            producer.send_batch("t", pa.RecordBatch.from_pydict({"value": [b"x" * 100] * 20_000}))
        else:
            for _ in range(20_000):
                producer.send("t", b"x" * 100)
    counts = [len(broker.values("t", partition)) for partition in range(4)]
    assert sum(counts) == 20_000
    assert min(counts) > 2000


FAULTS = {
    "request dropped by a break": Fault(kill_before=True),
    "answer lost with the stream": Fault(kill_after=True),
    "answered twice": Fault(answer_twice=True),
    "not ready": Fault(error=NotReadyError("starting", fate=Fate.NOT_APPENDED)),
    "storage error, fate unknown": Fault(error=StorageError("disk", fate=Fate.UNKNOWN)),
    "throttled": Fault(refusal=NotReadyError("busy", fate=Fate.NOT_APPENDED, retry_after_ms=5)),
}


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_neither_duplicates_nor_reorders(broker: BrokerDouble, fault: Fault, in_flight: int) -> None:
    broker.faults.extend([Fault(), fault, fault, Fault(), fault])
    settings = {"batch.size": 4000, "max.in.flight.batches.per.partition": in_flight}
    with Producer({**FAST, **settings}, transport_factory=broker.transport) as producer:
        for start in range(0, 5000, 500):
            producer.send_batch("t", rows(500, start))
        producer.flush(DEADLINE_S)
        assert producer.first_error is None
    assert_in_order(broker, 5000)


def test_a_lost_answer_times_out_and_is_asked_again(broker: BrokerDouble) -> None:
    broker.faults.extend([Fault(drop_answer=True), Fault(drop_request=True)])
    with producer_of(broker, request_timeout_ms=50) as producer:
        assert producer.send("t", b"v00000000", partition=0).result(DEADLINE_S).offset == 0
    assert broker.values("t", 0) == [b"v00000000"]
    # Each of the two faults costs a stream. If the machine paused, a third request may have timed out.
    assert [hello.incarnation for hello in broker.hellos] == list(range(1, max(3, len(broker.hellos)) + 1))


def test_an_unknown_topic_is_waited_for_and_then_named(broker: BrokerDouble) -> None:
    clock = LateClock()
    with producer_of(broker, clock) as producer:
        error = out_of_time(clock, lambda: producer.send("nowhere", b"x"), lambda: is_missed(producer, "nowhere"))
        assert isinstance(error, UnknownTopicOrPartitionError)
        assert "'nowhere' still does not exist after max.block.ms (60000 ms): create it (" in str(error)
        # the broker would refuse to create this one
        error = out_of_time(clock, lambda: producer.send("__own", b"x"), lambda: is_missed(producer, "__own"))
        assert isinstance(error, UnknownTopicOrPartitionError)
        assert re.search("'__own' still does not exist .*: names that start with '__'", str(error))
        broker.metadata_errors.extend([BrokerUnreachableError("nobody at 127.0.0.1:9")] * 100_000)
        nobody = r"127\.0\.0\.1:9192: nobody at 127\.0\.0\.1:9"
        error = out_of_time(
            clock, lambda: producer.send("other", b"x"), lambda: isinstance(producer._core.last_trouble, BrokerUnreachableError)
        )
        assert isinstance(error, BrokerUnreachableError)
        assert re.search(nobody, str(error))


def test_a_callback_that_would_have_to_wait_is_told_so_at_once(broker: BrokerDouble) -> None:
    """The topic exists and the broker answers; the sender's thread fetches metadata, so its callback cannot wait for them."""
    for name in ("later", "held"):
        broker.create_topic(name, 1)
    broker.topics["held"].leaders = [-1]
    told: list[BaseException] = []
    with producer_of(broker, buffer_memory=50_000, linger_ms=60_000) as producer:

        def call_back(_: object) -> None:
            told.append(_raised(lambda: producer.send("later", b"x")))
            producer.send_batch("held", rows(1500))
            told.append(_raised(lambda: producer.send_batch("t", rows(1500))))

        assert producer.partitions_for("held") == 1
        producer.send("t", b"x").add_done_callback(call_back)
        producer.flush(DEADLINE_S)
        assert producer.partitions_for("later") == 1
        producer.close(0)
    topic, room = told
    assert isinstance(topic, UnknownTopicOrPartitionError)
    assert "no metadata for topic 'later' now, and a callback cannot wait" in str(topic)
    assert "call partitions_for('later') before, or send from another thread" in str(topic)
    assert isinstance(room, BufferExhaustedError)
    assert "now, and a callback cannot wait" in str(room)


def test_a_full_buffer_blocks_and_then_says_so(broker: BrokerDouble) -> None:
    broker.topics["t"].leaders = [-1] * 4
    clock = LateClock()
    with producer_of(broker, clock, buffer_memory=50_000) as producer:
        producer.send_batch("t", rows(1500))
        error = out_of_time(clock, lambda: producer.send_batch("t", rows(1500)), lambda: producer._core.pool.is_exhausted)
        assert isinstance(error, BufferExhaustedError)
        assert "max.block.ms (60000 ms): buffer.memory (50000)" in str(error)
        producer.close(0)


def test_a_batch_larger_than_the_whole_buffer_goes_alone(broker: BrokerDouble) -> None:
    with producer_of(broker, buffer_memory=1000) as producer:
        for start in range(0, 3000, 1000):
            producer.send_batch("t", rows(1000, start))
        producer.send("t", b"v00003000", key=b"k0")
    assert sum(len(broker.values("t", partition)) for partition in range(4)) == 3001


def test_a_record_that_fits_no_request_is_refused(producer: Producer) -> None:
    big = b"x" * (9 * 1024 * 1024)
    with pytest.raises(MessageTooLargeError, match=r"max\.request\.size \(8388608\).*max\.message\.bytes"):
        producer.send("t", big)
    with pytest.raises(MessageTooLargeError, match=r"record of 94\d+ bytes"):
        producer.send_batch("t", pa.RecordBatch.from_pydict({"value": [b"a", big]}))


def test_a_batch_too_large_for_the_topic_fails_and_the_rest_goes_on(broker: BrokerDouble) -> None:
    broker.max_message_bytes = 5000
    with producer_of(broker) as producer:
        with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes \(5000\)"):
            producer.send("t", b"x" * 6000, partition=0).result(DEADLINE_S)
        assert producer.send("t", b"y", partition=0).result(DEADLINE_S).offset == 0


def test_delivery_timeout_says_whether_it_may_be_there(broker: BrokerDouble) -> None:
    broker.faults.extend([Fault(drop_answer=True)])
    clock = ManualClock()
    with producer_of(broker, clock, request_timeout_ms=40, delivery_timeout_ms=60, reconnect_backoff_ms=1000) as producer:
        future = producer.send("t", b"x", partition=0)
        wait_until(lambda: bool(broker.requests))
        clock.advance(60)
        error = future.exception(DEADLINE_S)
    assert isinstance(error, DeliveryTimeoutError)
    assert "may still be in the log" in str(error)
    broker.topics["t"].leaders = [-1] * 4
    with producer_of(broker, request_timeout_ms=40, delivery_timeout_ms=60) as producer:
        error = producer.send("t", b"x", partition=0).exception(DEADLINE_S)
    assert isinstance(error, DeliveryTimeoutError)
    assert "they are not in the log" in str(error)


def test_fencing_is_final(broker: BrokerDouble) -> None:
    broker.faults.append(Fault(error=InvalidProducerEpochError("fenced", fate=Fate.NOT_APPENDED)))
    with producer_of(broker) as producer:
        with pytest.raises(InvalidProducerEpochError):
            producer.send("t", b"x").result(DEADLINE_S)
        producer.flush(DEADLINE_S)
        with pytest.raises(ProducerClosedError, match="failed for good: fenced") as caught:
            producer.send("t", b"x")
        assert isinstance(caught.value.__cause__, InvalidProducerEpochError)


def test_closed_producers_refuse(broker: BrokerDouble) -> None:
    producer = producer_of(broker)
    producer.send("t", b"x")
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosedError, match="is closed"):
        producer.send("t", b"x")
    with pytest.raises(ProducerClosedError):
        producer.send_batch("t", rows(1))
    assert sum(len(broker.values("t", partition)) for partition in range(4)) == 1


def test_close_without_time_gives_up_what_is_left(broker: BrokerDouble) -> None:
    broker.topics["t"].leaders = [-1] * 4
    producer = producer_of(broker)
    future = producer.send("t", b"x")
    producer.close(0)
    with pytest.raises(AbortedBatchError, match="they are not in the log"):
        future.result(0)
    assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]


def test_callbacks_and_await(broker: BrokerDouble, producer: Producer) -> None:
    seen: list[Any] = []
    future = producer.send("t", b"x", partition=1)
    future.add_done_callback(lambda done: seen.append(done.result(0).offset))
    batch = producer.send_batch("t", rows(100))
    batch.add_done_callback(lambda done: seen.append(len(done.result(0).rows)))

    async def both() -> tuple[int, int]:
        return (await future).offset, sum((await producer.send_batch("t", rows(10))).record_counts.values())

    assert asyncio.run(both()) == (0, 10)
    producer.flush(DEADLINE_S)
    batch.add_done_callback(lambda _: seen.append("late"))
    with producer_of(broker, linger_ms=60_000) as patient, pytest.raises(RuntimeError, match="cannot flush"):
        _raise_from_callback(patient)
    assert seen == [0, 4, "late"] or seen == [4, 0, "late"]


def _raise_from_callback(producer: Producer) -> None:
    calls: list[Exception] = []
    producer.send("t", b"x").add_done_callback(lambda _: calls.append(_raised(producer.flush)))
    producer.flush(DEADLINE_S)
    raise calls[0]


def _raised(call: Any) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_many_threads_share_one_producer(broker: BrokerDouble, producer: Producer) -> None:
    import threading

    def run(name: int) -> None:
        for i in range(2000):
            producer.send("t", b"%d-%06d" % (name, i), partition=name)

    threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(DEADLINE_S)
    for name in range(4):
        assert broker.values("t", name) == [b"%d-%06d" % (name, i) for i in range(2000)]


def in_child(ask: Callable[[], object]) -> str:
    """Calls `ask` in a forked process, and returns its error or result as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = str(ask())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def test_after_a_fork_the_child_is_told(producer: Producer) -> None:
    producer.send("t", b"x").result(DEADLINE_S)
    asks: list[Callable[[], object]] = [lambda: producer.send("t", b"y"), producer.delivered, producer.metrics]
    for ask in asks:
        assert "make one per process" in in_child(ask)
    assert producer.send("t", b"z").result(DEADLINE_S).offset >= 0
    producer.close()
    for ask in asks:
        assert in_child(ask).startswith("ForkedProducerError"), "of a closed one too"


def test_a_future_made_before_a_fork_does_not_wait_in_the_child(broker: BrokerDouble) -> None:
    with producer_of(broker, linger_ms=60_000, delivery_timeout_ms=100_000) as producer:
        ended = producer.send("t", b"x", partition=0)
        producer.flush(DEADLINE_S)
        staged, placed = producer.send("t", b"y", partition=0), producer.send_batch("t", rows(3))

        async def wait(future: Any) -> object:
            return await future

        def call_back(future: Any) -> None:
            future.add_done_callback(lambda _: None)

        for future in (staged, placed):
            for ask in (future.result, future.exception, lambda f=future: asyncio.run(wait(f)), lambda f=future: call_back(f)):
                said = in_child(ask)
                assert said.startswith("ForkedProducerError: not known in this process"), said
            assert in_child(future.done) == "False"
        assert in_child(lambda: ended.result().offset) == "0"
        producer.flush(DEADLINE_S)
        assert staged.result(0).offset == 1


def test_acks_zero_hears_nothing(broker: BrokerDouble) -> None:
    with producer_of(broker, acks="0") as producer:
        assert producer.send("t", b"x", partition=1).result(DEADLINE_S).offset == -1
        producer.flush(DEADLINE_S)
    assert broker.values("t", 1) == [b"x"]


BAD_CALLS: list[tuple[str, Callable[[Producer], object]]] = [
    ("value must be bytes, text or None, not int", lambda producer: producer.send("t", 5)),  # type: ignore[arg-type]
    ("value is no text that UTF-8 can hold", lambda producer: producer.send("t", "\ud800")),
    ("key is no text that UTF-8 can hold", lambda producer: producer.send("t", b"v", key="\ud800")),
    ("headers must be pairs", lambda producer: producer.send("t", b"v", headers=5)),  # type: ignore[arg-type]
    ("headers must be pairs", lambda producer: producer.send("t", b"v", headers=[("a",)])),  # type: ignore[list-item]
    ("a header's key is no text that UTF-8 can hold", lambda producer: producer.send("t", b"v", headers=[("\ud800", b"")])),
    (
        r"a header is \(text, bytes\), not \(bytes, bytes\)",
        lambda producer: producer.send("t", b"v", headers=[(b"a", b"")]),  # type: ignore[list-item]
    ),
    ("timestamp -1 is out of range", lambda producer: producer.send("t", b"v", timestamp=-1)),
    (
        "timestamp must be a whole number, not float",
        lambda producer: producer.send("t", b"v", timestamp=1.5),  # type: ignore[arg-type]
    ),
    (
        "partition must be a whole number, not str",
        lambda producer: producer.send("t", b"v", partition="1"),  # type: ignore[arg-type]
    ),
    ("partition -1 does not exist", lambda producer: producer.send("t", b"v", partition=-1)),
    ("partition 4 does not exist: topic 't' has partitions 0 to 3", lambda producer: producer.send("t", b"v", partition=4)),
    ("partition 9{30} does not exist", lambda producer: producer.send("t", b"v", partition=10**30 - 1)),
    ("data must be a RecordBatch or a Table, not list", lambda producer: producer.send_batch("t", [b"v"])),
    ("unknown column 'val'", lambda producer: producer.send_batch("t", rows(1).rename_columns(["key", "val"]))),
    ("column 'value' is missing", lambda producer: producer.send_batch("t", rows(1).select(["key"]))),
    ("column 'value' is int64", lambda producer: producer.send_batch("t", pa.RecordBatch.from_pydict({"value": [1]}))),
    ("partitions must be", lambda producer: producer.send_batch("t", rows(1), partitions=["x"])),
    ("partitions must be", lambda producer: producer.send_batch("t", rows(1), partitions=[2**40])),
    ("partition -2 does not exist", lambda producer: producer.send_batch("t", rows(1), partitions=np.array([-2], np.int32))),
    ("partition 9 does not exist", lambda producer: producer.send_batch("t", rows(1), partitions=np.array([9], np.int32))),
    ("2 partitions were given for 1 rows", lambda producer: producer.send_batch("t", rows(1), np.array([1, 1], np.int32))),
    ("2 entries for 3 rows", lambda producer: producer.send_batch("t", rows(3), key_hashes=np.zeros(2, np.int32))),
]


@pytest.mark.parametrize(("text", "call"), BAD_CALLS, ids=[str(number) for number in range(len(BAD_CALLS))])
def test_a_bad_argument_is_named_and_the_producer_goes_on(
    producer: Producer, text: str, call: Callable[[Producer], object]
) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        call(producer)
    assert producer.send("t", b"after", partition=0).result(DEADLINE_S).offset == 0


def test_a_setting_that_does_not_exist_is_refused(broker: BrokerDouble) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'linger\.ms'"):
        producer_of(broker, linger_mss=1)


def test_metrics_have_kafkas_names(producer: Producer) -> None:
    producer.send_batch("t", rows(1000)).result(DEADLINE_S)
    values = producer.metrics()
    assert values["record-send-total"] == 1000
    assert values["records-per-request-avg"] > 0
    assert values["batch-size-avg"] > 1000
    assert values["buffer-available-bytes"] == 67_108_864
    for name in ("record-send-rate", "record-retry-rate", "record-queue-time-avg", "record-queue-time-max", "request-latency-avg"):
        assert name in values
    for name in ("request-latency-max", "requests-in-flight", "compression-rate-avg"):
        assert name in values
    assert producer.delivered().keys() == {TopicPartition("t", partition) for partition in range(4)}


AT_EXIT = """
import sys
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble

double = BrokerDouble()
double.create_topic("t", 1)
producer = Producer({"linger.ms": 60_000, "delivery.timeout.ms": 100_000}, transport_factory=double.transport)
future = producer.send("t", b"x")
future.add_done_callback(lambda done: print(done.result(0).offset, flush=True))
"""


def test_what_is_not_sent_yet_goes_out_at_exit() -> None:
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)
