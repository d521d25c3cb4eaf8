"""Goal: a program whose commit lost its response learns the truth, although another has since committed newer versions under the
same transactional id. Method: the client loses the response to one EndTransaction, or the request; the other program commits
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from brokerd import Consumer, Producer
from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import BrokerClient
from brokerd.config.client import ConsumerConfig
from brokerd.coordinator.transactional_id import EARLIER_MAX
from brokerd.errors import AuthenticationError, BrokerdError, BrokerUnreachableError, DeliveryTimeoutError, ProducerFencedError
from brokerd.ids import TopicPartition
from brokerd.wire.v1.transaction_pb2 import EndTransactionRequest
from tests.support.daemon import running_daemon

T0 = TopicPartition("t", 0)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with running_daemon(tmp_path / "data") as daemon:
        with BlockingClient(ConsumerConfig(bootstrap_servers=daemon.address)) as client:
            client.create_topic("t", 1)
        yield daemon.address


def producer(address: str) -> Producer:
    return Producer({"bootstrap.servers": address, "transactional.id": "orders", "retry.backoff.ms": 1})


def visible(address: str) -> set[bytes | None]:
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([T0])
        end = consumer.end_offsets([T0])[T0]
        values: set[bytes | None] = set()
        while consumer.position(T0) < end:
            values |= {record.value for record in consumer.poll(timeout_ms=1_000)}
        return values


def lose_one(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None], *, reaches_broker: bool, refusal: BrokerdError | None = None
) -> None:
    """Loses the next EndTransaction or its response, and runs `meanwhile` before the retry. `refusal`: the result of the retry."""
    original = BrokerClient.call_once
    lost: list[Message] = []

    async def call_once(self: BrokerClient, node_id: int, request: Message, *arguments: Any) -> Any:
        if isinstance(request, EndTransactionRequest) and len(lost) == 1 and refusal is not None:
            lost.append(request)
            raise refusal
        if not isinstance(request, EndTransactionRequest) or lost:
            return await original(self, node_id, request, *arguments)
        lost.append(request)
        if reaches_broker:
            await original(self, node_id, request, *arguments)
        await asyncio.to_thread(meanwhile)
        raise BrokerUnreachableError("the connection was cut")

    monkeypatch.setattr(BrokerClient, "call_once", call_once)


def commits(address: str, count: int) -> Callable[[], None]:
    def others() -> None:
        with producer(address) as other:
            for number in range(count):
                with other.transaction():
                    other.send("t", b"other %d" % number)

    return others


@pytest.mark.parametrize("count", [1, EARLIER_MAX])
def test_a_commit_whose_answer_is_lost_is_committed_though_others_follow(
    address: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    with producer(address) as one:
        lose_one(monkeypatch, commits(address, count), reaches_broker=True)
        with one.transaction() as transaction:
            one.send("t", b"mine")
        assert transaction.is_committed
    assert b"mine" in visible(address)


def test_a_refusal_that_follows_does_not_say_that_nothing_is_committed(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with producer(address) as one:
        lose_one(monkeypatch, lambda: None, reaches_broker=True, refusal=AuthenticationError("no such token", may_pass=False))
        expected = "is not known: begin it again as version 0.*: no such token"
        with pytest.raises(DeliveryTimeoutError, match=expected), one.transaction():
            one.send("t", b"mine")
    assert b"mine" in visible(address)


def test_after_too_many_others_the_outcome_is_not_known(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with producer(address) as one:
        lose_one(monkeypatch, commits(address, EARLIER_MAX + 1), reaches_broker=True)
        with pytest.raises(DeliveryTimeoutError, match="is not known: look for its records"), one.transaction():
            one.send("t", b"mine")
    assert b"mine" in visible(address)


@pytest.mark.parametrize("count", [1, EARLIER_MAX])
def test_a_commit_that_never_arrived_is_fenced_and_not_visible(address: str, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    with producer(address) as one:
        # The first commit of the other program takes the version of `one`; the further ones are newer.
        lose_one(monkeypatch, commits(address, 1 + count), reaches_broker=False)
        with pytest.raises(ProducerFencedError, match="nothing of this one is visible"), one.transaction():
            one.send("t", b"mine")
    assert b"mine" not in visible(address)
