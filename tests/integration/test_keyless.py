"""Goal: with a real broker, records without a key spread over the healthy partitions, and a future's time is the one that readers
see.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import brokerd
from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ConsumerConfig
from brokerd.errors import LogDamagedError
from brokerd.ids import TopicPartition
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.records import key_values
from tests.support.wait import DEADLINE_S, wait_until

PARTITIONS = 8
ROWS = 5_000


def create(running: RunningDaemon, partitions: int = PARTITIONS, **configs: str) -> None:
    with BlockingClient(ConsumerConfig(bootstrap_servers=running.address)) as client:
        client.create_topic("t", partitions, configs)


def damage_partition(data_dir: Path, files: MemoryFiles, partition: int) -> None:
    """Creates a topic with one partition that has lost durable data."""
    with running_daemon(data_dir, files=files) as running:
        create(running)
        with Producer(bootstrap_servers=running.address) as producer:
            producer.send("t", b"x" * 100, partition=partition)
    path = next(path for path in files.paths() if path.endswith(".log") and f"-{partition}/" in path)
    files.flip_bit(path, 8 * 20)
    files.remove_file("clean-shutdown")


def test_one_damaged_partition_gets_no_row_that_may_go_elsewhere(tmp_path: Path) -> None:
    files = MemoryFiles()
    damage_partition(tmp_path / "data", files, partition=3)
    with running_daemon(tmp_path / "data", files=files) as running, Producer(bootstrap_servers=running.address) as producer:
        futures = [producer.send("t", b"v" * 100) for _ in range(ROWS)]
        batch = producer.send_batch("t", key_values([b"v" * 100] * ROWS))
        there = producer.send("t", b"v", partition=3)
        producer.flush(DEADLINE_S)
        used = {future.result(0).partition for future in futures}
        assert len(used) > PARTITIONS // 2
        assert 3 not in used
        assert 3 not in batch.result(0).record_counts
        assert isinstance(there.exception(0), LogDamagedError)


def test_a_partition_that_is_found_damaged_later_is_avoided_from_then_on(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data", files=MemoryFiles()) as running:
        create(running)
        with Producer(bootstrap_servers=running.address) as producer:
            assert producer.partitions_for("t") == PARTITIONS
            topics = producer._core.topics
            with producer._shared.lock:
                topics.note_problem(TopicPartition("t", 2), "damaged")
            futures = [producer.send("t", b"v" * 100) for _ in range(100)]
            producer.flush(DEADLINE_S)
            assert 2 not in {future.result(0).partition for future in futures}
            wait_until(lambda: not getattr(topics.view("t"), "problems", {2: ""}), what="the broker to say that it is well")


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_the_time_of_a_future_is_that_of_the_record(tmp_path: Path, kind: str) -> None:
    with running_daemon(tmp_path / "data", files=MemoryFiles()) as running:
        create(running, 1, **{"message.timestamp.type": kind})
        with Producer(bootstrap_servers=running.address) as producer:
            futures = [producer.send("t", b"v", timestamp=1_000), producer.send("t", b"v")]
            producer.flush(DEADLINE_S)
        told = [future.result(0).timestamp for future in futures]
        rows = brokerd.read("t", config={"bootstrap.servers": running.address}).to_reader().read_all()
        seen = [int(time.timestamp() * 1000) for time in rows.column("timestamp").to_pylist()]
    assert told == seen
    assert (told[0] == 1_000) == (kind == "CreateTime")
