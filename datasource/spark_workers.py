"""Which of PySpark's worker processes this is: Spark makes the same objects in several, for different purposes."""

from __future__ import annotations

import sys

COMMIT_OR_ABORT = "python_streaming_sink_runner"  # makes a stream's writer anew, for each commit and each abort
PUSHDOWN = "data_source_pushdown_filters"  # there only if filter push-down is on


def runs_in(worker: str) -> bool:
    """True in a process of this worker, whether it is forked by PySpark's daemon or started on its own."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return f"pyspark.sql.worker.{worker}" in (*sys.argv[-1:], getattr(main, "name", None))
