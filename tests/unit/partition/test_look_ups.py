"""Backlog, reach and newest offset, checked against plain counts over all batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from brokerd.errors import StorageError
from brokerd.partition import look_up
from brokerd.partition.look_up import LookUps
from brokerd.partition.partition import Partition
from tests.support.build import append, delete_records, open_log, read_batches
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles, failing
from tests.support.log_manager import LogManager
from tests.support.transactions import append_marker, append_member, read_committed

_SEGMENT_BYTES = 4_096


def random_logs(rng: random.Random) -> Iterator[Partition]:
    """A log of random batches in small segments; then the same log without its first third."""
    files = MemoryFiles()
    manager, log = open_log(files, log_segment_bytes=_SEGMENT_BYTES, log_index_interval_bytes=rng.choice((0, 500, 65_536)))
    for number in range(rng.randrange(30, 60)):
        append(log, b"v" * rng.randrange(8, 600, 8), now_ms=START_WALL_MS + number, count=rng.choice((1, 1, 4)))
    log.flush()
    assert len(log.segments) > 2
    yield log
    yield from without_its_first_third(manager, log, files)


def without_its_first_third(manager: LogManager, log: Partition, files: MemoryFiles) -> Iterator[Partition]:
    """The log after a deletion of its first third, and again after a restart."""
    delete_records(manager, log, log.ends.log_end_offset // 3)
    yield log
    manager.write_checkpoint()
    manager.close()
    yield open_log(files, log_segment_bytes=_SEGMENT_BYTES)[1]


def plain_backlog(log: Partition, offset: int, until: int) -> tuple[int, int]:
    """Bytes up to `until` from the batch that contains `offset`, or the first one left, and its append timestamp, ms (-1: none)."""
    headers = [batch.header for batch in read_batches(log)]
    left = [
        header for header in headers if header.next_offset > max(offset, log.ends.log_start_offset) and header.base_offset < until
    ]
    return sum(header.size for header in left), left[0].append_timestamp if left else -1


@pytest.mark.parametrize("seed", range(5))
def test_a_backlog_is_what_the_batches_from_there_on_take(seed: int) -> None:
    for log in random_logs(random.Random(seed)):
        for offset in range(log.ends.log_end_offset + 2):
            assert log.look_ups.backlog(offset) == plain_backlog(log, offset, log.ends.high_watermark)


def plain_reach(log: Partition, begin: int, until: int, max_bytes: int) -> tuple[int, int]:
    """The end offset of the last batch that fits, and the bytes of the batches up to there."""
    end, size_bytes = until, 0
    for batch in read_batches(log):
        header = batch.header
        if header.next_offset <= max(begin, log.ends.log_start_offset) or header.base_offset >= until:
            continue
        if size_bytes and size_bytes + header.size > max_bytes:
            return end, size_bytes
        end, size_bytes = min(header.next_offset, until), size_bytes + header.size
    return until, size_bytes


@pytest.mark.parametrize("seed", range(5))
def test_reach_is_the_end_of_the_last_batch_that_fits(seed: int) -> None:
    rng = random.Random(seed)
    for log in random_logs(rng):
        for _ in range(400):
            begin = rng.randrange(log.ends.log_end_offset)
            until = rng.randrange(begin + 1, log.ends.log_end_offset + 1)
            max_bytes = rng.choice((0, 1, rng.randrange(2_000), rng.randrange(log.core.size_bytes), 2**40))
            asked = (begin, until, max_bytes)
            assert log.look_ups.reach(*asked) == plain_reach(log, *asked), asked


def transaction_logs(rng: random.Random) -> Iterator[Partition]:
    """A log of plain records, committed and aborted transactions, and an open one; then the same log without its first third."""
    files = MemoryFiles()
    manager, log = open_log(files, log_segment_bytes=_SEGMENT_BYTES, log_index_interval_bytes=rng.choice((0, 500, 65_536)))
    for producer_id in range(1, rng.randrange(20, 40)):
        for sequence in range(rng.randrange(3)):
            append_member(log, producer_id, sequence, payload=b"v" * 64)
            append(log, b"v" * rng.randrange(8, 300, 8), count=rng.choice((1, 1, 4)))
        if producer_id in log.core.producers.open_transactions:
            ended = [producer_id]
            append_marker(log, committed=ended) if rng.random() < 0.5 else append_marker(log, aborted=ended)
    append_member(log, 1_000, 0)
    append(log, b"v" * 8)
    log.flush()
    yield log
    yield from without_its_first_third(manager, log, files)


def plain_newest(offsets: list[int], count: int, log: Partition, end: int) -> int:
    if count == 0:
        return end
    return offsets[-count] if count <= len(offsets) else log.ends.log_start_offset


@pytest.mark.parametrize("seed", range(5))
def test_so_many_newest_records_follow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(look_up, "_PIECE_MAX_OFFSETS", rng.choice((1, 3, 65_536)))
    for log in transaction_logs(rng):
        committed = read_committed(log, log.ends.log_start_offset, log.ends.last_stable_offset)
        headers = [batch.header for batch in read_batches(log, log.ends.log_start_offset)]
        spans = [range(header.base_offset, header.next_offset) for header in headers if not header.is_control]
        written = [offset for span in spans for offset in span if offset >= log.ends.log_start_offset]
        for count in [*range(len(written) + 3), 10**18]:
            assert log.look_ups.newest_offset(count) == plain_newest(written, count, log, log.ends.high_watermark), count
            found = log.look_ups.newest_offset(count, is_committed=True)
            assert found == plain_newest(committed, count, log, log.ends.last_stable_offset), count
        for end in range(log.ends.log_start_offset, log.ends.high_watermark + 2):
            count, below = rng.randrange(5), [offset for offset in committed if offset < end]
            found = log.look_ups.newest_offset(count, end, is_committed=True)
            assert found == plain_newest(below, count, log, min(end, log.ends.last_stable_offset)), (count, end)


def unreadable_log(batches: int) -> Partition:
    """A log of durable batches whose files cannot be read."""
    files = MemoryFiles()
    _, log = open_log(files, log_max_open_files=16)
    for _ in range(batches):
        append(log, b"v" * 64)
    log.flush()
    files.hook = failing("pread", path=".log")
    return log


def test_without_records_they_end_where_they_begin(files: MemoryFiles) -> None:
    _, log = open_log(files)
    assert log.look_ups.newest_offset(5) == 0
    append(log, b"v" * 64)
    log.flush()
    assert log.look_ups.reach(1, 1, 10) == (1, 0)
    assert log.look_ups.reach(1, 0, 10) == (0, 0)


def test_nothing_above_the_high_watermark_counts(files: MemoryFiles) -> None:
    _, log = open_log(files)
    append(log, b"durable.", now_ms=START_WALL_MS)
    log.flush()
    size_bytes = log.core.size_bytes
    append(log, b"not yet.", now_ms=START_WALL_MS + 1)
    assert log.look_ups.backlog(0) == (size_bytes, START_WALL_MS)
    assert log.look_ups.backlog(1) == (0, -1)
    assert log.look_ups.reach(0, 2, 2**40) == (2, size_bytes)


def test_a_damaged_batch_is_passed_with_its_bytes(files: MemoryFiles) -> None:
    _, log = open_log(files)
    for number in range(4):
        append(log, b"v" * 64, now_ms=START_WALL_MS + number)
    log.flush()
    path, batch_bytes = log.segments[0].path, log.core.size_bytes // 4
    files.flip_bit(path, (batch_bytes + 20) * 8)
    assert log.look_ups.backlog(1) == (2 * batch_bytes, START_WALL_MS + 2)
    assert log.look_ups.reach(0, 4, 3 * batch_bytes) == (3, 3 * batch_bytes)
    assert log.look_ups.reach(0, 4, batch_bytes) == (1, batch_bytes)
    assert log.look_ups.reach(1, 4, 0) == (3, batch_bytes), "from the damaged one on, the next that can be read"


@pytest.mark.parametrize(
    "ask",
    [
        lambda look_ups: look_ups.backlog(1),
        lambda look_ups: look_ups.reach(1, 2, 0),
        lambda look_ups: look_ups.newest_offset(1),
        lambda look_ups: look_ups.has_transactions(1),
    ],
    ids=["backlog", "reach", "newest", "transactions"],
)
def test_a_file_that_cannot_be_read_is_a_storage_error(ask: Callable[[LookUps], object]) -> None:
    log = unreadable_log(2)
    with pytest.raises(StorageError):
        ask(log.look_ups)
    assert log.look_ups.newest_offset(2) == 0, "all that there is, whatever it is"
