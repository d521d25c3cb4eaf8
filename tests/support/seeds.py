"""Runs many seeds of a simulation, and counts the events that occurred so that tests can require them."""

from __future__ import annotations

import argparse
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from brokerd.server import failures

# Runs one seed; returns how often each event occurred.
Run = Callable[[int], Mapping[str, int]]
_PROCESSES_MAX = 8
_TOLD_EACH = 10  # chunks between progress lines
_FAILURES_MAX = 20


def run_seeds(run: Run, first: int, count: int) -> Counter[str]:
    """Runs `count` seeds from `first`. Raises AssertionError with the failing seed in its text, also for an internal error of a
    broker that its clients survived."""
    facts: Counter[str] = Counter()
    for seed in range(first, first + count):
        before = next(failures._numbers)
        try:
            facts.update(run(seed))
            assert next(failures._numbers) == before + 1, "an internal error of a broker: the log has it"
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return facts


def run_part(run: Run, part: int, count: int, often: Iterable[str], *, one_in: int) -> None:
    """Runs the `part`-th block of `count` seeds. Raises AssertionError, also if an event of `often` occurred in fewer than one in
    `one_in` seeds."""
    facts = run_seeds(run, part * count, count)
    for fact in often:
        assert facts[fact] >= count // one_in, (fact, facts)


def assert_replays(traced: Callable[[int], Sequence[str]], seeds: Iterable[int]) -> None:
    """Runs each seed twice. Raises AssertionError if the two traces differ."""
    for seed in seeds:
        first, again = traced(seed), traced(seed)
        assert first, f"seed {seed} leaves no trace"
        assert first == again, f"seed {seed} runs in two ways"


def run_many(run: Run, count: int, *, chunk: int, first: int = 0) -> Counter[str]:
    """Runs `count` seeds from `first` in processes, `chunk` seeds at a time, and prints progress and failing seeds. `run` must be a
    module-level function. Raises AssertionError at the end, or after _FAILURES_MAX failures."""
    facts: Counter[str] = Counter()
    failed = 0
    workers = min(os.cpu_count() or 1, _PROCESSES_MAX)
    chunks = range(first, first + count, chunk)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        for done, (counted, failures) in enumerate(pool.map(_run_on, [run] * len(chunks), chunks, [chunk] * len(chunks)), 1):
            facts.update(counted)
            failed += len(failures)
            for failure in failures:
                print(failure, flush=True)
            assert failed < _FAILURES_MAX, f"{failed} of {done * chunk} seeds failed"
            if done % _TOLD_EACH == 0:
                print(f"{first + done * chunk - 1} is the last seed so far", flush=True)
    assert not failed, f"{failed} of {count} seeds failed"
    return facts


def _run_on(run: Run, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Runs seeds, continuing after failures; returns the event counts and the failures."""
    facts: Counter[str] = Counter()
    failures = []
    for seed in range(first, first + count):
        try:
            facts.update(run_seeds(run, seed, 1))
        except AssertionError as error:
            failures.append(str(error))
    return facts, failures


def long_run(run: Run, what: str, schedules: int, *, chunk: int) -> None:
    """The command line of a long run. Prints the seeds that break a promise."""
    parser = argparse.ArgumentParser(description=f"Random schedules of {what}, each checked at every step.")
    parser.add_argument("--schedules", type=int, default=schedules, help=f"how many (default {schedules})")
    parser.add_argument("--first", type=int, default=0, help="the first seed, such as the one after an earlier run (default 0)")
    given = parser.parse_args()
    facts = run_many(run, given.schedules, chunk=chunk, first=given.first)
    print(f"{given.schedules} schedules, and every promise kept")
    for fact, times in sorted(facts.items()):
        print(f"  {fact}: {times}")


def _quiet() -> None:
    logging.disable(logging.CRITICAL)  # truncations, failed writes and damage are logged as expected
