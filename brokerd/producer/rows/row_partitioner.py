"""Assigns a partition to every row: the one that the caller gave, else by the key's hash, else the sticky one."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from brokerd.config.client import ProducerConfig
from brokerd.producer.core.partitioner import Int32s, partition_for_hashes, partition_for_keys
from brokerd.producer.core.sticky import PartitionLoad, StickyPartitioner
from brokerd.producer.rows import columns
from brokerd.record.schema import KEY


class RowPartitioner:
    """Assigns the rows of one producer, in two steps: the first has state, which the sender's thread owns; only the second takes
    time.
    """

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._sticky: dict[str, StickyPartitioner] = {}

    def has_keyless_rows(self, rows: pa.RecordBatch, wanted: Int32s | None) -> bool:
        """True if `keyless_rows` would assign any row."""
        is_keyless = self._config.partitioner_ignore_keys or rows.column(KEY.index).null_count > 0
        return is_keyless and (wanted is None or bool((wanted < 0).any()))

    def keyless_rows(self, topic: str, rows: pa.RecordBatch, wanted: Int32s | None, load: PartitionLoad) -> Int32s | None:
        """In the sender's thread: partitions for the rows without a key, in their order; None if all have one."""
        if not self.has_keyless_rows(rows, wanted):
            return None
        key = rows.column(KEY.index)
        keyless = len(key) if self._config.partitioner_ignore_keys else key.null_count
        return self._sticky_of(topic).assign(keyless, rows.nbytes // rows.num_rows + columns.ROW_OVERHEAD_BYTES, load)

    def choose_one(self, topic: str, row: pa.RecordBatch, wanted: int | None, size_bytes: int, load: PartitionLoad) -> int:
        """Both steps, for a single row, without the price of columns. Raises as `choose`."""
        count = load.partition_count
        if wanted is not None:
            if not 0 <= wanted < count:
                raise _no_partition(wanted, count)
            return wanted
        key = row.column(KEY.index)
        if self._config.partitioner_ignore_keys or key.null_count:
            return self._sticky_of(topic).assign_one(size_bytes, load)
        return int(partition_for_keys(key, count)[0]) if count > 1 else 0

    def _sticky_of(self, topic: str) -> StickyPartitioner:
        sticky = self._sticky.get(topic)
        if sticky is None:
            sticky = self._sticky[topic] = StickyPartitioner(self._config.batch_size, self._rng)
        return sticky

    def check(self, wanted: Int32s, count: int) -> None:
        """Raises ValueError for a partition that the topic does not have."""
        if len(wanted) and (wanted.max() >= count or wanted.min() < -1):
            raise _no_partition(int(wanted.max() if wanted.max() >= count else wanted.min()), count)

    def choose(
        self, rows: pa.RecordBatch, wanted: Int32s | None, keyless: Int32s | None, count: int, *, hashes: Int32s | None = None
    ) -> Int32s:
        """The partition of every row; `hashes` of the keys, if they are known. Raises ValueError for one that the topic does not
        have."""
        if wanted is not None:
            self.check(wanted, count)
            if not (wanted < 0).any():
                return wanted
        key = rows.column(KEY.index)
        if keyless is not None and len(keyless) == len(key):
            chosen = keyless
        else:
            chosen = partition_for_keys(key, count) if hashes is None else partition_for_hashes(hashes, count)
            if keyless is not None:
                chosen[key.is_null().to_numpy(zero_copy_only=False)] = keyless
        return chosen if wanted is None else np.where(wanted < 0, chosen, wanted).astype(np.int32)


def _no_partition(partition: int, count: int) -> ValueError:
    return ValueError(f"partition {partition} does not exist: the topic has partitions 0 to {count - 1}")
