"""Long run of replication's schedules, for `make replication`, with one process per core.

python -m tests.model.long_replication [--schedules 100000]
"""

from __future__ import annotations

from tests.support.replication_simulation import run_seed
from tests.support.seeds import long_run

if __name__ == "__main__":
    long_run(run_seed, "a replicated partition", 100_000, chunk=200)
