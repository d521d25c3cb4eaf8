"""Goal: if the node crashes while a follower's log is replaced by one that begins at the leader's log start, the next start finds
the old log, an empty log or the new log, never a damaged one, which would refuse appends. A dropped copy leaves no files or state
that affect the next copy of the partition."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import random
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.datadir.node_state import ClusterIdentity
from brokerd.datadir.topic_store import Topic
from brokerd.errors import CorruptMessageError, StorageError
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.offline import doctor
from brokerd.offline.partition_check import Severity
from brokerd.partition.core import InSync, Role
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.log_state import Snapshot
from brokerd.partition.partition import Partition
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.header import decode_header
from brokerd.steps import Steps
from brokerd.storage.names import CHECKPOINT, LEADER_EPOCHS, LOG_SUFFIX, SNAPSHOT_SUFFIX, offset_file
from tests.support.build import append, raw_batch
from tests.support.clock import ManualClock
from tests.support.files import Killed, MemoryFiles, failing
from tests.support.log_manager import LogManager
from tests.support.records import stamped
from tests.support.steps import run_here

TOPIC = Topic("orders", b"o" * 16, 1, {})
TP = TopicIdPartition(TOPIC.id, 0)
PRODUCER = ProducerIdAndEpoch(50, 0)
CONFIG = dataclasses.replace(BrokerConfig(), log_segment_bytes=4_096)
OLD_END, START = 20, 40


class Directory(LogManager):
    """An open data directory, and its files."""

    def __init__(self, files: MemoryFiles) -> None:
        super().__init__(CONFIG, files, ManualClock(), cluster=ClusterIdentity("prod", "id of prod"))
        self.memory = files


def opened(files: MemoryFiles) -> Directory:
    manager = Directory(files)
    assert not manager.open().damaged
    return manager


def copy_of(manager: LogManager) -> Partition:
    copy = manager.partitions.replica(TP)
    assert copy is not None
    return copy


def led(files: MemoryFiles, count: int) -> LogManager:
    """A directory that leads the partition, with `count` batches in small segments."""
    manager = opened(files)
    run_here(manager.changes.hold(TOPIC, [0]))
    run_here(manager.replicas.lead({TP: 2}, {TP: InSync((9,), 2, 2)}))
    for number in range(count):
        append(copy_of(manager), bytes(300), producer=PRODUCER, sequence=number)
    copy_of(manager).flush()
    manager.write_checkpoint()
    return manager


def later(manager: LogManager) -> None:
    """Replaces the copy with one that begins at START and appends a batch to it."""
    run_here(manager.replicas.begin_anew(TP, SNAPSHOT, 4))
    run_here(manager.replicas.lead({TP: 5}, {TP: InSync((9,), 2, 2)}))
    append(copy_of(manager), bytes(300), producer=PRODUCER, sequence=START)
    copy_of(manager).flush()
    manager.write_checkpoint()
    run_here(manager.replicas.follow({TP: 6}))


def is_done(
    files: MemoryFiles, change: Callable[[LogManager], Steps[None]], operations: int, before: Callable[[LogManager], None] | None
) -> bool:
    """Changes the copy; False if the process was killed after `operations` file operations."""
    manager = led(files, OLD_END)
    run_here(manager.replicas.follow({TP: 4}))
    if before is not None:
        before(manager)
    left = itertools.count(operations, -1)

    def hook(_operation: str, _path: str) -> None:
        if next(left) == 0:
            raise Killed

    files.hook = hook
    try:
        run_here(change(manager))
    except Killed:
        return False
    finally:
        files.hook = None
    return True


def ended_lives(
    change: Callable[[LogManager], Steps[None]], *, is_power_cut: bool, before: Callable[[LogManager], None] | None = None
) -> Iterator[MemoryFiles]:
    """The files after a crash at each file operation of the change, and last after the whole change."""
    rng = random.Random(1)
    for operations in itertools.count():
        files = MemoryFiles()
        is_last = is_done(files, change, operations, before)
        if is_power_cut:
            files.power_cut(rng, any_subset=rng.random() < 0.5)
        else:
            files.kill()
        yield files
        if is_last:
            return


def lives(
    change: Callable[[LogManager], Steps[None]], *, is_power_cut: bool, before: Callable[[LogManager], None] | None = None
) -> Iterator[Directory]:
    """The directory as the next start opens it, for each crash."""
    return map(opened, ended_lives(change, is_power_cut=is_power_cut, before=before))


SNAPSHOT = copy_of(led(MemoryFiles(), START)).snapshot_at(START)


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_copy_that_begins_anew_is_whole_wherever_its_life_ends(is_power_cut: bool) -> None:
    snapshot = copy_of(led(MemoryFiles(), START)).snapshot_at(START)
    found = set()
    for manager in lives(lambda manager: manager.replicas.begin_anew(TP, snapshot, 4), is_power_cut=is_power_cut):
        copy = copy_of(manager)
        ends = copy.ends
        found.add((ends.log_start_offset, ends.log_end_offset))
        if ends.log_start_offset == START:
            assert copy.producers.entries.keys() == {PRODUCER.producer_id}
        else:
            assert ends.log_start_offset == 0
    assert {(0, 0), (START, START)} <= found <= {(0, end) for end in range(OLD_END + 1)} | {(START, START)}
    assert (ends.log_start_offset, ends.log_end_offset) == (START, START)


@pytest.mark.parametrize("is_power_cut", [False, True])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_copy_that_did_not_begin_at_0_is_not_damaged_wherever_its_life_ends(is_power_cut: bool, is_dropped: bool) -> None:
    snapshot, end = copy_of(led(MemoryFiles(), 2 * START)).snapshot_at(2 * START), START + 1
    found = set()

    def change(manager: LogManager) -> Steps[None]:
        return manager.replicas.drop(TOPIC.id, [0]) if is_dropped else manager.replicas.begin_anew(TP, snapshot, 6)

    for manager in lives(change, is_power_cut=is_power_cut, before=later):
        copy = manager.partitions.replica(TP)
        if copy is None:
            assert is_dropped
            continue
        found.add((copy.ends.log_start_offset, copy.ends.log_end_offset))
        run_here(manager.replicas.follow({TP: 7}))
        run_here(manager.replicas.lead({TP: 8}, {TP: InSync((9,), 2, 2)}))
        append(copy, bytes(300))
        copy.flush()
        files, end_offset = manager.memory, copy.ends.log_end_offset
        files.kill()
        assert copy_of(opened(files)).ends.log_end_offset == end_offset, "what comes then stays"
    assert found == {(0, 0), (START, end)} | ({(2 * START, 2 * START)} if not is_dropped else set())


@pytest.mark.parametrize("is_power_cut", [False, True])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_the_doctor_calls_no_copy_that_goes_damaged(monkeypatch: pytest.MonkeyPatch, is_power_cut: bool, is_dropped: bool) -> None:
    snapshot = copy_of(led(MemoryFiles(), 2 * START)).snapshot_at(2 * START)

    def change(manager: LogManager) -> Steps[None]:
        return manager.replicas.drop(TOPIC.id, [0]) if is_dropped else manager.replicas.begin_anew(TP, snapshot, 6)

    said: set[str] = set()
    for files in ended_lives(change, is_power_cut=is_power_cut, before=later):
        monkeypatch.setattr(doctor, "RealFiles", lambda path, must_exist, files=files: files)
        findings = doctor.check_data_dir("")
        assert Severity.ERROR not in {finding.severity for finding in findings}
        said.update(finding.message for finding in findings)
    assert "the copy is being removed: the next start goes on with that" in said


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_copy_that_is_dropped_can_be_held_again_wherever_the_life_ends(is_power_cut: bool) -> None:
    found = set()
    for manager in lives(lambda manager: manager.replicas.drop(TOPIC.id, [0]), is_power_cut=is_power_cut):
        copy = manager.partitions.replica(TP)
        found.add(copy.ends.log_end_offset if copy is not None else None)
        if copy is not None:
            run_here(manager.replicas.drop(TOPIC.id, [0]))
        run_here(manager.changes.hold(TOPIC, [0]))
        assert copy_of(manager).ends.log_end_offset == 0
    assert {None, 0, OLD_END} <= found <= {None, *range(OLD_END + 1)}
    assert copy is None, "it was dropped"


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_read_that_goes_on_late_leaves_nothing_in_the_way_of_the_next_copy(files: MemoryFiles, is_dropped: bool) -> None:
    """The read opened a removed segment; its cached descriptor was then used for the new segment of the same name."""
    manager = led(files, OLD_END)
    old = copy_of(manager)
    run_here(manager.replicas.follow({TP: 4}))
    begin = old.segments[1].base_offset
    late = list[int]()

    def read(operation: str, path: str) -> None:
        if operation == "unlink" and path.endswith(LOG_SUFFIX):
            base = next(segment.base_offset for segment in old.segments if segment.path == path)
            late.append(old.read(base, below=LogEnd.LOG_END, max_bytes=1_000, cached_only=False).next_offset)

    files.hook = read
    if is_dropped:
        run_here(manager.replicas.drop(TOPIC.id, [0]))
        run_here(manager.changes.hold(TOPIC, [0]))
    else:
        run_here(manager.replicas.begin_anew(TP, SNAPSHOT._replace(offset=begin), 4))
    files.hook = None
    assert len(late) == len(old.segments)
    copy = copy_of(manager)
    assert (copy.damage, copy.ends.log_end_offset) == (None, 0 if is_dropped else begin)
    run_here(manager.replicas.lead({TP: 5}, {TP: InSync((9,), 2, 2)}))
    append(copy, bytes(300), producer=PRODUCER, sequence=0 if is_dropped else START)
    found = copy.read(0 if is_dropped else begin, below=LogEnd.LOG_END, max_bytes=1_000, cached_only=False)
    assert [decode_header(bytes(chunk)).leader_epoch for chunk in found.chunks] == [5]


def test_a_copy_that_begins_anew_knows_the_last_batches_below_it_too() -> None:
    """A producer resends one of them if its acknowledgement was lost."""
    leader = copy_of(led(MemoryFiles(), OLD_END))
    snapshot = leader.snapshot_at(OLD_END - 2)
    manager = led(MemoryFiles(), 1)
    run_here(manager.replicas.follow({TP: 4}))
    run_here(manager.replicas.begin_anew(TP, snapshot, 4))
    copy = copy_of(manager)
    found = leader.read(OLD_END - 2, below=LogEnd.LOG_END, max_bytes=1 << 20, cached_only=False)
    for chunk in found.chunks:
        for batch in walk_batches(pa.py_buffer(chunk), leader.crc_seed):
            copy.append_as_follower(batch)
    assert copy.producers.entries == leader.producers.entries
    assert [batch.base_offset for batch in copy.producers.entries[PRODUCER.producer_id].batches] == [*range(OLD_END - 6, OLD_END)]


def test_a_copy_that_began_between_a_producers_acknowledged_batches_and_those_in_flight_goes_on_where_these_are_cut() -> None:
    leader = copy_of(led(MemoryFiles(), OLD_END))
    begin = OLD_END - 5  # the five batches above are in flight
    manager = led(MemoryFiles(), 1)
    run_here(manager.replicas.follow({TP: 4}))
    run_here(manager.replicas.begin_anew(TP, leader.snapshot_at(begin), 4))
    for chunk in leader.read(begin, below=LogEnd.LOG_END, max_bytes=1 << 20, cached_only=False).chunks:
        for batch in walk_batches(pa.py_buffer(chunk), leader.crc_seed):
            copy_of(manager).append_as_follower(batch)
    copy_of(manager).flush()
    assert not run_here(manager.replicas.cut({copy_of(manager): begin}, 4))
    run_here(manager.replicas.lead({TP: 5}, {TP: InSync((9,), 2, 2)}))
    append(copy_of(manager), bytes(300), producer=PRODUCER, sequence=begin)
    assert copy_of(manager).ends.log_end_offset == begin + 1


def cut_with_snapshots(*, above: int, cut_at: int) -> tuple[MemoryFiles, LogManager]:
    """A follower of several segments, cut at `cut_at`. It had snapshots at each segment's base offset and at `above`."""
    files = MemoryFiles()
    led(files, above).close()
    manager = opened(files)
    run_here(manager.replicas.lead({TP: 3}, {TP: InSync((9,), 2, 2)}))
    for number in range(above, START):
        append(copy_of(manager), bytes(300), producer=PRODUCER, sequence=number)
    copy_of(manager).flush()
    manager.write_checkpoint()
    run_here(manager.replicas.follow({TP: 4}))
    assert not run_here(manager.replicas.cut({copy_of(manager): cut_at}, 4))
    return files, manager


