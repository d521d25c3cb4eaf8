"""Which partition records without a key go to: one until batch.size bytes went there, then another at random (KIP-794)."""

from __future__ import annotations

import random

import numpy as np

from brokerd.producer.partitioner import Int32s


class StickyPartitioner:
    """State of one topic."""

    __slots__ = ("_batch_size", "_partition", "_rng", "_room_bytes")

    def __init__(self, batch_size: int, rng: random.Random) -> None:
        self._batch_size = batch_size
        self._rng = rng
        self._partition = -1
        self._room_bytes = 0

    def assign_one(self, record_bytes: int, partition_count: int) -> int:
        """Partition of one record."""
        if self._room_bytes <= 0 or self._partition >= partition_count:
            self._partition = self._rng.randrange(partition_count)
            self._room_bytes = self._batch_size
        self._room_bytes -= record_bytes
        return self._partition

    def assign(self, record_count: int, record_bytes: int, partition_count: int) -> Int32s:
        """Partitions of `record_count` records of about `record_bytes` each, in runs that fill a batch."""
        out = np.empty(record_count, np.int32)
        at = 0
        while at < record_count:
            if self._room_bytes <= 0 or self._partition >= partition_count:
                self._partition = self._rng.randrange(partition_count)
                self._room_bytes = self._batch_size
            run = min(record_count - at, -(-self._room_bytes // max(1, record_bytes)))
            out[at : at + run] = self._partition
            self._room_bytes -= run * record_bytes
            at += run
        return out
