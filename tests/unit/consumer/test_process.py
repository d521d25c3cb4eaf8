"""Goal: `process` handles the records of one key in order and one at a time, those of others concurrently; commits nothing beyond
an unfinished record; and ends in order, whatever ends it. Method: a broker in memory, handlers that wait for one another.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerd import Consumer, ConsumerRecord
from brokerd.config.settings import INT32_MAX
from brokerd.consumer.processing.work import Work
from brokerd.errors import (
    BrokerUnreachableError,
    ConsumerClosedError,
    ConsumerStateError,
    GroupAuthorizationFailedError,
    HandlerTimeoutError,
    ProducerClosedError,
    UnknownTopicOrPartitionError,
    WakeupError,
)
from tests.support.clock import HastyClock, ManualClock
from tests.support.consumers import LONG_MS, T0, T1, committed, fill, filled, offsets, read, settings, user_of
from tests.support.fake_broker import FakeBroker, Partition, fake_broker
from tests.support.logged import messages_of
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S, wait_until


def put(partition: Partition, keys: list[bytes | None]) -> None:
    """Appends a batch. Each value is its record's offset as text."""
    first = partition.end_offset
    partition.put(new_batch(key_values([b"%d" % (first + i) for i in range(len(keys))], keys=keys), tp=partition.tp))


@pytest.fixture
def consumer(broker: FakeBroker) -> Iterator[Consumer]:
    for partition in broker.create("t", 2):
        put(partition, [b"a", b"b", None, b"a", b"c", None, b"b", b"a", b"d", b"a"])
    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=0)) as consumer:
        consumer.assign([T0])
        yield consumer


class Gate:
    """A handler that holds records until the test releases them. Notes which run, and asserts that a lane runs one at a time."""

    def __init__(self, lane_of: Callable[[ConsumerRecord], object]) -> None:
        self._lane_of = lane_of
        self._changed = threading.Condition()
        self._may_end: set[int] = set()
        self.running: list[int] = []  # offsets
        self.ended: list[int] = []
        self._lanes: list[object] = []

    def __call__(self, record: ConsumerRecord) -> None:
        lane = self._lane_of(record)
        with self._changed:
            assert lane not in self._lanes, "two of a lane at a time"
            self._lanes.append(lane)
            self.running.append(record.offset)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: record.offset in self._may_end, DEADLINE_S)
            self._lanes.remove(lane)
            self.running.remove(record.offset)
            self.ended.append(record.offset)
            self._changed.notify_all()

    def let(self, *offsets: int) -> None:
        """Releases these records."""
        with self._changed:
            self._may_end |= set(offsets)
            self._changed.notify_all()

    def await_running(self, *offsets: int) -> None:
        """Waits until exactly these records run."""
        with self._changed:
            assert self._changed.wait_for(lambda: sorted(self.running) == sorted(offsets), DEADLINE_S), self.running


class Until:
    """A handler that calls `end` when record number `count` begins."""

    def __init__(self, count: int, end: Callable[[], None], handler: Callable[[ConsumerRecord], object] = lambda _: None) -> None:
        self._left = count
        self._end = end
        self._handler = handler
        self._lock = threading.Lock()

    def __call__(self, record: ConsumerRecord) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._end()
        self._handler(record)


class Processing:
    """Runs `process` in its own thread."""

    def __init__(self, consumer: Consumer, handler: Callable[[ConsumerRecord], object], **options: Any) -> None:
        self.result: int | BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(consumer, handler, options), name="processing")
        self._thread.start()

    def _run(self, consumer: Consumer, handler: Callable[[ConsumerRecord], object], options: dict[str, Any]) -> None:
        try:
            self.result = consumer.process(handler, **options)
        except BaseException as error:
            self.result = error

    @property
    def is_over(self) -> bool:
        """True once it has returned or raised."""
        return not self._thread.is_alive()

    def outcome(self) -> int | BaseException | None:
        """Waits for the end; returns the result or the error."""
        self._thread.join(DEADLINE_S)
        assert self.is_over
        return self.result


def lane_of_key(record: ConsumerRecord) -> object:
    return (record.partition, record.key)


