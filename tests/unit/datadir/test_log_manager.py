"""A data directory: topics, lock, format version, epochs, checkpoint, clean and unclean stops."""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path

import pytest

from brokerd.config.broker import BrokerConfig
from brokerd.errors import (
    DataDirectoryError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogDamagedError,
    PolicyViolationError,
    StorageError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.offline import doctor
from brokerd.storage.checksummed_file import DocumentKind, encode_document
from brokerd.storage.files import RealFiles
from tests.support.build import append, delete_records, first_log, open_log, open_manager, payloads, read_batches, readable
from tests.support.clock import ManualClock
from tests.support.files import Killed, MemoryFiles, failing
from tests.support.log_manager import LogManager
from tests.support.steps import run_here


def test_topics_are_durable_on_return(files: MemoryFiles) -> None:
    manager, _ = open_manager(files, num_partitions=3)
    created = manager.create_topic("a.b_c-1", 2, {"retention.ms": "1000"})
    default = manager.create_topic("default", 0, {})
    assert default.partition_count == 3
    files.power_cut(random.Random(1))
    manager, report = open_manager(files)
    assert manager.topics.list() == [created, default]
    assert manager.topics.by_id(created.id) == created
    assert report.partitions == 5
    assert first_log(manager, "a.b_c-1", 1).config.retention_ms == 1_000


@pytest.mark.parametrize("name", ["notes.txt", "spare-x", "meta.bak", "00000000000000000000.log", "a" * 32 + "-01"])
def test_a_directory_of_others_is_refused_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    (tmp_path / "z").mkdir()
    with pytest.raises(DataDirectoryError, match=rf"is not brokerd's: it holds '{name}' and 1 more, but no file 'meta'"):
        open_manager(RealFiles(str(tmp_path)))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "z"])


def test_what_a_file_system_or_a_first_start_cut_short_left_is_no_hindrance(tmp_path: Path) -> None:
    for name in ("lost+found", ".keep", "lock", "spare-3", "checkpoint", "topics.tmp"):
        (tmp_path / name).touch()
    open_manager(RealFiles(str(tmp_path)))[0].close()
    (tmp_path / "notes.txt").touch()
    open_manager(RealFiles(str(tmp_path)))[0].close()


def test_bad_topics_are_refused_by_name() -> None:
    manager, _ = open_manager(MemoryFiles(), max_topics=2, max_partitions=6, max_partitions_per_topic=4)
    manager.create_topic("t", 1, {})
    for name in ("", ".", "..", "a/b", "ä", "x" * 250, "__mine", "a\0b"):
        with pytest.raises(InvalidTopicError, match="cannot be a topic's name"):
            manager.create_topic(name, 1, {})
    with pytest.raises(TopicAlreadyExistsError):
        manager.create_topic("t", 1, {})
    for count in (-1, 5):
        with pytest.raises(InvalidPartitionsError, match=r"max\.partitions\.per\.topic"):
            manager.create_topic("u", count, {})
    with pytest.raises(InvalidConfigError, match=r"retention\.ms"):
        manager.create_topic("u", 1, {"retention.ms": "soon"})
    with pytest.raises(InvalidConfigError, match=r"did you mean 'retention\.ms'"):
        manager.create_topic("u", 1, {"retention.m": "1"})
    manager.create_topic("u", 4, {})
    with pytest.raises(PolicyViolationError, match=r"max\.topics"):
        manager.create_topic("v", 1, {})
    with pytest.raises(PolicyViolationError, match=r"max\.partitions"):
        manager.create_partitions("t", 3)


def test_a_deleted_topic_is_gone_and_a_new_one_of_that_name_is_another(files: MemoryFiles) -> None:
    manager, log = open_log(files)
    append(log, b"old")
    flush = log.prepare_flush()
    assert flush is not None
    deleted = manager.delete_topic("t")
    flush.run()
    log.complete_flush(flush)
    with pytest.raises(UnknownTopicIdError):
        append(log, b"late")
    with pytest.raises(UnknownTopicIdError):
        manager.partitions.leader(log.tp)
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.delete_topic("t")
    again = manager.create_topic("t", 1, {})
    assert again.id != deleted.id
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.partitions.leader(TopicIdPartition(again.id, 1))
    assert payloads(first_log(manager)) == []
    assert not [path for path in files.paths() if deleted.id.hex() in path]
    assert files.open_count <= 2


