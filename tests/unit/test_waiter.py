"""Goal: any thread may signal a waiting task, any number of times, even after the task's cancellation or in a closed loop."""

from __future__ import annotations

import asyncio
import threading

from brokerd.waiter import Waiter
from tests.support.wait import DEADLINE_S


def test_a_task_is_told_by_another_thread() -> None:
    async def scenario() -> None:
        waiter = Waiter()
        threads = [threading.Thread(target=waiter.tell) for _ in range(3)]
        for thread in threads:
            thread.start()
        async with asyncio.timeout(DEADLINE_S):
            await waiter
            await waiter
        for thread in threads:
            thread.join(DEADLINE_S)

    asyncio.run(scenario(), debug=True)


def test_a_task_that_was_cancelled_may_be_told() -> None:
    async def wait_for(waiter: Waiter) -> None:
        await waiter

    async def scenario() -> Waiter:
        waiter = Waiter()
        task = asyncio.create_task(wait_for(waiter))
        asyncio.get_running_loop().call_soon(task.cancel)
        await asyncio.wait([task])
        assert task.cancelled()
        waiter.tell()
        return waiter

    asyncio.run(scenario(), debug=True).tell()
