"""Assigns a partition to every row: the caller's choice, else by the hash of the key, else the sticky partition.

Keys are hashed by Kafka's murmur2, a whole column at once, so a key goes to the same partition as with Kafka's default partitioner.
Rows without a key go to one partition for a run of RUN_BYTES or more, then to another at random (Kafka's built-in partitioner,
KIP-794). The more batches a partition has queued, the less often it is chosen. A partition that accepts no records is avoided while
any other partition accepts them. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from brokerd.config.client import ProducerConfig
from brokerd.ids import NO_LEADER, TopicInfo
from brokerd.producer.core.transport import ROW_OVERHEAD_BYTES
from brokerd.record.schema import KEY

Int32s: TypeAlias = npt.NDArray[np.int32]
UInt32s: TypeAlias = npt.NDArray[np.uint32]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF
_TO_POSITIVE = 0x7FFFFFFF
# Below this many rows, plain Python per word is cheaper than a numpy call per word.
_FEW_ROWS = 24
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
_TAIL_FACTORS = np.array([1, _M, _M, _M], np.uint32)


def murmur2(keys: pa.Array) -> Int32s:
    """Kafka's murmur2 (org.apache.kafka.common.utils.Utils) of every key of a binary or string array; a null key hashes as an
    empty one.

    Round i mixes the i-th four-byte word of all keys that have one. Keys are ordered by length, longest first, so the keys of a
    round are a prefix.
    """
    count = len(keys)
    if count == 0:
        return np.empty(0, np.int32)
    words_at, starts, lengths = _bytes_of(keys)
    words = lengths >> 2
    words_max = int(words.max())
    order = None
    if words_max != int(words.min()):
        order = _stable_order(words_max - words, words_max)
        starts, lengths, words = starts[order], lengths[order], words[order]
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    _mix_words(hashes, words_at, starts, words, words_max)
    _mix_tails(hashes, words_at, starts, lengths)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    if order is None:
        return hashes.view(np.int32)
    out = np.empty_like(hashes)
    out[order] = hashes
    return out.view(np.int32)


def partition_for_keys(keys: pa.Array, partition_count: int) -> Int32s:
    """toPositive(murmur2(key)) % partition_count for every key, like Kafka's BuiltInPartitioner.partitionForKey."""
    return partition_for_hashes(murmur2(keys), partition_count)


def partition_for_hashes(hashes: Int32s, partition_count: int) -> Int32s:
    """Like `partition_for_keys`, from the murmur2 hashes of the keys."""
    positive = hashes.view(np.uint32) & np.uint32(_TO_POSITIVE)
    return (positive % np.uint32(partition_count)).view(np.int32)


