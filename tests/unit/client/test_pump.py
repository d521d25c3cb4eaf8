"""Goal: a pump that is stopped ends, whatever fails at the same moment. Method: a client that fails just then."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import FetchRange, Item, Pump
from brokerd.config.client import ConsumerConfig
from brokerd.errors import BrokerUnreachableError, ClientError
from tests.support.records import TP
from tests.support.wait import DEADLINE_S


def test_stop_is_not_lost_if_a_stream_breaks_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the pump would retry forever."""
    items: queue.SimpleQueue[Item] = queue.SimpleQueue()
    pumps: list[Pump] = []
    is_made = threading.Event()

    async def leader(_tp: object) -> int:
        return 0

    async def partitions_per_request(_node_id: int) -> int:
        assert await asyncio.to_thread(is_made.wait, DEADLINE_S)
        pumps[0].stop()
        raise BrokerUnreachableError("broken")

    def retry_wait_ms(_retries: object, _error: object, **_options: object) -> None:
        raise AssertionError("it was told to stop")

    with BlockingClient(ConsumerConfig()) as client:
        fakes: dict[str, Any] = {
            "leader": leader,
            "partitions_per_request": partitions_per_request,
            "retry_wait_ms": retry_wait_ms,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(client.broker_client, name, fake)
        pumps.append(Pump(client, [FetchRange(TP, 0)], ConsumerConfig(), items.put))
        is_made.set()
        assert items.get(timeout=DEADLINE_S) is None


def test_a_pump_that_is_stopped_before_it_begins_ends_too() -> None:
    items: queue.SimpleQueue[Item] = queue.SimpleQueue()
    with BlockingClient(ConsumerConfig()) as client:
        Pump(client, [FetchRange(TP, 0)], ConsumerConfig(), items.put).stop()
        assert items.get(timeout=DEADLINE_S) is None


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_pump_ends_whose_client_is_closed_before_it_begins(is_stopped: bool) -> None:
    items: queue.SimpleQueue[Item] = queue.SimpleQueue()
    client, held = BlockingClient(ConsumerConfig()), threading.Event()
    client.loop_thread.call_soon(held.wait)  # so that the loop handles the start and the end of the pump in one turn
    pump = Pump(client, [FetchRange(TP, 0)], ConsumerConfig(), items.put)
    if is_stopped:
        pump.stop()
    client.loop_thread.end()
    held.set()
    last = items.get(timeout=DEADLINE_S)
    assert last is None if is_stopped else isinstance(last, ClientError)
    client.close()
