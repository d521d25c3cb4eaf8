"""Goal: a read_committed reader sees exactly the records of committed transactions and those outside of transactions, in order, for
any range, any size of response, and any snapshot that a start uses.

Method: seeded random transactions in one log of small segments; ranges from every offset, responses of several sizes, held markers,
log starts; then starts from each existing snapshot, and from none.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from brokerd.partition.derived_files import snapshot_path
from brokerd.partition.partition import Partition
from brokerd.storage.names import SNAPSHOT_SUFFIX, offsets_of
from tests.support.build import append, delete_records, first_log, open_manager
from tests.support.files import MemoryFiles
from tests.support.transactions import append_marker, append_member, read_committed, release_marker

SEEDS = range(12)
STEPS = 45
SETTINGS: dict[str, Any] = {"log_segment_bytes": 4_096, "log_index_interval_bytes": 300}


class History:
    """A log with transactions, and its committed offsets."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.files = MemoryFiles()
        self.manager, _ = open_manager(self.files, **SETTINGS)
        self.log = first_log(self.manager)
        self.committed: set[int] = set()  # offsets
        self.open: dict[int, list[int]] = {}  # offsets by member
        self.next_member = 1

    def write(self) -> Partition:
        """Random steps, then a flush."""
        for _ in range(STEPS):
            self.rng.choices((self._plain, self._member, self._end, self._new_segments), (3, 8, 4, 1))[0]()
        self.log.flush()
        return self.log

    def _plain(self) -> None:
        count = self.rng.randint(1, 3)
        base = append(self.log, b"plain!!!", count=count)
        self.committed |= set(range(base, base + count))

    def _member(self) -> None:
        if not self.open or self.rng.random() < 0.35:
            self.open[self.next_member] = []
            self.next_member += 1
        member = self.rng.choice(sorted(self.open))
        count = self.rng.randint(1, 3)
        base = append_member(self.log, member, len(self.open[member]), count=count)
        self.open[member] += range(base, base + count)

    def _end(self) -> None:
        ended = self.rng.sample(sorted(self.open), self.rng.randint(0, len(self.open)))
        split = self.rng.randint(0, len(ended))
        offset = append_marker(self.log, committed=ended[:split], aborted=ended[split:], is_held=self.rng.random() < 0.3)
        for member in ended[:split]:
            self.committed |= set(self.open[member])
        for member in ended:
            del self.open[member]
        if self.rng.random() < 0.7:
            release_marker(self.log, offset)

    def _new_segments(self) -> None:
        append(self.log, bytes(3_000))
        self.committed.add(self.log.ends.log_end_offset - 1)
        self.log.flush()

    def check(self, log: Partition) -> None:
        """Reads ranges of all kinds below the last stable offset."""
        stable = log.ends.last_stable_offset
        if log is not self.log:  # a start releases all held markers
            begin = min([offsets[0] for offsets in self.open.values() if offsets], default=log.ends.high_watermark)
            assert stable == max(begin, log.ends.log_start_offset)
        for start in range(log.ends.log_start_offset, stable + 1):
            until = self.rng.randint(start, stable)
            for end in {until, stable, min(start + 1, stable)}:
                found = read_committed(log, start, end, max_bytes=self.rng.choice((1, 300, 1 << 20)))
                expected = [offset for offset in sorted(self.committed) if start <= offset < end]
                assert found == expected, f"{start} to {end}: {found}, not {expected}"


@pytest.mark.parametrize("seed", SEEDS)
def test_exactly_what_is_committed_is_read(seed: int) -> None:
    history = History(seed)
    history.check(history.write())


@pytest.mark.parametrize("seed", SEEDS)
def test_from_whatever_a_start_is_made(seed: int) -> None:
    history = History(seed)
    log = history.write()
    directory = log.tp.directory_name
    history.files.kill()
    offsets = offsets_of(history.files.listdir(directory), SNAPSHOT_SUFFIX)
    assert len(offsets) > 1, "there is something to choose from"
    for kept in (*offsets, None):
        files = copy.deepcopy(history.files)
        for offset in offsets:
            if offset != kept:
                files.unlink(snapshot_path(directory, offset))
        restarted = first_log(open_manager(files, **SETTINGS)[0])
        assert restarted.core.producers.aborted.entries == log.core.producers.aborted.entries
        assert list(restarted.core.producers.open_transactions) == list(log.core.producers.open_transactions)
        history.check(restarted)


@pytest.mark.parametrize("seed", SEEDS)
def test_from_whatever_offset_the_log_is_left(seed: int) -> None:
    history = History(seed)
    log = history.write()
    for before_offset in sorted(history.rng.sample(range(log.ends.high_watermark), 4)):
        delete_records(history.manager, log, before_offset)
        history.manager.retention_pass()
        history.check(log)
    history.files.kill()
    restarted = first_log(open_manager(history.files, **SETTINGS)[0])
    history.check(restarted)
    marker = append_marker(restarted, aborted=list(restarted.core.producers.open_transactions))
    restarted.flush()
    history.open.clear()
    assert restarted.ends.last_stable_offset == marker + 1
    history.check(restarted)