def sort_by_partition(partitions: Int32s, partition_count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Returns (order, bounds): rows of partition p are order[bounds[p]:bounds[p + 1]], in their original order.

    Sorts narrow integers where the values fit: numpy's radix sort is six times as fast as its sort of wide integers.
    """
    order = _stable_order(partitions, partition_count - 1)
    bounds = np.zeros(partition_count + 1, np.intp)
    np.cumsum(np.bincount(partitions, minlength=partition_count), out=bounds[1:])
    return order, bounds


def _stable_order(values: npt.NDArray[Any], value_max: int) -> npt.NDArray[np.intp]:
    narrow: Any = np.uint8 if value_max < 256 else np.uint16 if value_max < 65_536 else np.int32
    return np.argsort(values.astype(narrow), kind="stable")


def _bytes_of(keys: pa.Array) -> tuple[UInt32s, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The word at each byte (an overlapping view, not a copy), and the start and length of each key."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(keys) + 1, keys.offset * 4).astype(np.int64)
    lengths = np.diff(offsets)
    if keys.null_count:
        lengths[keys.is_null().to_numpy(zero_copy_only=False)] = 0
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    first, end = int(offsets[0]), int(offsets[-1])
    if end + 4 > len(data):  # a key's tail is read as a whole word, so bytes must follow
        data = np.concatenate((data[first:end], np.zeros(4, np.uint8)))
        offsets -= first
    return np.ndarray((len(data) - 3,), np.dtype("<u4"), data, 0, (1,)), offsets[:-1], lengths


def _mix_words(
    hashes: UInt32s, words_at: UInt32s, starts: npt.NDArray[np.int64], words: npt.NDArray[np.int64], words_max: int
) -> None:
    if words_max == 0:
        return
    # active[i] = number of keys with more than i words.
    active = len(words) - np.searchsorted(words[::-1], np.arange(words_max), side="right")
    few_from = min(int(np.searchsorted(-active, -_FEW_ROWS, side="left")), words_max)
    m = np.uint32(_M)
    for i in range(few_from):
        rows = int(active[i])
        k = words_at[starts[:rows] + 4 * i]
        k *= m
        k ^= k >> np.uint32(_R)
        k *= m
        hashes[:rows] *= m
        hashes[:rows] ^= k
    if few_from < words_max:
        for row in range(int(active[few_from])):
            first, last = int(starts[row]) + 4 * few_from, int(starts[row]) + 4 * int(words[row])
            hashes[row] = _mix_one(int(hashes[row]), words_at[first:last:4])


def _mix_one(h: int, words: UInt32s) -> int:
    k = words * np.uint32(_M)
    k ^= k >> np.uint32(_R)
    k *= np.uint32(_M)
    for word in k.tolist():
        h = (h * _M & _MASK) ^ word
    return h


def _mix_tails(hashes: UInt32s, words_at: UInt32s, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
    """Mixes the last one to three bytes, read as a word whose other bytes are masked out."""
    tails = lengths & 3
    if tails.any():
        hashes ^= words_at[starts + (lengths & ~3)] & _TAIL_MASKS[tails]
        hashes *= _TAIL_FACTORS[tails]


# Kafka's default batch.size, after which its producer switches partitions. brokerd's batches may be larger, and fill for several
# partitions at once.
RUN_BYTES = 16_384
# A large column is cut into at most this many runs per partition; more runs would only make smaller pieces.
_RUNS_PER_PARTITION = 4


class PartitionLoad:
    """The current load of each partition of a topic. Computed lazily."""

    def __init__(
        self, view: TopicInfo, queue_sizes: Callable[[], Mapping[int, int]], is_backing_off: Callable[[int], bool]
    ) -> None:
        """`queue_sizes`: queued batches by partition; `is_backing_off`: whether the first of them is a retry."""
        self._view = view
        self._queue_sizes = queue_sizes
        self._is_backing_off = is_backing_off
        self._ends: npt.NDArray[np.int64] | None = None

    @property
    def partition_count(self) -> int:
        """Number of partitions of the topic."""
        return len(self._view.leaders)

    def is_avoided(self, partition: int) -> bool:
        """True if the partition has no leader, refuses records, or has a retry queued."""
        takes_none = self._view.leaders[partition] == NO_LEADER or partition in self._view.problems
        return takes_none or self._is_backing_off(partition)

    def pick(self, number: int) -> int:
        """The partition for a random number. Its weight: the length of the longest queue minus that of its own, plus 1."""
        if self._ends is None:
            self._ends = self._cumulative()
        return int(np.searchsorted(self._ends, number % int(self._ends[-1]), side="right"))

    def _cumulative(self) -> npt.NDArray[np.int64]:
        """Cumulative weights: a partition is chosen by the numbers from the previous partition's sum up to its own (exclusive)."""
        count = self.partition_count
        sizes = {partition: size for partition, size in self._queue_sizes().items() if partition < count}
        longest = max((size for partition, size in sizes.items() if not self.is_avoided(partition)), default=0)
        weights = np.full(count, longest + 1, np.int64)
        for partition, size in sizes.items():
            weights[partition] = 0 if self._is_backing_off(partition) else longest + 1 - size
        weights[np.asarray(self._view.leaders) == NO_LEADER] = 0
        weights[[partition for partition in self._view.problems if partition < count]] = 0
        if not weights.any():  # all are avoided, so none is better than another
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
        """Chooses the partition of one record."""
        if load.partition_count == 1:
            return 0
        self._turn_if_over(min(RUN_BYTES, self._run_bytes_max), load)
        self._room_bytes -= record_bytes
        return self._partition

    def assign(self, record_count: int, record_bytes: int, load: PartitionLoad) -> Int32s:
        """Chooses the partitions of `record_count` records of about `record_bytes` each, in runs."""
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
        """Chooses another partition once the run is over, or the partition no longer exists or is avoided."""
        is_there = self._partition < load.partition_count
        if self._room_bytes <= 0 or not is_there or load.is_avoided(self._partition):
            self._partition = load.pick(self._rng.getrandbits(31))
            self._room_bytes = run_bytes


class RowPartitioner:
    """Assigns partitions to the rows of one producer in two steps: `keyless_rows` has state, and is cheap enough to run under the
    lock; `choose` is stateless and hashes keys.
    """

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._sticky: dict[str, StickyPartitioner] = {}

    def has_keyless_rows(self, rows: pa.RecordBatch, wanted: Int32s | None) -> bool:
        """True if some row needs a partition from `keyless_rows`."""
        is_keyless = self._config.partitioner_ignore_keys or rows.column(KEY.index).null_count > 0
        return is_keyless and (wanted is None or bool((wanted < 0).any()))

    def keyless_rows(self, topic: str, rows: pa.RecordBatch, load: PartitionLoad) -> Int32s:
        """Under the lock: chooses partitions for the rows without a key, in order."""
        key = rows.column(KEY.index)
        keyless = len(key) if self._config.partitioner_ignore_keys else key.null_count
        return self._sticky_of(topic).assign(keyless, rows.nbytes // rows.num_rows + ROW_OVERHEAD_BYTES, load)

    def choose_one(self, topic: str, row: pa.RecordBatch, wanted: int | None, size_bytes: int, load: PartitionLoad) -> int:
        """Both steps for a single row, without the overhead of columns. Raises ValueError like `choose`."""
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
        """Returns the partition of every row. `hashes`: of the keys, if known. Raises ValueError for a partition that the topic
        does not have."""
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
