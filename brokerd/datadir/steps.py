"""Work that changes state and waits for the disk in turns: a generator changes the state, and yields what waits.

So one and the same sequence runs in the event loop with its waiting done by threads, or from beginning to end right here.
What a yielded job raises is raised at the `yield`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

T = TypeVar("T")
Job = Callable[[], object]
Steps = Generator[Job, object, T]


def run_here(steps: Steps[T]) -> T:
    """Runs all, waiting for the disk. Raises what the steps raise."""
    try:
        job = next(steps)
        while True:
            try:
                result = job()
            except Exception as error:
                job = steps.throw(error)
            else:
                job = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
