"""Long run of the transactions' schedules, for `make transactions`, with one process per core.

python -m tests.model.long_transactions [--schedules 100000]
"""

from __future__ import annotations

from tests.support.seeds import long_run
from tests.support.transaction_simulation import run_seed

if __name__ == "__main__":
    long_run(run_seed, "transactions", 100_000, chunk=500)
