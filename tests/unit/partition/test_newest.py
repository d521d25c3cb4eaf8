"""Where the newest records begin, beside a plain look at all that readers of a log get."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from brokerd.errors import StorageError
from brokerd.partition import look_up
from brokerd.partition.partition import Partition
from tests.support.build import append, delete_records, first_log, open_manager, read_batches
from tests.support.files import MemoryFiles
from tests.support.random_log import unreadable_log
from tests.support.transactions import append_marker, append_member, read_committed


def random_logs(rng: random.Random) -> Iterator[Partition]:
    """A log of records, transactions that were committed or aborted, and one that is open; then without its first third."""
    files = MemoryFiles()
    manager, _ = open_manager(files, log_segment_bytes=4_096, log_index_interval_bytes=rng.choice((0, 500, 65_536)))
    log = first_log(manager)
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
    delete_records(manager, log, log.ends.log_end_offset // 3)
    yield log
    manager.write_checkpoint()
    manager.close()
    manager, _ = open_manager(files, log_segment_bytes=4_096)
    yield first_log(manager)


def expected(offsets: list[int], count: int, log: Partition, end: int) -> int:
    if count == 0:
        return end
    return offsets[-count] if count <= len(offsets) else log.ends.log_start_offset


@pytest.mark.parametrize("seed", range(5))
def test_so_many_records_follow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(look_up, "_PIECE_MAX_OFFSETS", rng.choice((1, 3, 65_536)))
    for log in random_logs(rng):
        committed = read_committed(log, log.ends.log_start_offset, log.ends.last_stable_offset)
        headers = [batch.header for batch in read_batches(log, log.ends.log_start_offset)]
        spans = [range(header.base_offset, header.next_offset) for header in headers if not header.is_control]
        written = [offset for span in spans for offset in span if offset >= log.ends.log_start_offset]
        for count in [*range(len(written) + 3), 10**18]:
            assert log.look_ups.newest_offset(count) == expected(written, count, log, log.ends.high_watermark), count
            found = log.look_ups.newest_offset(count, is_committed=True)
            assert found == expected(committed, count, log, log.ends.last_stable_offset), count
        for end in range(log.ends.log_start_offset, log.ends.high_watermark + 2):
            count, below = rng.randrange(5), [offset for offset in committed if offset < end]
            found = log.look_ups.newest_offset(count, end, is_committed=True)
            assert found == expected(below, count, log, min(end, log.ends.last_stable_offset)), (count, end)


def test_a_log_without_records_begins_where_it_begins() -> None:
    manager, _ = open_manager(MemoryFiles())
    assert first_log(manager).look_ups.newest_offset(5) == 0


def test_a_file_that_cannot_be_read_is_a_storage_error() -> None:
    log = unreadable_log(2)
    with pytest.raises(StorageError):
        log.look_ups.newest_offset(1)
    assert log.look_ups.newest_offset(2) == 0, "all that there is, whatever it is"
