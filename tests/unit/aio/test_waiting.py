"""Goal: a call on the loop thread is awaited by a task of another loop, and cancelled with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from brokerd.client.blocking import LoopThread
from tests.support.heartbeat import beat, cancelled
from tests.support.wait import DEADLINE_S


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    try:
        yield thread
    finally:
        thread.close()


async def test_an_outcome_is_awaited(loop_thread: LoopThread) -> None:
    goes_on = asyncio.Event()

    async def work() -> int:
        await goes_on.wait()
        return 42

    waiting = asyncio.create_task(loop_thread.awaited(work()))
    await beat()
    assert not waiting.done()
    loop_thread.call_soon(goes_on.set)
    assert await waiting == 42


def test_work_that_nobody_waits_for_is_cancelled(loop_thread: LoopThread) -> None:
    has_begun, has_ended = threading.Event(), threading.Event()

    async def work() -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            has_ended.set()

    async def scenario() -> None:
        waiting = asyncio.create_task(loop_thread.awaited(work()))
        assert await asyncio.to_thread(has_begun.wait, DEADLINE_S)
        await cancelled(waiting)

    asyncio.run(scenario())
    assert has_ended.wait(DEADLINE_S)