def test_partitions_grow_and_settings_change_durably(files: MemoryFiles) -> None:
    manager, log = open_log(files)
    manager.create_partitions("t", 3)
    with pytest.raises(InvalidPartitionsError, match="the number can only grow"):
        manager.create_partitions("t", 3)
    manager.alter_topic("t", {"retention.bytes": "5", "segment.ms": "9"}, [])
    manager.alter_topic("t", {"retention.ms": "7"}, ["segment.ms"])
    assert (log.config.retention_bytes, log.config.retention_ms, log.config.segment_ms) == (5, 7, 604_800_000)
    with pytest.raises(InvalidConfigError):
        manager.alter_topic("t", {"retention.bytes": "x"}, [])
    files.power_cut(random.Random(1))
    manager, _ = open_manager(files)
    assert manager.topics.by_name("t").configs == {"retention.bytes": "5", "retention.ms": "7"}
    assert len(manager.partitions.of_clients()) == 3


def test_node_id_that_is_not_the_directorys_is_refused_and_changes_nothing(files: MemoryFiles) -> None:
    manager, _ = open_manager(files, node_id=5)
    assert manager.node_id == 5
    append(first_log(manager), b"one")
    manager.close()
    before = {path: files.read_file(path) for path in files.paths()}
    for wrong in (0, 6):
        with pytest.raises(DataDirectoryError, match=f"node.id is {wrong}, but the data directory belongs to node 5: set"):
            open_manager(files, node_id=wrong)
        assert {path: files.read_file(path) for path in files.paths()} == before
        files.kill()
    for right in (5, -1):
        manager, report = open_manager(files, node_id=right)
        assert (manager.node_id, report.was_clean) == (5, True)
        manager.close()


def test_new_directory_without_a_node_id_is_node_0() -> None:
    assert open_manager(MemoryFiles())[0].node_id == 0


@pytest.mark.parametrize("seed", range(5))
def test_partitions_are_durable_before_the_topics_file_names_them(files: MemoryFiles, seed: int) -> None:
    manager, _ = open_manager(files)

    def cut_power(operation: str, path: str) -> None:
        if (operation, path) == ("create", "topics.tmp"):
            raise Killed

    files.hook = cut_power
    with pytest.raises(Killed):
        manager.create_topic("t", 3, {})
    files.power_cut(random.Random(seed))
    directories = {path.partition("/")[0] for path in files.paths() if path.endswith("/00000000000000000000.log")}
    assert len(directories) == 3


def test_what_a_change_is_about_is_looked_up_when_its_turn_comes() -> None:
    manager, _ = open_manager(MemoryFiles())
    manager.create_topic("t", 1, {})
    growth = manager.changes.grow("t", 2)
    creation = manager.changes.create("u", 1, {})
    manager.delete_topic("t")
    manager.create_topic("u", 1, {})
    new = manager.create_topic("t", 2, {})
    with pytest.raises(InvalidPartitionsError):
        run_here(growth)
    with pytest.raises(TopicAlreadyExistsError):
        run_here(creation)
    assert manager.topics.by_name("t") == new


def test_the_leader_epoch_rises_at_each_start_and_is_stamped(files: MemoryFiles) -> None:
    for life in range(1, 4):
        manager, report = open_manager(files)
        assert manager.node_epoch == life
        assert report.was_clean == (life > 1)
        log = first_log(manager)
        assert log.leader_epoch == life
        append(log, b"x")
        manager.close()
    log = first_log(open_manager(files)[0])
    entries = log.core.epochs.entries
    assert [entry[:2] for entry in entries] == [(1, 0), (2, 1), (3, 2)]
    assert len({entry.id for entry in entries} - {0}) == 3


def test_a_second_broker_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    manager, _ = open_manager(RealFiles(str(tmp_path)))
    with pytest.raises(DataDirectoryError, match="locked: another brokerd uses it"):
        open_manager(RealFiles(str(tmp_path)))
    manager.close()
    open_manager(RealFiles(str(tmp_path)))[0].close()


@pytest.mark.parametrize("version", [1, 3])
def test_an_unknown_format_version_is_refused_and_nothing_is_modified(files: MemoryFiles, version: int) -> None:
    manager, _ = open_manager(files)
    append(first_log(manager), b"x")
    manager.close()
    files.write_file("meta", encode_document(DocumentKind("data-directory", version), b"{}"))
    before = {path: files.read_file(path) for path in files.paths()}
    with pytest.raises(DataDirectoryError, match=f"format version {version}; this brokerd reads version 2"):
        open_manager(files)
    assert {path: files.read_file(path) for path in files.paths()} == before


