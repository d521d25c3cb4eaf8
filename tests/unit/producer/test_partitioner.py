"""Columnar murmur2 against Kafka's published values and a plain implementation, and the sort by partition."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from brokerd.producer.core.partitioner import murmur2, partition_for_keys, sort_by_partition

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
PUBLISHED = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def plain_murmur2(key: bytes) -> int:
    """murmur2 of one byte string."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    tail = key[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - 2**32 if h >= 2**31 else h


def test_kafkas_published_values() -> None:
    assert [plain_murmur2(key) for key in PUBLISHED] == list(PUBLISHED.values())
    for key, expected in PUBLISHED.items():
        assert murmur2(pa.array([key])).tolist() == [expected]
    assert murmur2(pa.array(list(PUBLISHED))).tolist() == list(PUBLISHED.values())


@pytest.mark.parametrize("length_max", [0, 1, 3, 4, 7, 8, 33, 200])
@pytest.mark.parametrize("count", [1, 2, 23, 24, 25, 500])
def test_columns_of_any_shape(count: int, length_max: int) -> None:
    rng = random.Random(count * 1000 + length_max)
    keys = [None if rng.random() < 0.1 else rng.randbytes(rng.randint(0, length_max)) for _ in range(count)]
    expected = [plain_murmur2(key or b"") for key in keys]
    column = pa.array(keys, pa.binary())
    assert murmur2(column).tolist() == expected
    for start in range(0, count, max(1, count // 3)):
        assert murmur2(column.slice(start)).tolist() == expected[start:]
    same = [rng.randbytes(length_max) for _ in range(count)]
    assert murmur2(pa.array(same, pa.binary())).tolist() == [plain_murmur2(key) for key in same]


def test_a_few_long_keys_among_short_ones() -> None:
    keys = [b"k%d" % i for i in range(100)]
    keys[50] = bytes(range(256)) * 200
    keys[51] = bytes(range(255)) * 150
    assert murmur2(pa.array(keys)).tolist() == [plain_murmur2(key) for key in keys]


def test_bytes_behind_a_null_do_not_count() -> None:
    column = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(np.array([0, 3, 6], np.int32)), pa.py_buffer(b"xyzabc")]
    )
    assert column.to_pylist() == [None, b"abc"]
    assert murmur2(column).tolist() == [plain_murmur2(b""), 479470107]


def test_partitions_are_kafkas() -> None:
    keys = list(PUBLISHED)
    for count in (1, 2, 3, 8, 64, 1000):
        expected = [(PUBLISHED[key] & 0x7FFFFFFF) % count for key in keys]
        assert partition_for_keys(pa.array(keys), count).tolist() == expected


@pytest.mark.parametrize("partition_count", [1, 8, 300, 70_000])
def test_sort_is_stable_and_complete(partition_count: int) -> None:
    partitions = np.random.default_rng(1).integers(0, partition_count, 5_000).astype(np.int32)
    order, bounds = sort_by_partition(partitions, partition_count)
    for partition in np.unique(partitions).tolist():
        rows = order[bounds[partition] : bounds[partition + 1]].tolist()
        assert rows == np.flatnonzero(partitions == partition).tolist()
    assert bounds[-1] == 5_000
