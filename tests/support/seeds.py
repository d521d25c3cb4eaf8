"""Runs of seeded simulations, many at a time: what happened is counted, so that a test can see that it did."""

from __future__ import annotations

import argparse
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

# Runs one seed; how often what happened.
Run = Callable[[int], Mapping[str, int]]
_PROCESSES_MAX = 8


def run_seeds(run: Run, first: int, count: int) -> Counter[str]:
    """Runs `count` seeds from `first`. The failing seed is in the error's text."""
    facts: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            facts.update(run(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return facts


def run_part(run: Run, part: int, count: int, often: Iterable[str], *, one_in: int) -> None:
    """Runs the `part`-th `count` seeds. Raises AssertionError, also if one of `often` happened less than once in `one_in` seeds."""
    facts = run_seeds(run, part * count, count)
    for fact in often:
        assert facts[fact] >= count // one_in, (fact, facts)


def assert_replays(traced: Callable[[int], Sequence[str]], seeds: Iterable[int]) -> None:
    """Runs each seed twice. Raises AssertionError if its two traces are not equal."""
    for seed in seeds:
        first, again = traced(seed), traced(seed)
        assert first, f"seed {seed} leaves no trace"
        assert first == again, f"seed {seed} runs in two ways"


def run_many(run: Run, count: int, *, chunk: int) -> Counter[str]:
    """Runs the seeds below `count`, `chunk` at a time, in as many processes as there are cores. `run` is a module's function."""
    facts: Counter[str] = Counter()
    workers = min(os.cpu_count() or 1, _PROCESSES_MAX)
    chunks = range(0, count, chunk)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_quiet) as pool:
        for counted in pool.map(run_seeds, [run] * len(chunks), chunks, [chunk] * len(chunks)):
            facts.update(counted)
    return facts


def long_run(run: Run, what: str, schedules: int, *, chunk: int) -> None:
    """The command of a long run (`--schedules`): the first seed that breaks a promise ends it with its number."""
    parser = argparse.ArgumentParser(description=f"Random schedules of {what}, each checked at every step.")
    parser.add_argument("--schedules", type=int, default=schedules, help=f"how many (default {schedules})")
    count = parser.parse_args().schedules
    facts = run_many(run, count, chunk=chunk)
    print(f"{count} schedules, and every promise kept")
    for fact, times in sorted(facts.items()):
        print(f"  {fact}: {times}")


def _quiet() -> None:
    logging.disable(logging.CRITICAL)  # every cut, every failed write and every piece of damage is logged, as it should