@pytest.mark.parametrize("name", ["meta", "topics"])
def test_damaged_files_of_the_directory_are_refused_by_name(files: MemoryFiles, name: str) -> None:
    manager, _ = open_manager(files)
    first_log(manager)
    manager.close()
    files.flip_bit(name, 300)
    with pytest.raises(DataDirectoryError, match=f"{name} of the data directory is damaged"):
        open_manager(files)


@pytest.mark.parametrize("name", ["meta", "topics", "node-epoch", "checkpoint", "clean-shutdown", "clock"])
def test_files_of_the_directory_that_the_disk_cannot_read_count_as_damaged(files: MemoryFiles, name: str) -> None:
    """Otherwise one bad sector under a file that can be rebuilt, or done without, would refuse every start."""
    manager, log = open_log(files)
    append(log, b"kept")
    manager.close()
    files.hook = failing("pread", path=name)
    if name in ("meta", "topics", "node-epoch"):
        with pytest.raises(DataDirectoryError, match=f"{name} of the data directory is damaged .the disk cannot read it"):
            open_manager(files)
        return
    manager, report = open_manager(files)
    assert bool(report.read_only_reason) == (name == "checkpoint")
    assert payloads(first_log(manager)) == [b"kept\0\0\0\0"]


@pytest.mark.parametrize("name", ["node-epoch", "topics"])
def test_lost_files_of_the_directory_are_refused_and_nothing_is_modified(name: str) -> None:
    for is_used in (False, True):
        files = MemoryFiles()
        manager, _ = open_manager(files)
        if is_used:
            append(first_log(manager), b"x")
        manager.close()
        kept = files.read_file(name)
        files.remove_file(name)
        before = {path: files.read_file(path) for path in files.paths()}
        with pytest.raises(DataDirectoryError, match=f"the file {name} of the data directory is missing; restore it"):
            open_manager(files)
        assert {path: files.read_file(path) for path in files.paths()} == before
        files.kill()
        files.write_file(name, kept)
        open_manager(files)[0].close()


def test_a_first_start_may_be_killed_anywhere() -> None:
    for number in range(1, 40):
        files, count = MemoryFiles(), 0

        def hook(operation: str, path: str, number: int = number) -> None:
            nonlocal count
            count += 1
            if count == number:
                raise Killed

        files.hook = hook
        with contextlib.suppress(Killed):
            open_manager(files)
        files.power_cut(random.Random(number))
        manager, report = open_manager(files)
        assert not report.read_only_reason
        manager.create_topic("t", 1, {})


def test_the_checkpoint_keeps_what_it_knows_of_unknown_partitions(files: MemoryFiles) -> None:
    manager, _ = open_manager(files)
    no_topics = files.read_file("topics")
    log = first_log(manager)
    for _ in range(3):
        append(log, b"durable")
    log.flush()
    manager.write_checkpoint()
    files.kill()
    topics = files.read_file("topics")
    files.write_file("topics", no_topics)  # restored from an old copy
    manager, report = open_manager(files)
    assert report.unknown_directories == [log.tp.directory_name]
    first_log(manager, "other")
    manager.write_checkpoint()
    files.kill()
    files.write_file("topics", topics)
    files.flip_bit(log.segments[0].path, 20 * 8)
    _, report = open_manager(files)
    assert len(report.damaged) == 1, "rot in what was durable must not pass for a torn tail"
    assert not report.cut_bytes


@pytest.mark.parametrize("is_rotten", [True, False])
def test_a_start_that_fails_halfway_leaves_the_checkpoint_as_it_was(files: MemoryFiles, is_rotten: bool) -> None:
    """The partitions that it did not reach have no entry yet: without one, what was durable and where a log starts is unknown."""
    manager, _ = open_manager(files, log_segment_bytes=4_096)
    logs = [first_log(manager, name) for name in "ab"]
    for log in logs:
        for _ in range(40):
            append(log, b"durable" * 30)
        log.flush()
        delete_records(manager, log, 30)
    assert manager.retention_pass() > 2
    manager.close()
    files.hook = failing("open", path=logs[1].tp.directory_name, code=errno.EACCES)
    manager = LogManager(BrokerConfig(), files, ManualClock())
    with pytest.raises(DataDirectoryError, match="Permission denied"):
        manager.open()
    manager.close()
    files.hook = None
    if is_rotten:
        files.flip_bit(logs[1].segments[-1].path, 20 * 8)
    manager, report = open_manager(files, log_segment_bytes=4_096)
    log = first_log(manager, "b")
    assert (log.ends.log_start_offset, log.ends.log_end_offset) == (30, 40)
    assert len(report.damaged) == is_rotten, "rot in what was durable must not pass for a torn tail"
    assert not report.cut_bytes


