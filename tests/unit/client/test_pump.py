"""Goal: a pump that is told to stop stops, whatever strikes it at the same moment. Method: a client that strikes just then."""

from __future__ import annotations

import asyncio
from typing import Any

from brokerd.client.consumer.arrivals import Arrivals
from brokerd.client.consumer.positions import FetchRange, RangePosition
from brokerd.client.consumer.pump import Pump
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.errors import BrokerUnreachableError
from tests.support.records import TP
from tests.support.wait import DEADLINE_S


class FailingClient:
    """Its stream breaks while the pump is being stopped, and it would be retried for ever."""

    clock = SystemClock()

    def __init__(self) -> None:
        self.pump: Pump | None = None

    def retries(self, _now_ms: int) -> None:
        return None

    async def leader(self, _tp: object, *, refresh: bool) -> int:
        return 0

    async def partitions_per_request(self, _node_id: int) -> int:
        assert self.pump is not None
        asyncio.get_running_loop().call_soon(self.pump.stop)
        raise BrokerUnreachableError("broken")

    async def wait_or_raise(self, _retries: object, _error: object) -> None:
        raise AssertionError("it was told to stop")


def test_stop_is_not_lost_if_a_stream_breaks_at_the_same_moment() -> None:
    async def scenario() -> None:
        client: Any = FailingClient()
        position = RangePosition(FetchRange(TP, 0), is_read_committed=True, check_headers=True)
        client.pump = Pump(client, [position], ConsumerConfig(), asyncio.Semaphore(3), Arrivals())
        pumping = asyncio.create_task(client.pump.run())
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait([pumping])
        assert pumping.cancelled()

    asyncio.run(scenario())