def snapshots_in(files: MemoryFiles) -> list[int]:
    return sorted(int(path.split("/")[1].removesuffix(SNAPSHOT_SUFFIX)) for path in files.paths() if path.endswith(SNAPSHOT_SUFFIX))


def test_a_cut_leaves_no_snapshot_of_what_it_has_cut() -> None:
    """A later cut would restore this producer state, and a removed batch would be acknowledged as a duplicate."""
    bases = [segment.base_offset for segment in copy_of(led(MemoryFiles(), START)).segments]
    files, _ = cut_with_snapshots(above=bases[1] + 3, cut_at=bases[1] + 1)
    assert max(snapshots_in(files)) <= bases[1] + 1


def test_a_cut_removes_also_snapshots_whose_flush_has_failed() -> None:
    files, bases = MemoryFiles(), [segment.base_offset for segment in copy_of(led(MemoryFiles(), START)).segments]
    last = offset_file(bases[-1], SNAPSHOT_SUFFIX)
    files.hook = failing(path=last, code=errno.ENOSPC)
    manager = led(files, START)
    files.hook = None
    copy_of(manager).flush()
    assert bases[1] in snapshots_in(files)
    run_here(manager.replicas.follow({TP: 4}))
    assert not run_here(manager.replicas.cut({copy_of(manager): bases[1] - 1}, 4))
    assert max(snapshots_in(files), default=0) < bases[1]