@pytest.mark.parametrize("has_other", [True, False])
@pytest.mark.parametrize("is_damaged", [True, False])
def test_records_of_an_unknown_topic_outlive_a_lost_checkpoint(tmp_path: Path, has_other: bool, is_damaged: bool) -> None:
    """With an old topics file and no checkpoint: once the topic is known again, its records of all epochs are intact."""
    manager, _ = open_manager(RealFiles(str(tmp_path)))
    if has_other:
        manager.create_topic("other", 1, {})
    manager.close()
    without = (tmp_path / "topics").read_bytes()
    for _ in range(3):
        manager, log = open_log(RealFiles(str(tmp_path)))
        append(log, b"acknowledged....")
        log.flush()
        manager.close()
    topics = (tmp_path / "topics").read_bytes()
    (tmp_path / "topics").write_bytes(without)
    (tmp_path / "checkpoint").unlink()
    manager, report = open_manager(RealFiles(str(tmp_path)))
    assert "doctor" in report.read_only_reason
    manager.close()
    doctor.rebuild_checkpoint(str(tmp_path))
    open_manager(RealFiles(str(tmp_path)))[0].close()
    (tmp_path / "topics").write_bytes(topics)
    if is_damaged:
        path = tmp_path / log.segments[0].path
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    manager, report = open_manager(RealFiles(str(tmp_path)))
    assert not report.cut_bytes
    assert len(report.damaged) == is_damaged, "the rebuilt checkpoint has its durable end"
    if not is_damaged:
        assert payloads(first_log(manager)) == [b"acknowledged...."] * 3


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_without_its_checkpoint_a_directory_is_read_only(files: MemoryFiles, harm: str) -> None:
    manager, log = open_log(files)
    append(log, b"kept")
    log.flush()
    files.kill()
    if harm == "missing":
        files.remove_file("checkpoint")
    else:
        files.flip_bit("checkpoint", 200)
    for _ in range(2):
        manager, report = open_manager(files)
        assert "doctor" in report.read_only_reason
        log = first_log(manager)
        assert payloads(log) == [b"kept\0\0\0\0"]
        with pytest.raises(LogDamagedError, match="read-only"):
            append(log, b"no")
        with pytest.raises(StorageError, match="read-only"):
            manager.create_topic("u", 1, {})
        with pytest.raises(StorageError, match="read-only"):
            manager.delete_topic("t")
        manager.close()


def test_without_its_checkpoint_damage_is_named_and_what_stands_behind_it_is_read(files: MemoryFiles) -> None:
    manager, log = open_log(files, log_segment_bytes=4_096)
    for _ in range(30):
        append(log, bytes(400))
    log.flush()
    files.kill()
    files.remove_file("checkpoint")
    for segment in log.segments[:2]:
        files.flip_bit(segment.path, (496 * 2 + 20) * 8)
    torn = files.read_file(log.segments[-1].path)[:-1]
    files.write_file(log.segments[-1].path, torn)
    manager, report = open_manager(files, log_segment_bytes=4_096)
    rotten = [segment.base_offset + 2 for segment in log.segments[:2]]
    log = first_log(manager)
    assert list(readable(log)) == [n for n in range(29) if n not in rotten]
    with pytest.raises(LogDamagedError, match=f"offsets {rotten[0]} to {rotten[0]} were durable"):
        payloads(log, rotten[0])
    assert len(report.damaged) == 1
    assert not report.cut_bytes, "nothing is cut, neither there nor at the end"
    assert files.read_file(log.segments[-1].path) == torn


def test_without_its_checkpoint_a_torn_tail_is_not_called_cut(files: MemoryFiles, caplog: pytest.LogCaptureFixture) -> None:
    _, log = open_log(files)
    append(log, b"kept")
    log.flush()
    files.kill()
    files.remove_file("checkpoint")
    files.write_file(log.segments[0].path, files.read_file(log.segments[0].path) + b"torn")
    _, report = open_manager(files)
    assert not report.cut_bytes
    assert "torn tail" not in caplog.text


