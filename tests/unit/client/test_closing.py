"""Goal: a loop that closes leaves no operation in gRPC, whose only poller would hand it over inside another loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest

from brokerd.client.blocking import BlockingClient, LoopThread
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.config.client import ConsumerConfig
from brokerd.errors import ClientError
from brokerd.producer.producer import Producer
from tests.support.fake_broker import FakeBroker, fake_broker
from tests.support.loop import one_turn
from tests.support.wait import DEADLINE_S

ROUNDS = 25


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with fake_broker() as broker:
        broker.create("t")
        yield broker


def noise(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Exceptions in callbacks, as logged by this process's loops."""
    return [record.getMessage() for record in caplog.records if record.name == "asyncio" and record.levelno >= logging.ERROR]


def test_clients_that_close_with_calls_under_way_disturb_no_other_loop(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    config = ConsumerConfig(bootstrap_servers=f"127.0.0.1:{broker.port}")
    with BlockingClient(config) as living:
        for _ in range(ROUNDS):
            client = BlockingClient(config)
            tp = broker.topics["t"][0].tp
            fetcher = PartitionFetcher(client, [FetchRange(tp, 0)], config)
            client.metadata()
            client.loop_thread.submit(client.broker_client.metadata(None))
            client.close()
            fetcher.close()
            assert living.metadata().nodes
    assert noise(caplog) == []


def test_producers_that_close_disturb_no_other_loop(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    servers = f"127.0.0.1:{broker.port}"
    with BlockingClient(ConsumerConfig(bootstrap_servers=servers)) as living:
        for _ in range(ROUNDS):
            with Producer({"bootstrap.servers": servers}) as producer:
                producer.send("t", value=b"x").result(DEADLINE_S)
            assert living.metadata().nodes
    assert noise(caplog) == []


@pytest.mark.parametrize("foreign", [False, True], ids=["a loop of ours", "a loop of the application"])
def test_what_grpc_completes_after_a_loop_has_closed_is_reported_by_no_loop(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, foreign: bool
) -> None:
    """gRPC completes a watch when the channel's state changes, here after the watch's loop has closed."""
    channels: list[grpc.aio.Channel] = []

    async def watch() -> None:
        channel = grpc.aio.insecure_channel("127.0.0.1:1")
        channels.append(channel)
        watching = asyncio.create_task(channel.wait_for_state_change(grpc.ChannelConnectivity.IDLE))
        await one_turn()
        watching.cancel()

    config = ConsumerConfig(bootstrap_servers=f"127.0.0.1:{broker.port}")
    if foreign:
        asyncio.run(watch())
    else:
        with contextlib.closing(LoopThread()) as loop_thread:
            loop_thread.run(watch())
    with BlockingClient(config) as living:
        channels[0].get_state(try_to_connect=True)
        for _ in range(ROUNDS):  # the loops of this client and of the fake broker hand operations over
            assert living.metadata().nodes
    assert noise(caplog) == []


def test_close_cleans_up_after_what_runs_was_cancelled() -> None:
    loop_thread = LoopThread()
    started = threading.Event()
    order: list[str] = []

    async def run() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            order.append("cancelled")

    async def fail() -> None:
        raise ValueError("no")

    async def clean_up() -> None:
        order.append("cleaned up")

    loop_thread.at_close(fail)
    loop_thread.at_close(clean_up)
    running = loop_thread.submit(run())  # kept: a loop holds its tasks weakly, and nothing else holds a task that waits forever
    assert started.wait(DEADLINE_S)
    assert not running.has_ended
    loop_thread.close()
    loop_thread.close()
    assert order == ["cancelled", "cleaned up"]
    with pytest.raises(ClientError, match="is closed"):
        loop_thread.submit(run())
