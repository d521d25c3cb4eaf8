"""A task's exception reaches the code that awaits it, or is logged with its cause; asyncio never has to report it."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from brokerd.errors import NotReadyError, StorageError
from brokerd.server.admin import Admin
from brokerd.server.failures import look_at_end
from brokerd.sharing import CALLER, Caller
from brokerd.steps import Steps
from tests.support.loop import all_wait
from tests.support.wait import DEADLINE_S


def run(work: Coroutine[Any, Any, None]) -> list[dict[str, Any]]:
    """Runs `work` in a new event loop; returns what asyncio itself reports."""
    reports: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        await work
        await all_wait()
        gc.collect()

    asyncio.run(main())
    gc.collect()
    return reports


def test_who_stops_waiting_for_administrative_work_leaves_no_report() -> None:
    may_end = threading.Event()

    def steps() -> Steps[None]:
        yield lambda: may_end.wait(DEADLINE_S)
        raise StorageError("the disk")

    async def work() -> None:
        admin = Admin()
        first = asyncio.create_task(admin.run(steps()))
        caller = asyncio.create_task(admin.run(steps()))
        await all_wait()  # the first is in a thread, the second waits for it
        caller.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(StorageError):
            await first
        await admin.drain()

    assert run(work()) == []


def test_at_a_stop_administrative_work_that_waits_is_refused_and_what_has_begun_goes_on() -> None:
    begun: list[str] = []
    may_end = threading.Event()

    def steps(name: str) -> Steps[str]:
        begun.append(name)
        yield lambda: may_end.wait(DEADLINE_S)
        return name

    async def work() -> None:
        admin = Admin()
        callers = [asyncio.create_task(admin.run(steps(name))) for name in ("first", "second", "third")]
        await all_wait()  # the first is in a thread, the others wait for it
        admin.begin_stop()
        may_end.set()
        ends = await asyncio.gather(*callers, return_exceptions=True)
        assert ends[0] == "first"
        assert [type(end) for end in ends[1:]] == [NotReadyError, NotReadyError]
        with pytest.raises(NotReadyError):
            await admin.run(steps("late"))

    assert run(work()) == []
    assert begun == ["first"]


def test_whoever_has_much_administrative_work_waits_for_it_alone() -> None:
    order: list[str] = []

    def steps(name: str) -> Steps[None]:
        order.append(name)
        yield lambda: None

    async def call(admin: Admin, owner: str) -> None:
        CALLER.set(Caller(owner, owner))
        await admin.run(steps(owner))

    async def work() -> None:
        admin = Admin()
        tasks = [asyncio.create_task(call(admin, owner)) for owner in ["many"] * 50 + ["few"]]
        await asyncio.gather(*tasks)
        await admin.drain()

    assert run(work()) == []
    assert order.index("few") <= 2
    assert len(order) == 51


async def _raise(error: Exception) -> None:
    raise error


GONE = asyncio.InvalidStateError("the call is over")


@pytest.mark.parametrize(("error", "is_logged"), [(KeyError("x"), True), (GONE, False)])
def test_a_failure_is_logged_unless_the_client_is_gone(error: Exception, is_logged: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    async def work() -> None:
        task = asyncio.create_task(_raise(error))
        look_at_end(task, "a response")
        await asyncio.wait((task,))

    assert run(work()) == []
    assert ("in a response" in caplog.text) == is_logged