def test_a_cut_where_a_segment_begins_leaves_the_snapshot_there() -> None:
    """It may be the only record of producers whose segments retention has removed."""
    bases = [segment.base_offset for segment in copy_of(led(MemoryFiles(), START)).segments]
    files, manager = cut_with_snapshots(above=bases[2] + 1, cut_at=bases[2])
    assert copy_of(manager).ends.log_end_offset == bases[2]
    assert bases[2] in snapshots_in(files)


def test_a_snapshot_that_cannot_be_read_does_not_keep_a_copy_from_being_cut(files: MemoryFiles) -> None:
    led(files, OLD_END).close()
    manager = opened(files)
    run_here(manager.replicas.lead({TP: 3}, {TP: InSync((9,), 2, 2)}))
    append(copy_of(manager), bytes(300), producer=PRODUCER, sequence=OLD_END)
    copy_of(manager).flush()
    files.flip_bit(f"{TP.directory_name}/{offset_file(OLD_END, SNAPSHOT_SUFFIX)}", 8 * 90)
    run_here(manager.replicas.follow({TP: 4}))
    assert not run_here(manager.replicas.cut({copy_of(manager): OLD_END}, 4))
    assert copy_of(manager).producers.entries[PRODUCER.producer_id].last_sequence == OLD_END - 1