def test_without_its_checkpoint_a_log_is_read_from_its_first_segment_on(files: MemoryFiles) -> None:
    manager, log = open_log(files, log_segment_bytes=4_096)
    for _ in range(30):
        append(log, bytes(400))
    log.flush()
    delete_records(manager, log, 20)
    manager.retention_pass()
    first = log.segments[0].base_offset
    manager.close()
    files.remove_file("checkpoint")
    manager, _ = open_manager(files, log_segment_bytes=4_096)
    assert 0 < first == next(read_batches(first_log(manager))).header.base_offset


def test_unfinished_creations_go_and_unknown_data_stays(files: MemoryFiles) -> None:
    manager, log = open_log(files)
    append(log, b"x")
    manager.close()
    for name in ("0" * 32 + "-0", "1" * 32 + "-0"):
        files.mkdir(name)
        files.create(f"{name}/{0:020d}.log").close()
    files.write_file("1" * 32 + f"-0/{0:020d}.log", b"data of a topic that nobody knows")
    _, report = open_manager(files)
    assert report.unknown_directories == ["1" * 32 + "-0"]
    assert "0" * 32 + "-0" not in files.listdir()


def test_a_topic_that_cannot_be_created_leaves_nothing(files: MemoryFiles) -> None:
    manager, _ = open_manager(files)
    before = files.listdir()
    for number in range(1, 12):
        count = 0

        def hook(operation: str, path: str, number: int = number) -> None:
            nonlocal count
            if operation in ("mkdir", "create", "sync_dir", "pwritev"):
                count += 1
                if count == number:
                    raise OSError(28, "No space left on device")

        files.hook = hook
        try:
            manager.create_topic(f"t{number}", 2, {})
        except StorageError:
            files.hook = None
            assert not manager.topics.has(f"t{number}")
            assert [name for name in files.listdir() if name not in before and "-" in name] == []
        else:
            files.hook = None
            manager.delete_topic(f"t{number}")


def test_the_checkpoint_is_written_at_most_once_an_interval_and_only_if_something_moved() -> None:
    files, clock = MemoryFiles(), ManualClock()
    manager, log = open_log(files, clock)
    clock.advance(1_000)
    assert manager.write_checkpoint_if_due(clock.monotonic_ms())
    clock.advance(5_000)
    assert not manager.write_checkpoint_if_due(clock.monotonic_ms())
    append(log, b"x")
    assert not manager.write_checkpoint_if_due(clock.monotonic_ms())
    log.flush()
    job = manager.checkpoint_job(clock.monotonic_ms())
    assert job is not None
    append(log, b"x")
    log.flush()
    assert manager.checkpoint_job(clock.monotonic_ms() + 999) is None
    delete_records(manager, log, 2)
    newer = files.read_file("checkpoint")
    job()
    assert files.read_file("checkpoint") == newer


def test_expired_producers_stay_forgotten_after_a_restart() -> None:
    files, clock = MemoryFiles(), ManualClock()
    manager, log = open_log(files, clock, producer_id_expiration_ms=10_000)
    append(log, b"x", producer=ProducerIdAndEpoch(1, 0), sequence=0, now_ms=clock.wall_ms())
    log.flush()
    clock.advance(10_001)
    assert manager.expire_producers() == 1
    files.kill()
    log = first_log(open_manager(files, clock, producer_id_expiration_ms=10_000)[0])
    assert len(log.core.producers) == 0


def test_a_follower_remembers_producers_twice_as_long_as_its_leader() -> None:
    """So it never knows less than the leader, and its memory is bounded."""
    clock = ManualClock()
    manager, log = open_log(MemoryFiles(), clock, producer_id_expiration_ms=10_000)
    append(log, b"x", producer=ProducerIdAndEpoch(1, 0), sequence=0, now_ms=clock.wall_ms())
    log.flush()
    run_here(manager.replicas.follow({log.tp: log.leader_epoch + 1}))
    clock.advance(20_000)
    assert manager.expire_producers() == 0
    clock.advance(1)
    assert manager.expire_producers() == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_start_removes_nothing_by_a_checkpoint_that_a_power_cut_could_take_back(files: MemoryFiles, seed: int) -> None:
    manager, log = open_log(files, log_segment_bytes=4_096)
    for _ in range(8):
        append(log, bytes(1_500))
    log.flush()

    def kill_after_the_rename(operation: str, path: str) -> None:
        if (operation, path) == ("sync_dir", ""):
            raise Killed

    files.hook = kill_after_the_rename
    with pytest.raises(Killed):
        delete_records(manager, log, 6)
    files.kill()
    files.hook = failing("create", path="checkpoint")
    manager, _ = open_manager(files, log_segment_bytes=4_096)
    assert first_log(manager).ends.log_start_offset == 6
    files.power_cut(random.Random(seed))
    files.hook = None
    ends = first_log(open_manager(files, log_segment_bytes=4_096)[0]).ends
    assert (ends.log_start_offset, ends.log_end_offset) == (6, 8)


