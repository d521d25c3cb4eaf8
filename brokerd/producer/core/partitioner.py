"""Assigns rows to partitions: Kafka's murmur2 over a whole column of keys, and the sort by partition.

The same key goes to the same partition as with Kafka's default partitioner. sticky.py assigns records without a key.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int32s: TypeAlias = npt.NDArray[np.int32]
UInt32s: TypeAlias = npt.NDArray[np.uint32]

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF
_TO_POSITIVE = 0x7FFFFFFF
# Below so many rows, a word at a time in plain Python is cheaper than a numpy call for each word.
_FEW_ROWS = 24
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], np.uint32)
_TAIL_FACTORS = np.array([1, _M, _M, _M], np.uint32)


def murmur2(keys: pa.Array) -> Int32s:
    """Kafka's murmur2 (org.apache.kafka.common.utils.Utils) of every key of a binary or string array; a null key counts
    as the empty one.

    Words are taken column by column: round i mixes the i-th four bytes of all keys that have so many. Rows are ordered by
    length, longest first, so that the keys of a round are a prefix.
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
    """toPositive(murmur2(key)) % partition_count for every key, as Kafka's BuiltInPartitioner.partitionForKey."""
    return partition_for_hashes(murmur2(keys), partition_count)


def partition_for_hashes(hashes: Int32s, partition_count: int) -> Int32s:
    """As `partition_for_keys`, for keys whose murmur2 is known."""
    positive = hashes.view(np.uint32) & np.uint32(_TO_POSITIVE)
    return (positive % np.uint32(partition_count)).view(np.int32)


def sort_by_partition(partitions: Int32s, partition_count: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """(order, bounds): rows of partition p are order[bounds[p]:bounds[p + 1]], in their first order.

    Narrow integers are sorted by radix, six times as fast as wide ones.
    """
    order = _stable_order(partitions, partition_count - 1)
    bounds = np.zeros(partition_count + 1, np.intp)
    np.cumsum(np.bincount(partitions, minlength=partition_count), out=bounds[1:])
    return order, bounds


def _stable_order(values: npt.NDArray[Any], value_max: int) -> npt.NDArray[np.intp]:
    narrow: Any = np.uint8 if value_max < 256 else np.uint16 if value_max < 65_536 else np.int32
    return np.argsort(values.astype(narrow), kind="stable")


def _bytes_of(keys: pa.Array) -> tuple[UInt32s, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The word that begins at each byte (an overlapping view, not a copy), where each key starts and how long it is."""
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(keys) + 1, keys.offset * 4).astype(np.int64)
    lengths = np.diff(offsets)
    if keys.null_count:
        lengths[keys.is_null().to_numpy(zero_copy_only=False)] = 0
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    first, end = int(offsets[0]), int(offsets[-1])
    if end + 4 > len(data):  # a key's last word and tail are read as a word: bytes must follow
        data = np.concatenate((data[first:end], np.zeros(4, np.uint8)))
        offsets -= first
    return np.ndarray((len(data) - 3,), np.dtype("<u4"), data, 0, (1,)), offsets[:-1], lengths


def _mix_words(
    hashes: UInt32s, words_at: UInt32s, starts: npt.NDArray[np.int64], words: npt.NDArray[np.int64], words_max: int
) -> None:
    if words_max == 0:
        return
    # active[i] = how many keys have more than i words.
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
    """Mixes the last one to three bytes, read as a word of which the rest is masked out."""
    tails = lengths & 3
    if tails.any():
        hashes ^= words_at[starts + (lengths & ~3)] & _TAIL_MASKS[tails]
        hashes *= _TAIL_FACTORS[tails]
