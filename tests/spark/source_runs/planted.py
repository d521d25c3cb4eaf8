"""Shows that the runs find bugs: `python -m tests.spark.source_runs.planted` plants bugs into the source, one at a time.

Each bug gets rounds with successive seeds until the checker names the expected violation. Exit code 0 only if every bug was found
within the maximum number of rounds. The bugs are in planted_source.py.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.spark.source_runs.checker import ViolationsError
from tests.spark.source_runs.planted_source import BUGS
from tests.spark.source_runs.runs import Round

RUNS_MAX = 12
_QUERIES = 4
_KILLS = ("driver",)
# One of these must be found. A plan that depends on more than its two offsets may also be replayed with other rows.
EXPECTED: Mapping[str, frozenset[str]] = {
    "skips-a-record-after-a-restart": frozenset({"missing"}),
    "plans-a-batch-twice": frozenset({"doubled", "other-rows"}),
    "ends-a-range-one-too-far": frozenset({"doubled"}),
    "starts-new-partitions-at-their-end": frozenset({"missing"}),
    "shows-aborted-rows": frozenset({"aborted"}),
}


def look_for(bug: str, first_seed: int) -> str:
    """The violations that exposed the bug, their seed and the time; "" if none did."""
    began_s = time.monotonic()
    for number in range(RUNS_MAX // _QUERIES):
        seed = first_seed + number
        with tempfile.TemporaryDirectory(prefix="brokerd-source-runs-") as directory:
            try:
                Round(seed, Path(directory), _QUERIES, kills=_KILLS, planted=bug).run()
            except ViolationsError as error:
                if error.kinds & EXPECTED[bug]:
                    runs, taken_s = (number + 1) * _QUERIES, time.monotonic() - began_s
                    return f"found {', '.join(sorted(error.kinds))} within {runs} runs, seed {seed}, after {taken_s:.0f} s"
                raise
    return ""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(BUGS))
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each next one has the next seed")
    given = parser.parse_args()
    missed = 0
    for bug in [given.only] if given.only else BUGS:
        found = look_for(bug, given.seed)
        missed += not found
        print(f"{bug}: {found or f'NOT FOUND in {RUNS_MAX} runs'}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
