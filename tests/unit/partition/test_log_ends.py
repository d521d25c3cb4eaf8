"""LogEnds counts the bytes below the high watermark and below any offset above it."""

from __future__ import annotations

import random

from brokerd.partition.log_ends import LogEnds


def empty() -> LogEnds:
    ends = LogEnds(0, 0, 0, {})
    ends.lead()
    return ends


def test_it_agrees_with_a_list_of_all_batches() -> None:
    rng = random.Random(1)
    for _ in range(200):
        ends = empty()
        batches: list[tuple[int, int]] = []
        offset = high_watermark = 0
        for _ in range(60):
            if rng.random() < 0.6:
                offset += rng.randrange(1, 5)
                batches.append((offset, rng.randrange(1, 1_000)))
                ends.written(offset, batches[-1][1])
            else:
                high_watermark = rng.randrange(high_watermark, offset + 1)
                ends.durable_to(high_watermark)
            probe = rng.randrange(high_watermark, offset + 1)
            assert ends.appended_bytes == sum(size for _, size in batches)
            assert ends.readable_bytes == sum(size for end, size in batches if end <= high_watermark)
            assert ends.bytes_below(probe) == sum(size for end, size in batches if end <= probe)


def test_appends_above_a_high_watermark_that_stays_take_bounded_memory() -> None:
    """With too few replicas in sync, producers with acks=1 go on for hours."""
    ends, end = empty(), 200_000
    ends.in_sync([], is_enough=False)
    for next_offset in range(1, end + 1):
        ends.written(next_offset, 10)
    ends.durable_to(end)
    assert ends.high_watermark == 0
    assert len(ends._unreadable) <= 100_000
    assert all(ends.bytes_below(offset) == 10 * offset for offset in (ends.counted_from, ends.counted_from + 1, end))
    ends.in_sync([])
    assert (ends.high_watermark, ends.readable_bytes) == (end, 10 * end)


def test_bytes_that_were_cut_off_are_not_below_any_offset() -> None:
    ends = empty()
    for next_offset in (10, 20, 30):
        ends.written(next_offset, 1_000)
    ends.durable_to(10)
    ends.truncated(20, {})
    assert (ends.log_end_offset, ends.readable_bytes, ends.bytes_below(30)) == (20, 2_000, 2_000)
