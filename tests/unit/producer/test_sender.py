"""A sender leaves no unfinished task behind, whenever it stops; and a log handler does not stop it."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import warnings

import pytest

from brokerd.config.client import ProducerConfig
from brokerd.errors import Fate, UnknownServerError, UnknownTopicOrPartitionError
from brokerd.producer import sender
from brokerd.producer.core.transport import Hello
from brokerd.producer.futures import RecordFuture
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, StreamDouble, TransportDouble, double_of
from tests.support.clock import LateClock
from tests.support.wait import DEADLINE_S
from tests.unit.producer.test_producer import is_missed, out_of_time


class EndingTransport(TransportDouble):
    """Cancels all tasks, as a stopping sender does, just as the writer and reader of a stream start."""

    def __init__(self, broker: BrokerDouble, ended: threading.Event) -> None:
        super().__init__(broker)
        self._ended = ended

    async def open_stream(self, node_id: int, hello: Hello) -> StreamDouble:
        stream = await super().open_stream(node_id, hello)
        if not self._ended.is_set():
            (main,) = (task for task in asyncio.all_tasks() if "_main" in repr(task.get_coro()))
            asyncio.get_running_loop().call_soon(self._cancel_all_but, main)
        return stream

    def _cancel_all_but(self, main: asyncio.Task[None]) -> None:
        for task in asyncio.all_tasks() - {main}:
            task.cancel()
        self._ended.set()


def test_an_end_that_comes_before_a_stream_is_read_leaves_nothing_behind() -> None:
    broker = double_of(1)
    ended = threading.Event()

    def transport(_config: ProducerConfig) -> EndingTransport:
        return EndingTransport(broker, ended)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        producer = Producer({"linger.ms": 0}, transport_factory=transport)
        producer.send("t", value=b"x")
        assert ended.wait(DEADLINE_S)
        producer.close(0)
        gc.collect()
    assert [str(warning.message) for warning in told] == []


def test_a_log_handler_that_raises_does_not_stop_the_producer() -> None:
    """As a handler may that sends with the producer itself, in the sender's thread, where it cannot wait."""

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())
            raise ValueError("of the handler")

    def call_back(_future: RecordFuture) -> None:
        raise ValueError("of the callback")

    told: list[str] = []
    handler, source = Raising(), logging.getLogger("brokerd.producer")
    source.addHandler(handler)
    settings, clock = {"linger.ms": 60_000, "retry.backoff.ms": 1, "retry.backoff.max.ms": 1}, LateClock()
    try:
        with Producer(settings, transport_factory=double_of(1).transport, clock=clock) as producer:
            error = out_of_time(clock, lambda: producer.send("missing", b"v"), lambda: is_missed(producer, "missing"))
            assert isinstance(error, UnknownTopicOrPartitionError)
            future = producer.send("t", b"v")
            future.add_done_callback(call_back)
            producer.flush(DEADLINE_S)
            assert future.result(0).offset == 0
            last = producer.send("t", b"v")
            producer.flush(DEADLINE_S)
            assert last.result(0).offset == 1
    finally:
        source.removeHandler(handler)
    assert told[-1] == "a callback of a produce future raised"


def test_records_that_cannot_be_encoded_are_not_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such codec")

    monkeypatch.setattr(sender, "encode_pieces", fail)
    with Producer(transport_factory=double_of(1).transport) as producer:
        error = producer.send("t", b"v").exception(DEADLINE_S)
    assert isinstance(error, UnknownServerError)
    assert (error.fate, "cannot be encoded" in error.message) == (Fate.NOT_APPENDED, True)