def test_a_clean_mark_of_an_earlier_run_is_not_believed(files: MemoryFiles) -> None:
    manager, _ = open_manager(files)
    append(first_log(manager), b"x")
    manager.close()
    old_mark = files.read_file("clean-shutdown")
    manager, _ = open_manager(files)
    assert "clean-shutdown" not in files.listdir()
    files.kill()
    files.write_file("clean-shutdown", old_mark)
    assert not open_manager(files)[1].was_clean


def test_a_batch_of_an_epoch_that_has_not_been_is_kept_and_stops_the_log(files: MemoryFiles) -> None:
    second: dict[str, bytes] = {}
    for life in range(3):
        manager, log = open_log(files)
        append(log, b"x")
        log.flush()
        files.kill()
        if life == 1:
            second = {name: files.read_file(name) for name in ("node-epoch", "checkpoint")}
    for name, data in second.items():
        files.write_file(name, data)
    manager, report = open_manager(files)
    assert not report.cut_bytes
    assert [error.resume_offset for error in report.damaged.values()] == [3]
    assert "older than the log" in str(first_log(manager).damage)


def _killed_with_one_more(files: MemoryFiles) -> tuple[int, int, int]:
    """Starts, appends a batch to each topic and is killed. Returns the node epoch and both leader epochs."""
    manager, report = open_manager(files)
    assert not report.cut_bytes
    assert not report.read_only_reason
    logs = first_log(manager), first_log(manager, "later")
    for log in logs:
        append(log, b"x")
        log.flush()
    files.kill()
    return manager.node_epoch, logs[0].leader_epoch, logs[1].leader_epoch


def test_each_partition_has_a_leader_epoch_of_its_own(files: MemoryFiles) -> None:
    """It may be far above the number of starts, if another node led the partition. No acknowledged record is cut off."""
    for _ in range(2):
        open_manager(files)[0].close()
    manager, log = open_log(files)
    assert (manager.node_epoch, log.leader_epoch) == (3, 1)
    log.lead(40)
    manager.write_checkpoint()
    append(log, b"x")
    log.flush()
    files.kill()
    assert _killed_with_one_more(files) == (4, 41, 1)

    def fail_checkpoints(operation: str, path: str) -> None:
        if path.startswith(("checkpoint", "spare")) and operation not in ("open", "pread"):
            raise OSError(errno.ENOSPC, "No space left on device")

    # The newer topic has no checkpoint entry. Its epoch is that of its last batch plus the number of starts so far.
    for expected in ((5, 42, 6), (6, 43, 12), (7, 44, 19)):
        files.hook = fail_checkpoints
        assert _killed_with_one_more(files) == expected
    manager, report = open_manager(files)
    assert not report.cut_bytes
    assert [len(payloads(first_log(manager, name))) for name in ("t", "later")] == [5, 4]
    assert [entry.epoch for entry in first_log(manager).epochs.entries] == [40, 41, 42, 43, 44]
    assert (first_log(manager).leader_epoch, first_log(manager, "later").leader_epoch) == (45, 27)


def test_the_epoch_of_a_damaged_partition_rises_too(files: MemoryFiles) -> None:
    """Only the epoch of its checkpoint entry changes."""
    manager, log = open_log(files)
    append(log, b"x" * 100)
    log.flush()
    manager.write_checkpoint()
    files.kill()
    (path,) = [path for path in files.paths() if path.endswith("-0/00000000000000000000.log")]
    files.flip_bit(path, 1_000)
    epochs = []
    for _ in range(3):
        manager, report = open_manager(files)
        assert report.damaged
        epochs.append(first_log(manager).leader_epoch)
        files.kill()
    assert epochs == [2, 3, 4]
