"""Goal: a forked child cannot use its parent's asyncio producer, nor end its transaction. Method: a broker double."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from brokerd.aio import Producer
from brokerd.errors import ForkedProducerError
from brokerd.ids import TopicPartition
from tests.support.broker_double import BrokerDouble, double_of
from tests.unit.aio.test_producer import producer_of
from tests.unit.producer.test_producer import FAST


@pytest.fixture
def broker() -> BrokerDouble:
    return double_of(1)


ROWS = pa.RecordBatch.from_pydict({"value": [b"x"] * 10})
Call = Callable[[Producer], Awaitable[Any]]
# The calls that a forked child must not make.
CALLS: dict[str, Call] = {
    "send": lambda producer: producer.send("t", b"x"),
    "send_batch": lambda producer: producer.send_batch("t", ROWS),
    "flush": lambda producer: producer.flush(),
    "partitions_for": lambda producer: producer.partitions_for("t"),
    "metrics": lambda producer: producer.metrics(),
    "close": lambda producer: producer.close(),
    "transaction": lambda producer: producer.transaction().__aenter__(),
    "last_committed_version": lambda producer: producer.last_committed_version(),
}


def transactional(broker: BrokerDouble) -> Producer:
    """A producer with the default coordinator, not a double."""
    return Producer({**FAST, "transactional.id": "x"}, transport_factory=broker.transport)


def exit_of(child_id: int) -> int:
    _, status = os.waitpid(child_id, 0)
    return os.waitstatus_to_exitcode(status)


async def is_refused(producer: Producer, call: Call) -> bool:
    """True if the call raises ForkedProducerError with its advice."""
    try:
        await call(producer)
    except ForkedProducerError as error:
        return "make one per process" in str(error)
    return False


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_a_fork_is_refused_in_the_loop_that_it_was_forked_in(broker: BrokerDouble, name: str) -> None:
    """The topic's turn is taken at the fork, as by another task of the parent, which never continues in the child."""

    async def scenario() -> int:
        async with transactional(broker) as producer:
            await producer.partitions_for("t")
            async with producer._lines.turn("t", 60_000):
                child_id = os.fork()
                if child_id == 0:
                    refused = False
                    try:
                        refused = await is_refused(producer, CALLS[name])
                    finally:
                        os._exit(0 if refused else 1)
            return child_id

    assert exit_of(asyncio.run(scenario())) == 0


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_of_a_fork_is_refused_in_a_loop_of_its_own(broker: BrokerDouble, name: str) -> None:
    producer = transactional(broker)
    try:
        asyncio.run(CALLS["partitions_for"](producer))  # type: ignore[arg-type]
        child_id = os.fork()
        if child_id == 0:
            refused = False
            try:
                refused = asyncio.run(is_refused(producer, CALLS[name]))
            finally:
                os._exit(0 if refused else 1)
        assert exit_of(child_id) == 0
    finally:
        producer._is_closed = True
        producer._engine.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_transaction_is_not_ended_by_a_child_of_a_fork(broker: BrokerDouble) -> None:
    async def scenario() -> int:
        async with producer_of(broker) as producer:
            async with producer.transaction() as transaction:
                await producer.send("t", b"0")
                child_id = os.fork()
                if child_id == 0:
                    refused = False
                    try:
                        offsets = transaction.send_offsets({TopicPartition("t", 0): 1}, "g", expected={TopicPartition("t", 0): 0})
                        refused = await is_refused(producer, lambda _: offsets)
                        refused &= await is_refused(producer, lambda _: transaction.__aexit__(None, None, None))
                    finally:
                        os._exit(0 if refused else 1)
            assert broker.committed_values("t") == [b"0"]
            return child_id

    assert exit_of(asyncio.run(scenario())) == 0
