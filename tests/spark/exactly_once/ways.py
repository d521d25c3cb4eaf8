"""append_to with a test's choice of small and large micro-batches, so that a replay may use the other writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from brokerd.sink import foreach_batch
from brokerd.spark import append_to

_lock = threading.Lock()  # all queries share the limits


def append_by(topic: str, options: Mapping[str, str], is_large: Callable[[int], bool]) -> Callable[[DataFrame, int], None]:
    """The function for foreachBatch. `is_large` takes a micro-batch's number; the sink writes large ones, the driver others."""
    append = append_to(topic, options)

    def write(frame: DataFrame, batch_id: int) -> None:
        with _lock:
            for limit in ("ROWS_MAX", "VERY_FEW_ROWS_MAX"):
                setattr(foreach_batch, limit, 0 if is_large(batch_id) else 100_000)
            append(frame, batch_id)

    return write