def test_a_cut_needs_no_space_on_a_full_disk(files: MemoryFiles) -> None:
    """The cut may free less than the block that the leader epochs need. They are in the log too."""
    manager = led(files, OLD_END)
    run_here(manager.replicas.lead({TP: 3}, {TP: InSync((9,), 2, 2)}))
    append(copy_of(manager), bytes(300), producer=PRODUCER, sequence=OLD_END)
    copy_of(manager).flush()
    run_here(manager.replicas.follow({TP: 4}))
    files.hook = failing("create", path=LEADER_EPOCHS, code=errno.ENOSPC)
    assert not run_here(manager.replicas.cut({copy_of(manager): OLD_END}, 4))
    run_here(manager.replicas.lead({TP: 5}, {TP: InSync((9,), 2, 2)}))
    append(copy_of(manager), bytes(300), producer=PRODUCER, sequence=OLD_END)
    copy_of(manager).flush()
    files.power_cut(random.Random(1))
    copy = copy_of(opened(files))
    assert [entry.epoch for entry in copy.epochs.entries] == [2, 5]
    assert (copy.ends.log_end_offset, copy.producers.entries[PRODUCER.producer_id].last_sequence) == (OLD_END + 1, OLD_END)


def test_a_cut_that_meets_a_flush_of_retention_is_tried_again(files: MemoryFiles) -> None:
    """The snapshot that a cut leaves to write needs a flush, which may begin while the next cut waits for its turn."""
    manager = led(files, OLD_END)
    run_here(manager.replicas.follow({TP: 4}))
    copy = copy_of(manager)
    assert not run_here(manager.replicas.cut({copy: OLD_END - 1}, 4))
    assert manager.retention.roll_expired() == [copy]
    flush = copy.prepare_flush()
    assert flush is not None
    failed = run_here(manager.replicas.cut({copy: OLD_END - 2}, 4))[copy]
    assert isinstance(failed, StorageError)
    assert failed.retriable
    flush.run()
    copy.complete_flush(flush)
    assert not run_here(manager.replicas.cut({copy: OLD_END - 2}, 4))
    assert copy.ends.log_end_offset == OLD_END - 2


def test_a_copy_takes_no_offsets_that_its_directory_could_not_write_down(files: MemoryFiles) -> None:
    """Otherwise every checkpoint and the next start would fail, for all partitions of the directory."""
    manager = led(files, OLD_END)
    run_here(manager.replicas.follow({TP: 4}))
    seed = copy_of(manager).crc_seed
    for offset in (2**62 + 1, 2**63 - 1):
        with pytest.raises(CorruptMessageError, match=f"begins at offset {offset} is beyond"):
            run_here(manager.replicas.begin_anew(TP, Snapshot(seed, offset, (), {}), 4))
    assert copy_of(manager).ends.log_end_offset == OLD_END
    run_here(manager.replicas.begin_anew(TP, Snapshot(seed, 2**62 - 1, (), {}), 4))
    batch = raw_batch(b"x" * 32, count=2)
    header = stamped(batch.header_bytes, seed, base_offset=2**62 - 1, append_timestamp=1, leader_epoch=4)
    data = pa.py_buffer(header + batch.payload.to_pybytes())
    with pytest.raises(CorruptMessageError, match=f"ends at offset {2**62 + 1}, "):
        copy_of(manager).append_as_follower(RecordBatch(decode_header(header), data))