def test_keys_run_side_by_side_and_each_in_order(consumer: Consumer, broker: FakeBroker) -> None:
    gate = Gate(lane_of_key)
    processing = Processing(consumer, Until(10, consumer.close, gate), workers=8)
    gate.await_running(0, 1, 2, 4, 8)  # the first records of keys a, b, None, c, d
    gate.let(0)
    gate.await_running(3, 1, 2, 4, 8)
    gate.let(2, 3, 4)
    gate.await_running(7, 1, 5, 8)
    gate.let(*range(10))
    assert processing.outcome() == 10
    assert committed(broker) == 10
    for same_key in ([0, 3, 7, 9], [1, 6], [2, 5]):
        assert [offset for offset in gate.ended if offset in same_key] == same_key


@pytest.mark.parametrize(("order", "first"), [("partition", [0]), ("none", [0, 1, 2, 3])])
def test_order_of_partitions_or_none(consumer: Consumer, order: str, first: list[int]) -> None:
    gate = Gate(lambda record: record.offset)
    processing = Processing(consumer, Until(10, consumer.close, gate), workers=4, order=order)
    gate.await_running(*first)
    gate.let(*range(10))
    assert processing.outcome() == 10
    if order == "partition":
        assert gate.ended == list(range(10))


def test_nothing_is_committed_beyond_the_first_unfinished_record(consumer: Consumer, broker: FakeBroker) -> None:
    gate = Gate(lane_of_key)
    processing = Processing(consumer, gate, workers=8)
    gate.await_running(0, 1, 2, 4, 8)
    gate.let(0, 2, 3, 4, 5, 7, 8, 9)
    gate.await_running(1)
    put(broker.topics["t"][0], [b"e"])
    gate.await_running(1, 10)
    wait_until(lambda: committed(broker) == 1)
    assert not processing.is_over
    gate.let(1, 6, 10)
    wait_until(lambda: committed(broker) == 11)
    consumer.close()
    assert processing.outcome() == 11


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once no further handler starts."""
    event = threading.Event()
    stop = Work.stop

    def stop_and_tell(work: Work, workers: int) -> None:
        stop(work, workers)
        event.set()

    monkeypatch.setattr(Work, "stop", stop_and_tell)
    return event


def test_close_waits_for_handlers_at_work_and_begins_no_others(
    consumer: Consumer, broker: FakeBroker, stopped: threading.Event
) -> None:
    gate = Gate(lane_of_key)
    processing = Processing(consumer, gate, workers=2)
    gate.await_running(0, 1)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    assert stopped.wait(DEADLINE_S)
    assert not processing.is_over
    gate.let(*range(10))
    closing.join(DEADLINE_S)
    assert processing.outcome() == 2
    assert gate.ended in ([0, 1], [1, 0])
    assert committed(broker) == 2


@pytest.mark.parametrize("error", [None, LookupError("no such customer")])
def test_a_close_that_does_not_wait_takes_no_outcome_away(
    consumer: Consumer, broker: FakeBroker, caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    gate = Gate(lane_of_key)

    def handle(record: ConsumerRecord) -> None:
        gate(record)
        if error is not None:
            raise error

    processing = Processing(consumer, handle, workers=1)
    gate.await_running(0)
    consumer.close(timeout_ms=0)
    with caplog.at_level(logging.WARNING):
        gate.let(0)
        assert processing.outcome() == (1 if error is None else error)
    assert messages_of(caplog, "brokerd.consumer") == [
        "close() did not wait for all handlers: records handled since the last commit come again"
    ]
    assert not committed(broker)


def test_handler_that_raises_ends_it_after_the_others(consumer: Consumer, broker: FakeBroker) -> None:
    gate = Gate(lane_of_key)

    def handle(record: ConsumerRecord) -> None:
        gate(record)
        if record.offset == 1:
            raise LookupError("no such customer")

    processing = Processing(consumer, handle, workers=3)
    gate.await_running(0, 1, 2)
    gate.let(1)
    wait_until(lambda: 1 in gate.ended)
    assert not processing.is_over
    gate.let(*range(10))
    error = processing.outcome()
    assert isinstance(error, LookupError)
    assert error.__notes__ == ["while handling t-0@1"]
    assert committed(broker) == 1
    assert consumer.position(T0) == 1
    assert offsets(read(consumer, 9)) == list(range(1, 10))


@pytest.mark.parametrize("error", [LookupError("no such customer"), ProducerClosedError("the producer is closed")])
def test_a_handler_that_raises_in_a_consumer_that_is_closed_is_heard(consumer: Consumer, error: Exception) -> None:
    def handle(record: ConsumerRecord) -> None:
        if record.offset == 4:
            consumer.close()
            raise error

    with pytest.raises(type(error)):
        consumer.process(handle, workers=1, order="partition")
    assert consumer._is_free


def test_errors_are_skipped_and_logged_where_that_is_asked(
    consumer: Consumer, broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(record: ConsumerRecord) -> None:
        if record.offset in (1, 4):
            raise LookupError("no such customer")

    with caplog.at_level(logging.ERROR):
        assert consumer.process(Until(10, consumer.close, handle), on_error="skip") == 10
    assert sorted(messages_of(caplog, "brokerd.consumer")) == [
        f"t-0@{offset} is skipped (on_error=skip), as its handler failed" for offset in (1, 4)
    ]
    assert committed(broker) == 10


def test_handler_that_ends_its_thread_is_not_skipped(consumer: Consumer) -> None:
    def handle(_record: ConsumerRecord) -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        consumer.process(handle, on_error="skip")


def test_handler_that_hangs_is_told_and_its_record_comes_again(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    (partition,) = broker.create("t")
    put(partition, [b"a", b"b", b"a", b"b"])
    gate = Gate(lane_of_key)
    with caplog.at_level(logging.ERROR), Consumer(settings(broker, group_id="g"), clock=clock) as consumer:
        consumer.assign([T0])
        processing = Processing(consumer, gate, workers=8)
        gate.let(0, 2)
        gate.await_running(1)
        wait_until(lambda: sorted(gate.ended) == [0, 2] and user_of(consumer) == "processing")
        clock.advance(300_000)
        error = processing.outcome()
        assert isinstance(error, HandlerTimeoutError)
        assert str(error).startswith("the handler of t-0@1 has run for more than 300000 ms (handler_timeout_ms) and still runs")
        assert messages_of(caplog, "brokerd.consumer") == [str(error)]
        assert consumer.position(T0) == 1
    assert committed(broker) == 1
    gate.let(1, 3)  # so that the handler's thread ends


def test_it_ends_after_so_long_without_a_record(broker: FakeBroker) -> None:
    broker.create("t")
    with Consumer(settings(broker)) as consumer:
        consumer.assign([T0])
        assert consumer.process(print, timeout_ms=20) == 0
        assert consumer.poll(1) == []


def test_it_goes_on_while_handlers_leave_no_room_for_records_that_are_there(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    put(partition, [b"a"] * 3)
    clock = ManualClock()
    with Consumer(settings(broker), clock=clock) as consumer:
        consumer.assign([T0])
        handle = Until(3, consumer.close, lambda _: clock.advance(1_000))
        assert consumer.process(handle, timeout_ms=100, max_in_flight=1) == 3


def test_without_time_it_handles_what_has_arrived(broker: FakeBroker) -> None:
    filled(broker, [3])
    with Consumer(settings(broker)) as consumer:
        consumer.assign([T0])
        count = 0

        def is_all_handled() -> bool:
            nonlocal count
            count += consumer.process(lambda _: None, timeout_ms=0)
            return count == 3

        wait_until(is_all_handled)


@pytest.mark.parametrize(("most", "in_flight"), [({"max_in_flight": 3}, 3), ({"max_in_flight_bytes": 1}, 1)])
def test_records_in_flight_are_bounded(consumer: Consumer, most: dict[str, int], in_flight: int) -> None:
    gate = Gate(lambda record: record.offset)
    processing = Processing(consumer, Until(10, consumer.close, gate), workers=8, order="none", **most)
    gate.await_running(*range(in_flight))
    wait_until(lambda: consumer._assignment.partitions[T0].position == in_flight)  # it moves after the records are in work
    gate.let(*range(10))
    assert processing.outcome() == 10


def test_headers_count_towards_the_bytes_in_flight(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    rows = key_values([b""] * 4, headers=[[("trace", bytes(1_000))]] * 4)
    partition.put(new_batch(rows, tp=partition.tp))
    gate = Gate(lambda record: record.offset)
    with Consumer(settings(broker)) as consumer:
        consumer.assign([T0])
        handler = Until(4, consumer.close, gate)
        processing = Processing(consumer, handler, workers=4, order="none", max_in_flight_bytes=2_000)
        gate.await_running(0, 1)
        wait_until(lambda: consumer._assignment.partitions[T0].position == 2)  # it moves after the records are in work
        gate.let(*range(4))
        assert processing.outcome() == 4


@pytest.mark.parametrize("has_marker", [False, True])
@pytest.mark.parametrize("new_records", [0, 1])
def test_what_was_committed_stands_as_long_as_no_later_record_is_handled(
    broker: FakeBroker, new_records: int, has_marker: bool
) -> None:
    partition = filled(broker, [10])

    def fail(record: ConsumerRecord) -> None:
        raise ValueError(f"offset {record.offset}")

    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=0)) as consumer:
        consumer.assign([T0])
        read(consumer, 10)
        consumer.commit({T0: 2})
        if new_records:
            partition.put(new_batch(key_values([b"new"]), tp=partition.tp), at=10 + has_marker)
        with contextlib.suppress(ValueError):
            consumer.process(fail, timeout_ms=None if new_records else 50)
        consumer.process(fail, timeout_ms=0)
    assert [commit[0] for commit in broker.commits[broker.commits.index({0: 2}) :]] == [2]


def test_a_commit_that_has_failed_is_not_repeated_once_its_partition_is_given_up(broker: FakeBroker) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [3])

    def handle(record: ConsumerRecord) -> None:
        if record.offset == 2:
            raise ValueError("two")

    config = settings(broker, group_id="g", enable_auto_commit=False)
    with Consumer(config) as consumer, Consumer(config) as other:
        broker.errors["CommitGroupOffsets"] = [GroupAuthorizationFailedError("not now")]
        for tp in (T0, T1):
            consumer.assign([tp])
            with pytest.raises(ValueError, match="two"):
                consumer.process(handle)
            other.commit({T0: 3})
    assert committed(broker) == 3
    assert committed(broker, 1) == 2


def test_wakeup_and_errors_of_poll_end_it_in_order(consumer: Consumer, broker: FakeBroker, stopped: threading.Event) -> None:
    gate = Gate(lane_of_key)
    processing = Processing(consumer, gate, workers=2)
    gate.await_running(0, 1)
    consumer.wakeup()
    assert stopped.wait(DEADLINE_S)
    gate.let(0, 1)
    assert isinstance(processing.outcome(), WakeupError)
    assert committed(broker) == 2 == consumer.position(T0)
    consumer.assign([T0, ("u", 0)])
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.process(gate)


def test_a_broker_that_stays_away_ends_it_and_may_come_back(port: int) -> None:
    handled: list[int] = []
    with fake_broker(port) as broker:
        partition = filled(broker, [3])
        consumer = Consumer(settings(broker), clock=HastyClock())
        consumer.assign([T0])
        assert offsets(read(consumer, 3)) == [0, 1, 2]
    with pytest.raises(BrokerUnreachableError, match="no broker responded"):
        consumer.process(print)
    with fake_broker(port) as again:
        again.topics = broker.topics
        fill(partition, [2])
        until = Until(2, consumer.wakeup, lambda record: handled.append(record.offset))
        while len(handled) < 2:
            with contextlib.suppress(BrokerUnreachableError, WakeupError):
                consumer.process(until, handler_timeout_ms=INT32_MAX)
        assert handled == [3, 4]
        consumer.close()


def test_interrupt_ends_it_in_order_and_a_second_one_at_once(consumer: Consumer, broker: FakeBroker, monkeypatch: Any) -> None:
    gate = Gate(lane_of_key)
    fetching = consumer._fetching
    interrupts = iter(range(2))

    def interrupted(_timeout_ms: int, _is_over: Callable[[], bool]) -> None:
        gate.await_running(0, 1)
        next(interrupts)
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "rest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        consumer.process(gate, workers=2, max_in_flight=2)
    assert list(interrupts) == [], "once while it went, once while it waited for the handlers"
    assert consumer.position(T0) == 0
    assert committed(broker) in (None, 0)
    gate.let(0, 1)


@pytest.mark.parametrize("name", ["stop", "end"])
def test_an_interrupt_before_the_handlers_are_stopped_stops_them_too(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, stopped: threading.Event, name: str
) -> None:
    strikes = iter([True])
    method = getattr(Work, name)

    def struck(work: Work, workers: int) -> None:
        if next(strikes, False):
            raise KeyboardInterrupt
        method(work, workers)

    monkeypatch.setattr(Work, name, struck)
    gate = Gate(lane_of_key)
    processing = Processing(consumer, gate, workers=2)
    gate.await_running(0, 1)
    consumer.wakeup()
    assert stopped.wait(DEADLINE_S)
    gate.let(*range(10))
    assert isinstance(processing.outcome(), KeyboardInterrupt)
    wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("consumer-handler-")])
    assert sorted(gate.ended) == [0, 1]


def test_the_consumer_is_not_for_the_handlers(consumer: Consumer) -> None:
    with pytest.raises(ConsumerStateError, match="one thread may use it at a time"):
        consumer.process(lambda _: consumer.poll(0), workers=1)


def test_a_handler_may_close_the_consumer(consumer: Consumer, broker: FakeBroker) -> None:
    def handle(record: ConsumerRecord) -> None:
        if record.offset == 4:
            consumer.close()

    assert consumer.process(handle, workers=1, order="partition") == 5
    assert committed(broker) == 5
    with pytest.raises(ConsumerClosedError):
        consumer.poll(0)
    assert consumer._is_free


def test_without_a_group_nothing_is_committed(broker: FakeBroker) -> None:
    (partition,) = broker.create("u")
    put(partition, [b"a"] * 3)
    with Consumer(settings(broker)) as consumer:
        consumer.assign([("u", 0)])
        assert consumer.process(Until(3, consumer.close)) == 3
    assert broker.commits == []


def test_auto_commit_need_not_be_on(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    put(partition, [b"a"] * 3)
    with Consumer(settings(broker, group_id="g", enable_auto_commit=False)) as consumer:
        consumer.assign([T0])
        with pytest.raises(WakeupError):
            consumer.process(Until(3, consumer.wakeup))
        assert committed(broker) == 3
        put(partition, [b"a"])
        assert len(consumer.poll(LONG_MS)) == 1
    assert committed(broker) == 3


def test_close_by_a_signal_ends_it_in_order(consumer: Consumer, broker: FakeBroker) -> None:
    """As a SIGTERM handler may call it: in the thread of `process`, where `close` cannot wait for `process`."""
    closed = threading.Event()

    def close(*_: object) -> None:
        consumer.close()
        closed.set()

    def handle(record: ConsumerRecord) -> None:
        if record.offset == 4:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert closed.wait(DEADLINE_S)

    before = signal.signal(signal.SIGUSR1, close)
    try:
        assert consumer.process(handle, workers=1, order="partition") == 5
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert committed(broker) == 5
    with pytest.raises(ConsumerClosedError):
        consumer.poll(0)


def test_partitions_are_handled_side_by_side(consumer: Consumer, broker: FakeBroker) -> None:
    consumer.assign([T0, T1])
    gate = Gate(lambda record: (record.partition, record.key))
    gate.let(*range(10))
    assert consumer.process(Until(20, consumer.close, gate), workers=8) == 20
    assert (committed(broker, 0), committed(broker, 1)) == (10, 10)


@pytest.mark.parametrize(("reset", "again"), [("earliest", [0, 1, 2, 3]), ("latest", [3])])
def test_a_log_that_ends_before_the_position_obeys_auto_offset_reset(broker: FakeBroker, reset: str, again: list[int]) -> None:
    """As after a restore: the records in work are of a log that no longer exists, and other records have their offsets."""
    (partition,) = broker.create("t")
    restored = Partition(partition.tp)
    put(partition, [b"a", b"b", b"c", b"d", b"a"])
    put(restored, [b"e", b"f", b"g"])
    gate = Gate(lane_of_key)
    with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=0, auto_offset_reset=reset)) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        processing = Processing(consumer, gate, workers=8)
        gate.await_running(0, 1, 2, 3)
        partition.batches, partition.end_offset = restored.batches, restored.end_offset
        wait_until(lambda: consumer._assignment.partitions[T0].position == 3 or processing.is_over)
        put(partition, [b"h"])
        gate.await_running(0, 1, 2, 3, *again)
        wait_until(lambda: committed(broker) == again[0])
        gate.let(*range(10))
        wait_until(lambda: committed(broker) == 4)
        consumer.close()
        assert processing.outcome() == 5 + len(again)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), concurrent.futures.CancelledError()])
def test_a_handler_that_is_cancelled_ends_it(consumer: Consumer, broker: FakeBroker, error: BaseException) -> None:
    def handle(record: ConsumerRecord) -> None:
        if record.offset == 4:
            raise error

    with pytest.raises(type(error)):
        consumer.process(handle, workers=1, order="partition")
    assert consumer.position(T0) == 4
    assert committed(broker) == 4
