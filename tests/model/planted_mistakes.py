"""How many schedules it takes to find each bug planted in replication. Bugs found late show the limits of the schedules.

python -m tests.model.planted_mistakes [--windows 3] [--bound 5000] [--step 1] [NAME ...]
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

from tests.support import replicated_bugs, replicated_transactions, replication_bugs, replication_simulation
from tests.support.mutants import Mutants, Run, finds

_WINDOW = 100_000  # distance between the first seeds of two windows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="How many schedules find each planted mistake, from seed 0 on.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these, or those whose names contain it")
    parser.add_argument("--windows", type=int, default=1, help="how often to search, each time with other seeds (default 1)")
    parser.add_argument("--bound", type=int, default=2_000, help="schedules of a search, at most (default 2000)")
    parser.add_argument("--step", type=int, default=1, help="every so many-th seed alone, for disasters 4 with --first 3")
    parser.add_argument("--first", type=int, default=0, help="the first seed of the first search (default 0)")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    lists: tuple[tuple[Mutants, Run], ...] = (
        (replication_bugs.MUTANTS, replication_simulation.run_seed),
        (replicated_bugs.MUTANTS, replicated_transactions.run_seed),
    )
    for mutants, run in lists:
        for name, (plant_it, _) in mutants.items():
            if given.names and not any(each in name for each in given.names):
                continue
            firsts = [given.first + window * _WINDOW for window in range(given.windows)]
            took = [searched(plant_it, run, range(first, first + given.bound * given.step, given.step)) for first in firsts]
            texts = [str(count) if count is not None else f"> {given.bound}" for count in took]
            found = [count for count in took if count is not None]
            mean = f"mean {sum(found) / len(found):.0f}" if len(took) == len(found) > 1 else ""
            print(f"{name:70} {', '.join(texts):30} {mean}".rstrip(), flush=True)


def searched(plant_it: Callable[[Any], None], run: Run, seeds: range) -> int | None:
    """The number of schedules until one finds the bug; None if none does."""
    put_back: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        put_back.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    plant_it(put)
    try:
        return next((count for count, seed in enumerate(seeds, 1) if finds(run, seed)), None)
    finally:
        for owner, name, value in reversed(put_back):
            setattr(owner, name, value)


if __name__ == "__main__":
    main()
