"""A record that cannot be sent fails its call, or its chunk, with a clear message. Other topics are unaffected, memory is freed,
and a producer that fails for good completes all futures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from brokerd import Producer as GrpcProducer
from brokerd.errors import BrokerdError, ConfigError, InvalidRequestError, ProducerClosedError
from brokerd.producer.futures import RecordFuture, RecordMetadata
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble, double_of
from tests.support.logged import messages_of
from tests.support.wait import DEADLINE_S, wait_until
from tests.unit.producer.test_producer import producer_of


def shrink_topic(producer: Producer, broker: BrokerDouble) -> None:
    """Recreates the topic with fewer partitions, and waits until the producer knows."""
    broker.create_topic("t", 2)

    def is_known() -> bool:
        with producer._shared.lock:
            view = producer._core.topics.view("t")
        return view is not None and len(view.leaders) == 2

    with producer._shared.lock:
        producer._core.topics.request_refresh()
        producer._wake()
    wait_until(is_known, what="the producer knows the new topic")


def test_a_staged_record_whose_partition_is_gone_fails_alone() -> None:
    broker = double_of(4)
    broker.create_topic("other", 1)
    told: list[BrokerdError | None] = []
    with producer_of(broker, linger_ms=60_000) as producer:
        gone = producer.send("t", b"for partition 3", partition=3)
        beside = producer.send("t", b"in the same chunk", partition=0)
        innocent = producer.send("other", b"innocent")
        gone.add_done_callback(lambda future: told.append(future.exception()))
        shrink_topic(producer, broker)
        producer.flush(DEADLINE_S)
        for future in (gone, beside):
            with pytest.raises(InvalidRequestError, match="partition 3 does not exist: the topic has partitions 0 to 1"):
                future.result(DEADLINE_S)
        assert innocent.result(DEADLINE_S).offset == 0
        assert [type(error) for error in told] == [InvalidRequestError]
        assert producer.metrics()["record-error-total"] == 2
        afterwards = producer.send("t", b"afterwards", partition=1)
        producer.flush(DEADLINE_S)
        assert afterwards.result(0).offset == 0
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]


BAD_TOPICS: list[tuple[object, type[Exception], str]] = [
    (None, TypeError, "topic must be text, not NoneType"),
    (5, TypeError, "topic must be text, not int"),
    (b"t", TypeError, "topic must be text, not bytes"),
    (["t"], TypeError, "list"),
    ("", ValueError, "topic '' cannot be a topic's name: it is empty"),
    ("half \ud800", ValueError, r"topic 'half \\ud800' cannot be a topic's name: only letters"),
    ("x" * 5_000, ValueError, "it has 5000 characters"),
    ("..", ValueError, "'.' and '..' are not topic names"),
]


@pytest.mark.parametrize(("topic", "kind", "text"), BAD_TOPICS, ids=[repr(topic)[:12] for topic, _, _ in BAD_TOPICS])
def test_a_bad_topic_is_the_error_of_its_call_alone(topic: Any, kind: type[Exception], text: str) -> None:
    broker = double_of(1)
    with producer_of(broker, linger_ms=60_000) as producer:
        in_flight = producer.send("t", b"in flight")
        calls: list[Callable[[], object]] = [
            lambda: producer.send(topic, b"v"),
            lambda: producer.send_batch(topic, pa.RecordBatch.from_pydict({"value": [b"v"]})),
            lambda: producer.partitions_for(topic),
        ]
        for call in calls:
            with pytest.raises(kind, match=text):
                call()
        after = producer.send("t", b"after")
        producer.flush(DEADLINE_S)
        assert (in_flight.result(0).offset, after.result(0).offset) == (0, 1)
        assert producer.first_error is None


def test_a_producer_that_fails_for_good_ends_what_is_staged() -> None:
    broker = double_of(1)
    producer = producer_of(broker, linger_ms=60_000)
    staged = producer.send("t", b"staged")
    producer._sender._fail_for_good(RuntimeError("planted"))
    with pytest.raises(ProducerClosedError, match="planted"):
        staged.result(DEADLINE_S)
    with pytest.raises(ProducerClosedError, match="planted"):
        producer.send("t", b"next")
    producer.close(DEADLINE_S)


def test_bad_servers_and_files_are_refused_before_there_is_a_producer() -> None:
    with pytest.raises(
        ConfigError, match=r"bootstrap\.servers must be host:port, with a port from 1 to 65535 .* not '127\.0\.0\.1:99999'"
    ):
        GrpcProducer({"bootstrap.servers": "127.0.0.1:99999"})
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is empty"):
        GrpcProducer(bootstrap_servers=" ,")
    with pytest.raises(ConfigError, match=r"cannot read ssl\.ca\.file"):
        GrpcProducer({"security.protocol": "SSL", "ssl.ca.file": "nowhere.pem"})
    with pytest.raises(ConfigError, match=r"the token would cross the network to far\.example:9192 in plaintext"):
        GrpcProducer({"bootstrap.servers": "127.0.0.1:9192,far.example:9192", "auth.token": "secret"})


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan")])
def test_a_negative_timeout_is_refused(timeout: float) -> None:
    broker = double_of(1)
    with producer_of(broker, linger_ms=60_000) as producer:
        staged = producer.send("t", b"v")
        for call in (producer.close, producer.flush):
            with pytest.raises(ValueError, match="timeout must not be negative"):
                call(timeout)
            with pytest.raises(TypeError, match="timeout must be a number of seconds or None, not str"):
                call("1")  # type: ignore[arg-type]
        producer.flush(float("inf"))
        assert staged.result(0).offset == 0


def test_a_future_awaited_in_a_loop_that_is_closed_meanwhile_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broker = double_of(1)
    with producer_of(broker, linger_ms=60_000) as producer:
        future = producer.send("t", b"v")

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_result_of(future), 0.001)

        asyncio.run(give_up())
        producer.flush(DEADLINE_S)
        assert future.result(0).offset == 0
    assert not messages_of(caplog, "asyncio", "concurrent.futures", "brokerd.producer")


async def _result_of(future: RecordFuture) -> RecordMetadata:
    return await future
