"""Goal: an exception at any point in the thread of `process` loses no record, commits no unhandled one, ends the handlers' threads,
and leaves the consumer, and the file of message ids, usable.

Method: exceptions at one line and bytecode of the consumer's own code after another; then the remaining records are read.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import brokerd
from brokerd import Consumer, ConsumerRecord
from brokerd.consumer.fetching import Fetching
from tests.support.consumers import T0, committed, settings
from tests.support.fake_broker import FakeBroker
from tests.support.interrupts import strike
from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.consumer.test_dedup import put

# Python warns that a coroutine was never awaited if the interrupt strikes before the loop has it.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
RECORDS = 40
STRIDE = max(1, 307 // TEST_SCALE)
PACKAGE = Path(brokerd.__file__).parent / "consumer"
# Not these two: an exception right before the end of `with lock` keeps the lock, but CPython checks for no signal there.
PLACES = tuple(str(path) for path in sorted(PACKAGE.rglob("*.py")) if path.name not in ("guard.py", "work.py"))


def process(consumer: Consumer, handled: list[int], path: Path | None) -> None:
    def handle(record: ConsumerRecord) -> None:
        handled.append(record.offset)

    header = None if path is None else "message-id"
    consumer.process(handle, workers=2, max_in_flight=10, timeout_ms=5, dedup_header=header, dedup_path=path)


def handler_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("consumer-handler-")]


@pytest.mark.slow
@pytest.mark.parametrize("has_ids", [False, True])
def test_an_interrupt_of_processing_loses_nothing(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_ids: bool
) -> None:
    # Python only reports an interrupt of a generator's close as unraisable. pytest would keep it, and all objects of its frames.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    (partition,) = broker.create("t")
    put(partition, [b"message %d" % number for number in range(RECORDS)], [b"%d" % (number % 5) for number in range(RECORDS)])
    at, where = 1, "-"
    while where:
        broker.groups.clear()
        handled: list[int] = []
        path = tmp_path / f"ids-{at}" if has_ids else None
        with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=0)) as consumer:
            consumer.assign([T0])
            where = strike(functools.partial(process, consumer, handled, path), at, PLACES)
            gc.collect()
            wait_until(lambda: not handler_threads(), what=f"the threads of handlers end: {where}")
            assert set(range(committed(broker) or 0)) <= set(handled), where
            with ThreadPoolExecutor(1) as others:
                assert others.submit(consumer.assignment).result(DEADLINE_S) == {T0}, where
            while consumer.position(T0) < RECORDS:
                process(consumer, handled, path)
            assert set(handled) == set(range(RECORDS)), where
            assert consumer.poll(0) == []
        at += STRIDE
    assert at > 1_000


@pytest.mark.parametrize("goes_on", ["process", "poll", "commit"])
def test_an_interrupt_on_the_way_back_to_an_unfinished_record_passes_over_nothing(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, goes_on: str
) -> None:
    (partition,) = broker.create("t")
    put(partition, [b"message %d" % number for number in range(RECORDS)], [b"%d" % (number % 5) for number in range(RECORDS)])
    go_back, at, where = Fetching.go_back, 1, "-"

    def struck(fetching: Fetching) -> None:
        nonlocal where
        where = strike(lambda: go_back(fetching), at, PLACES, is_signal=True)
        if where:
            raise KeyboardInterrupt

    def handle(record: ConsumerRecord) -> None:
        if record.offset == 7:
            raise ValueError("seven")
        handled.append(record.offset)

    while where:
        broker.groups.clear()
        handled: list[int] = []
        with Consumer(settings(broker, group_id="g", auto_commit_interval_ms=0)) as consumer:
            consumer.assign([T0])
            with monkeypatch.context() as context:
                context.setattr(Fetching, "go_back", struck)
                with pytest.raises((KeyboardInterrupt, ValueError)):
                    consumer.process(handle, workers=2, max_in_flight=10)
            if goes_on == "commit":
                consumer.commit()
                first_unhandled = min(set(range(RECORDS)) - set(handled))  # 5 if the handler of 7 began before that of 5
                assert committed(broker) == first_unhandled, where
            while goes_on == "poll" and len(set(handled)) < RECORDS:
                handled += [record.offset for record in consumer.poll()]
            while consumer.position(T0) < RECORDS:
                process(consumer, handled, None)
            assert set(handled) == set(range(RECORDS)), where
        at += 1
    assert at > 20
