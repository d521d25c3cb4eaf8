"""Goal: steps behave alike in a thread and an event loop. Results and errors arrive at the yield; unhandled errors are raised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from brokerd.errors import StorageError
from brokerd.steps import Steps, drive_in_loop
from tests.support.steps import run_here


def in_a_loop(steps: Steps[list[object]]) -> list[object]:
    return asyncio.run(drive_in_loop(steps, asyncio.to_thread))


def failing() -> None:
    raise StorageError("the disk")


def steps_that_go_on() -> Steps[list[object]]:
    seen: list[object] = [(yield lambda: 1)]
    try:
        yield failing
    except StorageError as error:
        seen.append(error.message)
    seen.append((yield lambda: 3))
    return seen


def steps_that_fail() -> Steps[list[object]]:
    yield failing
    return []


def steps_without_a_job() -> Steps[list[object]]:
    yield from ()
    return ["nothing to wait for"]


RUN = pytest.mark.parametrize("run", [run_here, in_a_loop])
Run = Callable[[Steps[list[object]]], list[object]]


@RUN
def test_results_and_errors_arrive_at_the_yield(run: Run) -> None:
    assert run(steps_that_go_on()) == [1, "the disk", 3]


@RUN
def test_what_the_steps_do_not_take_is_raised(run: Run) -> None:
    with pytest.raises(StorageError, match="the disk"):
        run(steps_that_fail())


@RUN
def test_steps_without_a_job_end_at_once(run: Run) -> None:
    assert run(steps_without_a_job()) == ["nothing to wait for"]


def test_state_changes_in_the_loop_and_waiting_is_done_by_threads() -> None:
    def steps() -> Steps[list[object]]:
        where: list[object] = [threading.current_thread().name]
        where.append((yield lambda: threading.current_thread().name))
        return [where[0], where[1] != where[0], threading.current_thread().name]

    main = threading.current_thread().name
    assert in_a_loop(steps()) == [main, True, main]
    assert run_here(steps()) == [main, False, main]
