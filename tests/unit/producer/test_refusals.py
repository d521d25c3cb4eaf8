"""What can not be sent ends its own futures with a sentence, and nothing else: other topics go on, no memory stays taken, and
a producer that has failed for good leaves nobody waiting."""

from __future__ import annotations

import pytest

from brokerd import Producer as GrpcProducer
from brokerd.errors import BrokerdError, InvalidRequestError, ProducerClosedError
from brokerd.producer.mailbox import Work
from brokerd.producer.producer import Producer
from tests.support.broker_double import BrokerDouble
from tests.support.wait import DEADLINE_S
from tests.unit.producer.test_producer import producer_of


def shrink_topic(producer: Producer, broker: BrokerDouble) -> None:
    """The topic is created anew with fewer partitions, and the producer comes to know it."""
    broker.create_topic("t", 2)

    def learn() -> Work[None]:
        producer._core.topics.request_refresh()
        producer._sender.wake()
        while (view := producer._core.topics.view("t")) is None or len(view.leaders) != 2:
            yield

    producer._mailbox.ask(learn(), timeout_s=DEADLINE_S)


def test_a_staged_record_whose_partition_is_gone_fails_alone() -> None:
    broker = BrokerDouble()
    broker.create_topic("t", 4)
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
        afterwards = producer.send("t", b"afterwards", partition=1)
        producer.flush(DEADLINE_S)
        assert afterwards.result(0).offset == 0
        assert producer.metrics()["buffer-available-bytes"] == producer.metrics()["buffer-total-bytes"]


def test_a_producer_that_fails_for_good_ends_what_is_staged() -> None:
    broker = BrokerDouble()
    broker.create_topic("t", 1)
    producer = producer_of(broker, linger_ms=60_000)
    staged = producer.send("t", b"staged")
    producer._sender._fail_for_good(RuntimeError("planted"))
    with pytest.raises(ProducerClosedError, match="planted"):
        staged.result(DEADLINE_S)
    with pytest.raises(ProducerClosedError, match="planted"):
        producer.send("t", b"next")
    producer.close(DEADLINE_S)


def test_bad_servers_are_one_sentence_and_close_works() -> None:
    producer = GrpcProducer({"bootstrap.servers": "127.0.0.1:99999", "max.block.ms": 60_000})
    with pytest.raises(ProducerClosedError, match=r"bootstrap\.servers must be host:port"):
        producer.send("t", b"x")
    producer.close(DEADLINE_S)
