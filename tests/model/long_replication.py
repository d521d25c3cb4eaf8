"""The long run of replication's schedules, for `make replication`: in as many processes as there are cores.

python -m tests.model.long_replication [--schedules 100000]
"""

from __future__ import annotations

import argparse

from tests.support.replication_simulation import run_seed
from tests.support.seeds import run_many

_CHUNK = 200


def main() -> None:
    """Runs them; the first seed that breaks a promise ends it with its number."""
    parser = argparse.ArgumentParser(description="Random schedules of a replicated partition, each checked at every step.")
    parser.add_argument("--schedules", type=int, default=100_000, help="how many (default 100000)")
    count = parser.parse_args().schedules
    facts = run_many(run_seed, count, chunk=_CHUNK)
    print(f"{count} schedules, and every promise kept")
    for fact, times in sorted(facts.items()):
        print(f"  {fact}: {times}")


if __name__ == "__main__":
    main()
