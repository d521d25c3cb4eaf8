"""The broker's own topic, the coordinator's log: as durable as other topics, and hidden from clients."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.datadir.topic_store import COORDINATOR, effective_min_insync
from brokerd.errors import InvalidTopicError, UnknownTopicIdError, UnknownTopicOrPartitionError
from brokerd.ids import TopicIdPartition
from brokerd.offline.doctor import check_data_dir
from brokerd.offline.rebuild import rebuild_lost
from brokerd.partition.partition import Partition
from brokerd.storage.files import RealFiles
from tests.support.build import append, open_manager, payloads
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.log_manager import LogManager
from tests.support.steps import run_here

YEAR_MS = 31_536_000_000


def opened(files: MemoryFiles | RealFiles, clock: ManualClock | None = None, **settings: int) -> tuple[LogManager, Partition]:
    """A data directory that has the coordinator's log."""
    manager, _ = open_manager(files, clock, **settings)
    if manager.partitions.coordinator_log is None:
        run_here(manager.changes.create_coordinator())
    log = manager.partitions.coordinator_log
    assert log is not None
    return manager, log


def test_it_is_there_again_after_a_power_cut(files: MemoryFiles) -> None:
    manager, log = opened(files)
    append(log, b"decided.")
    log.flush()
    manager.write_checkpoint()
    files.power_cut(random.Random(1))
    manager, log = opened(files)
    assert payloads(log) == [b"decided."]
    manager.close()
    _, log = opened(files)
    assert payloads(log) == [b"decided."]


def test_clients_find_nothing_of_it() -> None:
    manager, _ = opened(MemoryFiles(), max_topics=1, max_partitions=1)
    topics, name = manager.topics, COORDINATOR.name
    assert (topics.list(), len(topics), topics.partition_count(), manager.partitions.of_clients()) == ([], 0, 0, [])
    assert not topics.has(name)
    by_name: list[Callable[[], object]] = [
        lambda: topics.by_name(name),
        lambda: manager.create_partitions(name, 2),
        lambda: manager.delete_topic(name),
    ]
    for find in by_name:
        with pytest.raises(UnknownTopicOrPartitionError, match=f"^there is no topic '{name}'$"):
            find()
    by_id: list[Callable[[], object]] = [
        lambda: topics.by_id(COORDINATOR.id),
        lambda: manager.partitions.leader(TopicIdPartition(COORDINATOR.id, 0)),
        lambda: manager.partitions.leader(TopicIdPartition(COORDINATOR.id, 1)),
    ]
    for find in by_id:
        with pytest.raises(UnknownTopicIdError):
            find()
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.alter_topic(name, {"retention.ms": "1"}, ())
    with pytest.raises(InvalidTopicError):
        manager.create_topic(name, 1, {})
    manager.create_topic("t", 1, {})  # the coordinator's log does not count towards the limits


@pytest.mark.parametrize(("configured", "needed"), [(1, 2), (3, 3)])
def test_two_of_its_copies_must_be_in_sync(files: MemoryFiles, configured: int, needed: int) -> None:
    manager, log = opened(files, min_insync_replicas=configured)
    manager.create_topic("t", 1, {})
    assert log.config.min_insync_replicas == needed
    assert manager.partitions.of_clients()[0].config.min_insync_replicas == configured
    manager.close()
    _, log = opened(files, min_insync_replicas=configured)
    assert log.config.min_insync_replicas == needed, "after a start, too"
    held = COORDINATOR._replace(configs={})  # as stored by a cluster of an earlier version
    assert effective_min_insync(held, configured) == needed


def test_retention_leaves_it_alone_but_for_what_its_coordinator_gives_up() -> None:
    clock = ManualClock()
    manager, log = opened(MemoryFiles(), clock, log_retention_ms=1, log_segment_bytes=4_096, log_retention_bytes=0)
    for _ in range(3):
        append(log, b"v" * 600_000)
    log.flush()
    clock.advance(YEAR_MS * 100)
    assert manager.retention_pass() == 0
    assert len(log.segments) == 3
    assert run_here(manager.retention.delete_records([(log, 2)])) == [None]
    assert manager.retention_pass() == 2
    assert len(log.segments) == 1


def test_it_is_recognized_where_the_topics_file_is_lost(tmp_path: Path) -> None:
    manager, log = opened(RealFiles(str(tmp_path)))
    manager.create_topic("t", 1, {})
    manager.close()
    assert not [finding for finding in check_data_dir(str(tmp_path)) if finding.severity.name == "ERROR"]
    manager, log = opened(RealFiles(str(tmp_path)))
    append(log, b"decided.")
    manager.close()
    (tmp_path / "topics").unlink()
    rebuild_lost(str(tmp_path), {})
    manager, log = opened(RealFiles(str(tmp_path)))
    assert payloads(log) == [b"decided."]
    assert log.config.retention_ms == -1
    assert len(manager.topics.list()) == 1
    manager.close()
