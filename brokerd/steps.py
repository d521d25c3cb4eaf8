"""Multi-step work that runs in a thread or in a task: a generator that yields each operation it waits for, and is resumed with the
result or the error. State changes between two waits happen where the generator runs. The driver decides how to wait, and the order
of concurrent work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")
Job = Callable[[], object]
Steps = Generator[Job, object, T]  # administrative work of the broker: yields blocking jobs


def drive(steps: Generator[A, Any, T], wait: Callable[[A], Any]) -> T:
    """Runs all steps in this thread. Exceptions of the steps are raised."""
    try:
        asked = next(steps)
        while True:
            try:
                result = wait(asked)
            except BaseException as error:  # interrupts included: the steps may have to clean up
                asked = steps.throw(error)
            else:
                asked = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_in_loop(steps: Generator[A, Any, T], wait: Callable[[A], Awaitable[Any]]) -> T:
    """Runs all steps in this task; a cancellation is raised in the step that waits. Exceptions of the steps are raised."""
    try:
        asked = next(steps)
        while True:
            try:
                result = await wait(asked)
            except BaseException as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value