@pytest.mark.parametrize("is_disk_gone", [False, True])
def test_a_copy_that_could_not_begin_anew_follows_once_it_is_no_longer_taken_for_given_up(
    files: MemoryFiles, is_disk_gone: bool
) -> None:
    """While the checkpoint says GIVEN_UP, the next start would remove all batches replicated since."""
    manager = led(files, OLD_END)
    run_here(manager.replicas.follow({TP: 4}))
    failed: list[str] = []

    def hook(_operation: str, path: str) -> None:
        if (SNAPSHOT_SUFFIX in path and not failed) or (CHECKPOINT in path and failed and is_disk_gone):
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error")

    files.hook = hook
    with pytest.raises(OSError, match="Input/output error"):
        run_here(manager.replicas.begin_anew(TP, SNAPSHOT, 4))
    files.hook = None
    copy = copy_of(manager)
    assert copy.role is (Role.NONE if is_disk_gone else Role.FOLLOWER)
    if copy.role is Role.NONE:
        run_here(manager.replicas.follow({TP: 4}))
    assert manager._checkpoint.written[TP].recovery_point == 0


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_copy_that_could_not_be_given_up_is_kept(files: MemoryFiles, is_dropped: bool, is_written: bool) -> None:
    """Whether or not the GIVEN_UP mark reached the disk."""
    manager = led(files, OLD_END)
    run_here(manager.replicas.follow({TP: 4}))
    names: list[str] = []

    def hook(operation: str, path: str) -> None:
        names.append(path)
        if operation == ("sync_dir" if is_written else "create") and any(CHECKPOINT in name for name in names):
            raise OSError(errno.EIO, "Input/output error")

    files.hook = hook
    with pytest.raises(OSError, match="Input/output error"):
        run_here(manager.replicas.drop(TOPIC.id, [0]) if is_dropped else manager.replicas.begin_anew(TP, SNAPSHOT, 4))
    files.hook = None
    assert copy_of(manager).role is Role.NONE
    run_here(manager.replicas.follow({TP: 4}))
    files.kill()
    again = opened(files)
    assert copy_of(again).ends.log_end_offset == OLD_END
    run_here(again.replicas.follow({TP: 4}))
    run_here(again.replicas.begin_anew(TP, SNAPSHOT, 4))
    assert copy_of(again).ends.log_start_offset == START


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_copy_whose_files_could_not_be_removed_is_not_damaged_at_the_next_start(is_dropped: bool) -> None:
    """The removal fails, the second attempt fails too, and then the node is killed."""
    files, snapshot = MemoryFiles(), copy_of(led(MemoryFiles(), 2 * START)).snapshot_at(2 * START)
    manager = led(files, OLD_END)
    run_here(manager.replicas.follow({TP: 4}))
    later(manager)
    files.hook = failing("unlink", path=LOG_SUFFIX)
    for _ in range(1 + is_dropped):
        with pytest.raises(OSError, match="Input/output error"):
            run_here(manager.replicas.drop(TOPIC.id, [0]) if is_dropped else manager.replicas.begin_anew(TP, snapshot, 6))
    files.hook = None
    manager.write_checkpoint()
    files.kill()
    assert copy_of(opened(files)).ends.log_end_offset == 0


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_flush_that_ends_late_says_nothing_of_the_copy_that_came_instead(files: MemoryFiles, is_dropped: bool) -> None:
    manager = led(files, OLD_END)
    old = copy_of(manager)
    append(old, bytes(300))
    run_here(manager.replicas.follow({TP: 4}))
    flush = old.prepare_flush()
    assert flush is not None
    flush.run()
    if is_dropped:
        run_here(manager.replicas.drop(TOPIC.id, [0]))
        run_here(manager.changes.hold(TOPIC, [0]))
        run_here(manager.replicas.follow({TP: 4}))
    else:
        run_here(manager.replicas.begin_anew(TP, SNAPSHOT, 4))
    manager.write_checkpoint()
    old.complete_flush(flush)
    manager.write_checkpoint()
    files.kill()
    assert copy_of(opened(files)).ends.log_start_offset == (0 if is_dropped else START)
