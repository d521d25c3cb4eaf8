"""Which snapshot of producer state a start uses: never one from another history of the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.errors import OutOfOrderSequenceError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.partition.derived_files import SNAPSHOT_KIND, encode_snapshot, read_snapshot, snapshot_path
from brokerd.partition.leader_epochs import EpochEntry
from brokerd.partition.log_state import Snapshot
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import BatchMetadata, ProducerStateEntry
from brokerd.record.header import crc_seed
from brokerd.storage.checksummed_file import encode_document
from tests.support.build import append, first_log, open_log, open_manager
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles, failing

PRODUCER, OTHER = ProducerIdAndEpoch(7, 0), ProducerIdAndEpoch(8, 0)
COUNT = 20


@pytest.fixture
def files() -> MemoryFiles:
    """The files of two clean runs, each with half of the records: leader epoch 1 begins at offset 0, epoch 2 at 10."""
    files = MemoryFiles()
    for _ in range(2):
        manager, log = open_log(files)
        for _ in range(COUNT // 2):
            append(log, b"x", producer=PRODUCER, sequence=log.ends.log_end_offset)
        manager.close()
    return files


def _write(files: MemoryFiles, log: Partition, snapshot: Snapshot) -> None:
    data = encode_document(SNAPSHOT_KIND, encode_snapshot(snapshot))
    files.write_file(snapshot_path(log.tp.directory_name, snapshot.offset), data)


def _with_other_epochs(snapshot: Snapshot) -> Snapshot:
    return snapshot._replace(epochs=(EpochEntry(1, 0), EpochEntry(2, COUNT // 2 - 1)))


def _of_another_log(snapshot: Snapshot) -> Snapshot:
    return snapshot._replace(seed=snapshot.seed ^ 1)


@pytest.mark.parametrize(
    ("change", "is_believed"), [(None, True), (_with_other_epochs, False), (_of_another_log, False)], ids=["same", "epochs", "seed"]
)
def test_a_snapshot_must_tell_the_history_of_this_log(
    files: MemoryFiles, change: Callable[[Snapshot], Snapshot] | None, is_believed: bool
) -> None:
    manager, log = open_log(files)
    manager.close()
    found = read_snapshot(files, log.tp.directory_name, COUNT, crc_seed(log.tp))
    assert found is not None
    # The log has no batch of this producer, so its state shows whether the snapshot is used.
    claimed = ProducerStateEntry(0, (BatchMetadata(0, 99, 0, 99, START_WALL_MS),), has_wrapped=False)
    told = found._replace(producers={**found.producers, OTHER.producer_id: claimed})
    _write(files, log, change(told) if change is not None else told)
    log = first_log(open_manager(files)[0])
    assert append(log, b"x", producer=PRODUCER, sequence=COUNT) == COUNT
    if is_believed:
        with pytest.raises(OutOfOrderSequenceError):
            append(log, b"x", producer=OTHER, sequence=200)
        assert append(log, b"x", producer=OTHER, sequence=100) == COUNT + 1
    else:
        assert append(log, b"x", producer=OTHER, sequence=0) == COUNT + 1


def test_a_snapshot_that_is_not_believed_does_not_stay_though_no_new_one_can_be_written(files: MemoryFiles) -> None:
    manager, log = open_log(files)
    manager.close()
    found = read_snapshot(files, log.tp.directory_name, COUNT, crc_seed(log.tp))
    assert found is not None
    _write(files, log, _with_other_epochs(found))
    files.hook = failing("create", path=".snapshot")
    log = first_log(open_manager(files)[0])
    assert snapshot_path(log.tp.directory_name, COUNT) not in files.paths()
    assert append(log, b"x", producer=PRODUCER, sequence=COUNT) == COUNT


@pytest.mark.parametrize("is_torn", [False, True], ids=["kept above the end", "cut with the tail"])
def test_no_snapshot_above_the_end_is_left(files: MemoryFiles, is_torn: bool) -> None:
    _, log = open_log(files)
    path = log.segments[0].path
    size = len(files.read_file(path))
    found = encode_snapshot(Snapshot(crc_seed(log.tp), COUNT + 5, tuple(log.core.epochs.entries), log.core.producers.entries))
    files.kill()
    files.write_file(snapshot_path(log.tp.directory_name, COUNT + 5), encode_document(SNAPSHOT_KIND, found))
    if is_torn:
        files.write_file(path, files.read_file(path) + b"torn")
    _, report = open_manager(files)
    assert bool(report.cut_bytes) == is_torn
    assert len(files.read_file(path)) == size
    assert snapshot_path(log.tp.directory_name, COUNT + 5) not in files.paths()
