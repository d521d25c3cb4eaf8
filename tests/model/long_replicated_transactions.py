"""Long run of the replicated transactions' schedules, for `make replicated-transactions`, with one process per core.

python -m tests.model.long_replicated_transactions [--schedules 30000]
"""

from __future__ import annotations

from tests.support.replicated_transactions import run_seed
from tests.support.seeds import long_run

if __name__ == "__main__":
    long_run(run_seed, "transactions on replicated partitions", 30_000, chunk=100)
