"""Goal: a position from another history is refused, and a position from this history never is. Method: the decision alone; then
random logs with crashes, lost files, retention and damage, and every position that a reader could have; then copies of such logs
that keep running beside the original.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from brokerd.errors import LogTruncationError
from brokerd.ids import LogPosition
from brokerd.partition.leader_epochs import UNKNOWN_OFFSET, EpochEntry, LeaderEpochs
from brokerd.storage.holes import Hole, read_holes, write_holes
from brokerd.storage.names import LEADER_EPOCHS
from tests.support.build import append, damaged_ranges, delete_records, first_log, open_log, open_manager
from tests.support.files import MemoryFiles
from tests.support.scale import TEST_SCALE

# Epoch id A covers offsets 0 to 99, B 100 to 149, C 150 to the log end at 180.
EPOCHS = LeaderEpochs([EpochEntry(1, 0, 0xA), EpochEntry(2, 100, 0xB), EpochEntry(4, 150, 0xC)])
END = 180


@pytest.mark.parametrize(
    ("offset", "epoch_id", "expected"),
    [
        (1, 0xA, None),
        (100, 0xA, None),
        (101, 0xA, 100),  # the original kept writing in this epoch after the copy was made
        (180, 0xA, 100),
        (101, 0xB, None),
        (151, 0xB, 150),
        (180, 0xC, None),
        (181, 0xC, 180),  # this log has lost its tail
        (50, 0xD, UNKNOWN_OFFSET),  # an epoch that this log never had
        (300, 0xD, UNKNOWN_OFFSET),
    ],
)
def test_histories_part_where_the_last_common_epoch_ends(offset: int, epoch_id: int, expected: int | None) -> None:
    assert EPOCHS.parts_at(offset, epoch_id, END) == expected


@pytest.mark.parametrize(
    ("epoch", "newest_not_above", "ends_at"), [(0, -1, 0), (1, 1, 100), (2, 2, 150), (3, 2, 150), (4, 4, 200), (9, 4, 200)]
)
def test_an_epoch_ends_where_the_next_one_that_wrote_anything_begins(epoch: int, newest_not_above: int, ends_at: int) -> None:
    assert EPOCHS.end_of(epoch, 200) == (newest_not_above, ends_at)
    assert LeaderEpochs().end_of(epoch, 200) == (-1, 200), "of a log that knows none"


@pytest.mark.parametrize(("offset", "left"), [(0, []), (1, [1]), (100, [1]), (101, [1, 2]), (150, [1, 2]), (151, [1, 2, 4])])
def test_a_cut_keeps_the_epochs_that_have_records_left(offset: int, left: list[int]) -> None:
    known = LeaderEpochs(EPOCHS.entries)
    known.truncate(offset)
    assert [entry.epoch for entry in known.entries] == left == [entry.epoch for entry in EPOCHS.below(offset)]
    assert not known.assign(known.latest, 500), "an epoch begins once, and none comes after a newer one"
    assert known.assign(known.latest + 1, offset)


def test_a_log_that_does_not_know_what_it_had_judges_nothing() -> None:
    """A list of epochs rebuilt from the log begins with its first batch: earlier epochs are unknown."""
    rebuilt = LeaderEpochs(EPOCHS.entries[1:])
    assert rebuilt.parts_at(100, 0xA, END) is None
    assert rebuilt.parts_at(101, 0xA, END) == UNKNOWN_OFFSET
    assert LeaderEpochs().parts_at(5, 0xA, 5) is None
    assert LeaderEpochs().parts_at(6, 0xA, 5) == UNKNOWN_OFFSET


class Life:
    """A log with small segments in MemoryFiles, and the positions that readers have seen in it."""

    def __init__(self, rng: random.Random, files: MemoryFiles) -> None:
        self.rng, self.files = rng, files
        self.positions: set[LogPosition] = set()
        self._open()

    def _open(self) -> None:
        self.manager, _ = open_manager(self.files, log_segment_bytes=4_096)
        self.log = first_log(self.manager)
        self._look()

    def _look(self) -> None:
        """Records the position at the high watermark, as ListOffsets returns it."""
        self.end = self.log.ends.high_watermark
        before = self.log.core.epoch_before(self.end)
        if before is not None:
            self.positions.add(LogPosition(self.end, before.id))

    def write(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            base_offset = append(self.log, b"v" * self.rng.randrange(8, 900, 8), count=self.rng.choice((1, 1, 3)))
            positions = {
                LogPosition(at, self.log.core.leader_epoch_id) for at in range(base_offset + 1, self.log.ends.log_end_offset + 1)
            }
            if self.rng.random() < 0.7:
                self.log.flush()
                self.positions |= positions
        self._look()

    def stop(self) -> None:
        self.manager.close()
        self._open()

    def crash(self) -> None:
        if self.rng.random() < 0.5:
            self.files.kill()
        else:
            self.files.power_cut(self.rng)
        self._open()

    def delete(self) -> None:
        delete_records(self.manager, self.log, self.rng.randint(self.log.ends.log_start_offset, self.log.ends.high_watermark))

    def lose_derived_files(self) -> None:
        """Loses some derived files. The next start rebuilds them from the records that are left."""
        self.manager.close()
        for path in self.files.paths():
            if path.endswith((f"/{LEADER_EPOCHS}", ".snapshot")) and self.rng.random() < 0.7:
                self.files.remove_file(path)
        self._open()

    def rot(self) -> None:
        """Flips bits in a segment; the operator accepts the damage at once."""
        self.log.flush()
        self.manager.write_checkpoint()
        self.files.kill()
        path = self.rng.choice([segment.path for segment in self.log.segments])
        for _ in range(self.rng.randint(1, 3)):
            size = len(self.files.read_file(path))
            if size:
                self.files.flip_bit(path, self.rng.randrange(size * 8))
        _, log = open_log(self.files, log_segment_bytes=4_096)
        seed = log.core._seed
        holes = read_holes(self.files, log.tp.directory_name, seed)
        holes += [Hole(one.first_offset, one.until_offset) for one in damaged_ranges(log) if not one.is_accepted]
        self.files.kill()
        write_holes(self.files, log.tp.directory_name, seed, holes)
        self._open()

    def refused(self, position: LogPosition) -> LogTruncationError | None:
        try:
            self.log.core.check_history(position)
        except LogTruncationError as error:
            return error
        return None


def _live(life: Life, steps: int, kinds: Sequence[Callable[[Life], None]]) -> None:
    for _ in range(steps):
        life.rng.choice(kinds)(life)


@pytest.mark.parametrize("seed", range(60 * TEST_SCALE))
def test_no_position_of_this_history_is_refused(seed: int) -> None:
    life = Life(random.Random(seed), MemoryFiles())
    for _ in range(25):
        _live(life, 1, [Life.write] * 4 + [Life.stop, Life.crash, Life.delete, Life.lose_derived_files, Life.rot])
        refused = [error.message for position in life.positions if (error := life.refused(position))]
        assert refused == []
    assert life.positions


@pytest.mark.parametrize("seed", range(60 * TEST_SCALE))
def test_each_position_of_another_history_is_refused(seed: int) -> None:
    """After a copy at a random moment, neither log accepts positions after records that the other has written since."""
    rng = random.Random(seed)
    original = Life(rng, MemoryFiles())
    _live(original, 8, [Life.write] * 3 + [Life.stop, Life.crash, Life.delete])
    common = set(original.positions)
    files = original.files.copy()
    if rng.random() < 0.5:
        original.stop()
    copy = Life(rng, files)
    fork = copy.log.ends.log_end_offset
    copy.positions |= common
    kinds = [Life.write] * 3 + [Life.stop, Life.crash, Life.lose_derived_files]
    _live(original, 6, kinds)
    _live(copy, 6, kinds)
    for one, other in ((original, copy), (copy, original)):
        assert not any(map(one.refused, one.positions))
        foreign = [position for position in other.positions - common - one.positions if position.offset > fork]
        for position in foreign:
            error = one.refused(position)
            assert error is not None, position
            assert error.resume_offset <= fork
            assert error.resume_offset in (UNKNOWN_OFFSET, fork) or position.offset > error.resume_offset
        assert all(one.refused(position) is None for position in common if position.offset <= fork)
