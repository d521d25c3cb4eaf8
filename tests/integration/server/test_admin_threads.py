"""Deletion of records and retention never hold the event loop: what waits for the disk does so in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import topics_pb2
from tests.support.daemon import RunningDaemon
from tests.support.files import MemoryFiles
from tests.support.raw_client import RawClient, values_batch
from tests.support.wait import wait_until

PARTITIONS = 20
SYNCS = ("fdatasync", "sync_dir")


@pytest.fixture
def seen(files: MemoryFiles) -> Iterator[list[tuple[str, str, str]]]:
    """(thread, operation, path) of what is done from now on."""
    calls: list[tuple[str, str, str]] = []
    yield calls
    files.hook = None


def _watch(files: MemoryFiles, calls: list[tuple[str, str, str]]) -> None:
    files.hook = lambda operation, path: calls.append((threading.current_thread().name, operation, path))


def _in_loop(calls: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [call for call in calls if call[0] == "brokerd-test" and call[1] in (*SYNCS, "unlink")]


def _delete_all(client: RawClient, tps: list[TopicIdPartition]) -> list[int]:
    asked = [topics_pb2.PartitionDeleteRecords(topic_id=tp.topic_id, partition=tp.partition, before_offset=-1) for tp in tps]
    response = client.call("DeleteRecords", topics_pb2.DeleteRecordsRequest(partitions=asked))
    assert not any(result.HasField("error") for result in response.results)
    return [result.log_start_offset for result in response.results]


@pytest.mark.parametrize("settings", [{"log_checkpoint_interval_ms": 60_000}], indirect=True)
def test_one_request_to_delete_records_is_one_checkpoint_written_by_a_thread(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, seen: list[tuple[str, str, str]]
) -> None:
    tps = client.create_topic(partitions=PARTITIONS)
    producer = client.producer()
    for tp in tps:
        producer.produce(tp, values_batch(tp))
    _watch(files, seen)
    assert _delete_all(client, tps) == [1] * PARTITIONS
    assert [call[2] for call in seen if call[1] == "rename"] == ["checkpoint"]
    assert _in_loop(seen) == []


def test_a_checkpoint_that_fails_moves_no_log_start(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, seen: list[tuple[str, str, str]]
) -> None:
    tps = client.create_topic(partitions=2)
    producer = client.producer()
    for tp in tps:
        producer.produce(tp, values_batch(tp))

    def fail(operation: str, path: str) -> None:
        if operation == "create" and path.startswith("checkpoint"):
            raise OSError(28, "No space left on device")

    files.hook = fail
    with pytest.raises(AssertionError):
        _delete_all(client, tps)
    files.hook = None
    assert [entry.log_start_offset for entry in client.describe().partitions] == [0, 0]


@pytest.mark.parametrize("settings", [{"log_retention_check_interval_ms": 20, "log_segment_bytes": 4_096}], indirect=True)
def test_retention_rolls_and_removes_without_holding_the_loop(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, seen: list[tuple[str, str, str]]
) -> None:
    (tp,) = client.create_topic(retention_ms="1")
    producer = client.producer()
    for _ in range(5):
        producer.produce(tp, values_batch(tp, size=3_000))
    _watch(files, seen)
    producer.produce(tp, values_batch(tp, size=3_000))
    wait_until(lambda: client.describe().partitions[0].log_start_offset == 6)
    wait_until(lambda: sum(path.endswith(".log") for path in files.paths()) == 1)
    assert _in_loop(seen) == []
