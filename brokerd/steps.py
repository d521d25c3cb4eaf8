"""A call of several steps, written once for whoever waits: a thread or a task.

It is a generator that yields what is to be waited for, and is resumed with the result, or the error. How to wait, and in which
order calls come, is the caller's business. (Administrative work of the broker has steps of its own, brokerd/datadir/steps.py: a
task that is cancelled does not resume those.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")


def drive(steps: Generator[A, Any, T], wait: Callable[[A], Any]) -> T:
    """Takes all steps in this thread. Raises what the steps raise."""
    try:
        asked = next(steps)
        while True:
            try:
                result = wait(asked)
            except BaseException as error:  # an interrupt too: the steps may have something to take back
                asked = steps.throw(error)
            else:
                asked = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


async def drive_in_loop(steps: Generator[A, Any, T], wait: Callable[[A], Awaitable[Any]]) -> T:
    """Takes all steps in this task; a cancellation is an error of the step that waits. Raises what the steps raise."""
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
