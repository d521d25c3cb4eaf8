"""Work that alternates between state changes and disk I/O, as a generator that changes state and yields blocking jobs.

The same sequence runs in the event loop, with its I/O in threads, or synchronously. A job's exception is raised at its `yield`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Job = Callable[[], object]
Steps = Generator[Job, object, T]


def run_here(steps: Steps[T]) -> T:
    """Runs all steps synchronously. Raises whatever the steps raise."""

    async def wait_here(job: Job) -> object:
        return job()

    try:
        drive(steps, wait_here).send(None)  # it never suspends
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("a job that is waited for here has nothing to suspend for")


async def drive(steps: Steps[T], wait: Callable[[Job], Awaitable[object]]) -> T:
    """Runs all steps, awaiting `wait(job)` for each job (asyncio.to_thread in an event loop). Raises whatever the steps raise."""
    try:
        job = next(steps)
        while True:
            try:
                result = await wait(job)
            except Exception as error:
                job = steps.throw(error)
            else:
                job = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
