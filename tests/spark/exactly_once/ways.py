"""append_to, made to take micro-batches for small or large ones whatever they are, so that a replay may go the other way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

from brokerd.sink import foreach_batch
from brokerd.spark import append_to

_lock = threading.Lock()  # the limits are those of all queries


def append_by(topic: str, options: Mapping[str, str], is_large: Callable[[int], bool]) -> Callable[[DataFrame, int], None]:
    """The function for foreachBatch. `is_large`: of a micro-batch, by its number; the sink writes large ones, the driver others."""
    append = append_to(topic, options)

    def write(frame: DataFrame, batch_id: int) -> None:
        with _lock:
            for limit in ("ROWS_MAX", "VERY_FEW_ROWS_MAX"):
                setattr(foreach_batch, limit, 0 if is_large(batch_id) else 100_000)
            append(frame, batch_id)

    return write
