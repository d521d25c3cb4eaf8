"""The long run of the transactions' schedules, for `make transactions`: in as many processes as there are cores.

python -m tests.model.long_transactions [--schedules 200000]
"""

from __future__ import annotations

import argparse

from tests.support.seeds import run_many
from tests.support.transaction_simulation import run_seed

_CHUNK = 500


def main() -> None:
    """Runs them; the first seed that breaks a promise ends it with its number."""
    parser = argparse.ArgumentParser(description="Random schedules of transactions, each checked at every step.")
    parser.add_argument("--schedules", type=int, default=200_000, help="how many (default 200000)")
    count = parser.parse_args().schedules
    facts = run_many(run_seed, count, chunk=_CHUNK)
    print(f"{count} schedules, and every promise kept")
    for fact, times in sorted(facts.items()):
        print(f"  {fact}: {times}")


if __name__ == "__main__":
    main()
