"""The long run of the transactions' schedules, for `make transactions`: in as many processes as there are cores. Of three
schedules one is of a node that is alone, one of two nodes, and one of three.

python -m tests.model.long_transactions [--schedules 300000]
"""

from __future__ import annotations

from tests.support.seeds import long_run
from tests.support.transaction_simulation import Simulation


def run_seed(seed: int) -> dict[str, int]:
    """Runs one schedule."""
    return Simulation(seed, node_count=1 + seed % 3).run()


if __name__ == "__main__":
    long_run(run_seed, "transactions", 300_000, chunk=500)
