"""Goal: work that another thread does is awaited, and withdrawn if nobody waits any more. Method: work that the test ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerd.aio.waiting import outcome_of
from tests.support.heartbeat import beat, cancelled


class Work:
    """Work that is begun, ended and withdrawn."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def begin(self, on_end: Callable[[], None]) -> Work:
        self.steps.append("begun")
        self.end = on_end
        return self

    def outcome(self) -> int:
        return 42

    def withdraw(self) -> None:
        self.steps.append("withdrawn")


def test_an_outcome_is_awaited() -> None:
    async def scenario() -> None:
        work = Work()
        waiting = asyncio.create_task(outcome_of(work.begin))
        await beat()
        assert not waiting.done()
        work.end()
        assert await waiting == 42
        assert work.steps == ["begun"]

    asyncio.run(scenario())


def test_work_that_nobody_waits_for_is_withdrawn() -> None:
    async def scenario() -> None:
        work = Work()
        waiting = asyncio.create_task(outcome_of(work.begin))
        await beat()
        await cancelled(waiting)
        assert work.steps == ["begun", "withdrawn"]
        work.end()  # all the same

    asyncio.run(scenario())
