"""A clean stop writes dirty logs, many in parallel, and does not touch logs that are already on disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.partition.partition import FlushTask, Partition
from tests.support.build import append, open_manager, payloads
from tests.support.files import MemoryFiles, failing
from tests.support.log_manager import LogManager

PARTITIONS = 40  # enough to close them in several threads


def opened(files: MemoryFiles, partitions: int = PARTITIONS) -> tuple[LogManager, list[Partition]]:
    """A new directory, and the logs of its topic."""
    manager, _ = open_manager(files)
    topic = manager.create_topic("t", partitions, {})
    return manager, [manager.partitions.leader(TopicIdPartition(topic.id, partition)) for partition in range(partitions)]


def changes(files: MemoryFiles, manager: LogManager) -> list[str]:
    """Closes the logs. Returns the writes, renames and syncs in partition directories."""
    seen: list[str] = []
    files.hook = lambda operation, path: seen.append(f"{operation} {path}") if "/" in path or operation == "sync_dir" else None
    manager.close()
    files.hook = None
    return [one for one in seen if not one.endswith(" ") and one.split()[0] not in ("open", "pread", "listdir")]


def test_what_was_not_written_to_costs_nothing(files: MemoryFiles) -> None:
    manager, logs = opened(files)
    for log in logs[:20]:
        append(log, b"x")
        log.flush()
    seen = changes(files, manager)
    assert {one.split()[1].partition("/")[0] for one in seen} == {log.tp.directory_name for log in logs[:20]}
    manager, report = open_manager(files)
    assert report.was_clean
    append(manager.partitions.leader(logs[7].tp), b"more")
    seen = changes(files, manager)
    assert {one.split()[1].partition("/")[0] for one in seen} == {logs[7].tp.directory_name}
    manager, report = open_manager(files)
    assert report.was_clean
    assert payloads(manager.partitions.leader(logs[7].tp)) == [b"x".ljust(8, b"\0"), b"more".ljust(8, b"\0")]
    assert changes(files, manager) == []


def test_an_end_that_is_lost_or_rotten_is_written_again(files: MemoryFiles) -> None:
    manager, (one, other) = opened(files, 2)
    for log in (one, other):
        append(log, b"x")
    manager.close()
    index = next(path for path in files.paths() if path.startswith(one.tp.directory_name) and path.endswith(".index"))
    snapshot = next(path for path in files.paths() if path.startswith(other.tp.directory_name) and path.endswith("1.snapshot"))
    whole = {path: files.read_file(path) for path in (index, snapshot)}
    for path in whole:
        files.flip_bit(path, 8 * (len(whole[path]) - 1))
    manager, _ = open_manager(files)
    manager.close()
    assert {path: files.read_file(path) for path in whole} == whole


def test_of_many_one_that_cannot_be_flushed_spoils_no_other(files: MemoryFiles) -> None:
    manager, logs = opened(files)
    for log in logs:
        append(log, b"kept")
    bad = logs[3]
    files.hook = failing("fdatasync", path=bad.segments[0].path)
    manager.close()
    files.hook = None
    assert manager.dirty_bytes == 0
    assert bad.core.health.failure is not None
    assert [log.core.health.failure for log in logs if log is not bad] == [None] * (PARTITIONS - 1)
    manager, _ = open_manager(files)
    for log in logs:
        assert payloads(manager.partitions.leader(log.tp)) == [b"kept".ljust(8, b"\0")]


@pytest.mark.parametrize("partitions", [2, PARTITIONS])
def test_of_many_one_that_is_missing_spoils_no_other(files: MemoryFiles, partitions: int, caplog: pytest.LogCaptureFixture) -> None:
    manager, logs = opened(files, partitions)
    for log in logs:
        append(log, b"kept")
    manager.close()
    gone = logs[1]
    for path in [path for path in files.paths() if path.startswith(f"{gone.tp.directory_name}/")]:
        files.unlink(path)
    manager, report = open_manager(files)
    assert list(report.damaged) == [TopicPartition("t", 1)]
    assert manager.partitions.leader(gone.tp).segments == ()
    manager.close()
    assert "internal error" not in caplog.text
    manager, report = open_manager(files)
    assert (report.unclean, list(report.damaged)) == (1, [TopicPartition("t", 1)])


def test_of_many_one_that_fails_somehow_spoils_no_other(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, logs = opened(files, 3)
    for log in logs:
        append(log, b"kept")
    monkeypatch.setattr(logs[0].core, "snapshot", lambda: 1 / 0)
    monkeypatch.setattr(FlushTask, "run", _fails_first(logs[1], FlushTask.run))
    manager.close()
    assert "t-0: internal error at its end" in caplog.text
    assert "t-1: internal error in a flush" in caplog.text
    monkeypatch.undo()
    manager, report = open_manager(files)
    assert report.unclean == 2
    assert payloads(manager.partitions.leader(logs[2].tp)) == [b"kept".ljust(8, b"\0")]


def _fails_first(log: Partition, run: Callable[[FlushTask], None]) -> Callable[[FlushTask], None]:
    def run_or_fail(task: FlushTask) -> None:
        if task._directory == log.tp.directory_name:
            raise ZeroDivisionError
        run(task)

    return run_or_fail
