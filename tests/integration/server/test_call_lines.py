"""Calls that wait for processing are queued per method, so that others overtake a flood of one method."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import pytest

from benchmarks.raw_http2 import RawHttp2
from brokerd.wire.methods import PRODUCE, SERVICE, UNARY
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.wait import DEADLINE_S

FLOOD = 90
NOTHING = f"/{SERVICE}/Nothing"
METADATA = UNARY["Metadata"].path
HEALTH = "/grpc.health.v1.Health/Check"


class Order(grpc.aio.ServerInterceptor):
    """The methods of the calls that the broker has begun to process, in order."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        self.methods.append(str(handler_call_details.method))
        return await continuation(handler_call_details)


@pytest.fixture(scope="module")
def order() -> Order:
    """The order in which `daemon` begins calls."""
    return Order()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, order: Order) -> Iterator[RunningDaemon]:
    """A broker without authentication."""
    directory = tmp_path_factory.mktemp("lines")
    with running_daemon(directory / "data", files=MemoryFiles(), interceptors=[order]) as running:
        yield running


@pytest.mark.parametrize(
    ("flood", "path"), [(NOTHING, METADATA), (NOTHING, HEALTH), (METADATA, HEALTH), (METADATA, PRODUCE), (PRODUCE, METADATA)]
)
def test_a_flood_of_another_method_is_overtaken(daemon: RunningDaemon, order: Order, flood: str, path: str) -> None:
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        assert may_go_on.wait(DEADLINE_S)

    flooding, honest = RawHttp2(daemon.daemon.port), RawHttp2(daemon.daemon.port)
    try:
        assert flooding.ping(DEADLINE_S)
        assert honest.ping(DEADLINE_S)
        daemon.loop.call_soon_threadsafe(hold)
        assert is_held.wait(DEADLINE_S)
        order.methods.clear()
        for _ in range(FLOOD):
            flooding.call(flood, flush=False)
        flooding.flush()
        assert flooding.ping(DEADLINE_S), "all of it is here, and waits"
        asked = honest.call(path)
        honest.send_message(asked, b"", end=True)
        assert honest.ping(DEADLINE_S)
        may_go_on.set()
        assert honest.status_of(asked, DEADLINE_S) is not None
    finally:
        may_go_on.set()
        flooding.close()
        honest.close()
    assert path in order.methods[: FLOOD // 2]
