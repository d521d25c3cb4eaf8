"""Bytes below the high watermark."""

from __future__ import annotations

import random

from brokerd.server.replica_manager import PartitionProgress


def test_bytes_count_once_the_high_watermark_has_passed_their_whole_batch() -> None:
    progress = PartitionProgress()
    progress.append(next_offset=3, size_bytes=100)
    progress.append(next_offset=5, size_bytes=50)
    assert (progress.appended_bytes, progress.durable_bytes) == (150, 0)
    progress.advance(2)
    assert progress.durable_bytes == 0
    progress.advance(3)
    assert progress.durable_bytes == 100
    progress.advance(9)
    assert progress.durable_bytes == 150


def test_what_lies_below_an_offset_beyond_the_high_watermark() -> None:
    progress = PartitionProgress()
    for next_offset in (10, 20, 30):
        progress.append(next_offset=next_offset, size_bytes=1_000)
    progress.advance(10)
    assert [progress.bytes_below(offset) for offset in (10, 15, 20, 29, 30)] == [1_000, 1_000, 2_000, 2_000, 3_000]


def test_it_agrees_with_a_list_of_all_batches() -> None:
    rng = random.Random(1)
    for _ in range(200):
        progress = PartitionProgress()
        batches: list[tuple[int, int]] = []
        offset = high_watermark = 0
        for _ in range(60):
            if rng.random() < 0.6:
                offset += rng.randrange(1, 5)
                batches.append((offset, rng.randrange(1, 1_000)))
                progress.append(next_offset=offset, size_bytes=batches[-1][1])
            else:
                high_watermark = rng.randrange(high_watermark, offset + 1)
                progress.advance(high_watermark)
            probe = rng.randrange(high_watermark, offset + 1)
            assert progress.durable_bytes == sum(size for end, size in batches if end <= high_watermark)
            assert progress.bytes_below(probe) == sum(size for end, size in batches if end <= probe)
