"""Chooses the partition of records without a key: one until so many bytes went there, then another at random (Kafka's built-in
partitioner, KIP-794). The more batches wait for a partition, the rarer it is chosen; one that takes nothing at present is left
out while there is any other. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from brokerd.producer.core.partitioner import Int32s
from brokerd.producer.core.transport import NO_LEADER, TopicView

# As many bytes as Kafka's batch.size, after which its producer turns to another partition. Our batches may be larger, and are
# filled for several partitions at once.
RUN_BYTES = 16_384
# A large column is cut into at most this many runs per partition: more would only make smaller pieces.
_RUNS_PER_PARTITION = 4


class PartitionLoad:
    """The load of each partition of a topic at one moment: reasons to avoid it. Counts the queues only when it is asked."""

    def __init__(
        self, view: TopicView, queue_sizes: Callable[[], Mapping[int, int]], is_backing_off: Callable[[int], bool]
    ) -> None:
        """`queue_sizes`: batches that wait, by partition; `is_backing_off`: whether the first of them waits to be tried again."""
        self._view = view
        self._queue_sizes = queue_sizes
        self._is_backing_off = is_backing_off
        self._ends: npt.NDArray[np.int64] | None = None

    @property
    def partition_count(self) -> int:
        """Number of partitions of the topic."""
        return len(self._view.leaders)

    def is_avoided(self, partition: int) -> bool:
        """True if the partition has no leader, refuses records, or waits to be retried."""
        return self._takes_none(partition) or self._is_backing_off(partition)

    def pick(self, number: int) -> int:
        """The partition for a random number. A partition's weight is the number of batches by which its queue is shorter than the
        longest, plus one.
        """
        if self._ends is None:
            self._ends = self._cumulative()
        return int(np.searchsorted(self._ends, number % int(self._ends[-1]), side="right"))

    def _takes_none(self, partition: int) -> bool:
        return self._view.leaders[partition] == NO_LEADER or partition in self._view.unwritable

    def _cumulative(self) -> npt.NDArray[np.int64]:
        """Running sums of the weights: numbers below a partition's sum, and not below that of the one before, choose it."""
        count = self.partition_count
        sizes = {partition: size for partition, size in self._queue_sizes().items() if partition < count}
        longest = max((size for partition, size in sizes.items() if not self.is_avoided(partition)), default=0)
        weights = np.full(count, longest + 1, np.int64)
        for partition, size in sizes.items():
            weights[partition] = 0 if self._is_backing_off(partition) else longest + 1 - size
        weights[np.asarray(self._view.leaders) == NO_LEADER] = 0
        weights[[partition for partition in self._view.unwritable if partition < count]] = 0
        if not weights.any():  # none is better than another
            weights[:] = 1
        ends: npt.NDArray[np.int64] = np.cumsum(weights)
        return ends


class StickyPartitioner:
    """The sticky partition of one topic."""

    __slots__ = ("_partition", "_rng", "_room_bytes", "_run_bytes_max")

    def __init__(self, batch_size: int, rng: random.Random) -> None:
        self._run_bytes_max = batch_size
        self._rng = rng
        self._partition = -1
        self._room_bytes = 0

    def assign_one(self, record_bytes: int, load: PartitionLoad) -> int:
        """Partition of one record."""
        if load.partition_count == 1:
            return 0
        self._turn_if_over(min(RUN_BYTES, self._run_bytes_max), load)
        self._room_bytes -= record_bytes
        return self._partition

    def assign(self, record_count: int, record_bytes: int, load: PartitionLoad) -> Int32s:
        """Partitions of `record_count` records of about `record_bytes` each, in runs."""
        if load.partition_count == 1:
            return np.zeros(record_count, np.int32)
        share_bytes = record_count * record_bytes // (_RUNS_PER_PARTITION * load.partition_count)
        run_bytes = min(max(RUN_BYTES, share_bytes), self._run_bytes_max)
        out = np.empty(record_count, np.int32)
        at = 0
        while at < record_count:
            self._turn_if_over(run_bytes, load)
            run = min(record_count - at, -(-self._room_bytes // max(1, record_bytes)))
            out[at : at + run] = self._partition
            self._room_bytes -= run * record_bytes
            at += run
        return out

    def _turn_if_over(self, run_bytes: int, load: PartitionLoad) -> None:
        """Chooses another partition once the run is over, or the partition is gone or takes nothing."""
        is_there = self._partition < load.partition_count
        if self._room_bytes <= 0 or not is_there or load.is_avoided(self._partition):
            self._partition = load.pick(self._rng.getrandbits(31))
            self._room_bytes = run_bytes
