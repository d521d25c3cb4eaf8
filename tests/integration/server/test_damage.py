"""Damage as readers meet it: never silent. Records before and after it are served, the range itself is refused."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import NO_END, FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetSpec
from brokerd.config.client import ConsumerConfig
from brokerd.errors import ErrorCode, LogDamagedError
from brokerd.ids import TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.partition.reader import FetchDataInfo
from tests.integration.server.test_health import get
from tests.support.daemon import running_daemon
from tests.support.files import MemoryFiles
from tests.support.raw_client import LONG_MS, RawClient, values_batch
from tests.support.wait import DEADLINE_S

BATCHES = 10
DAMAGED = 4
ISOLATION = {"read_uncommitted": 0, "read_committed": 1}


def _write(data_dir: Path, files: MemoryFiles) -> TopicIdPartition:
    """A topic of ten batches, one record each."""
    with running_daemon(data_dir, files=files) as running, RawClient(running.address) as client:
        (tp,) = client.create_topic()
        producer = client.producer()
        for _ in range(BATCHES):
            producer.produce(tp, values_batch(tp))
    return tp


def _rot(files: MemoryFiles, *, is_found_at_start: bool = False, at: int = 20) -> None:
    """Flips a bit in one batch, by default in its header. The next start finds it if there is no mark of a clean stop, else a
    reader does. With `at` above 96 it is in the payload, which neither a start nor an ordinary read checks."""
    path = next(path for path in files.paths() if path.endswith(".log"))
    files.flip_bit(path, (len(files.read_file(path)) // BATCHES * DAMAGED + at) * 8)
    if is_found_at_start:
        files.remove_file("clean-shutdown")


@pytest.mark.parametrize("isolation", sorted(ISOLATION))
@pytest.mark.parametrize("is_found_at_start", [True, False])
def test_damage_is_told_and_all_around_it_is_read(
    isolation: str, is_found_at_start: bool, tmp_path: Path, files: MemoryFiles
) -> None:
    tp = _write(tmp_path, files)
    _rot(files, is_found_at_start=is_found_at_start)
    with running_daemon(tmp_path, files=files, fetch_max_wait_ms=LONG_MS) as running, RawClient(running.address) as client:
        fetcher = client.fetcher()
        for offset in range(BATCHES):
            head, (batches,) = fetcher.fetch({tp: offset}, max_wait_ms=LONG_MS, isolation_level=ISOLATION[isolation])
            result = head.results[0]
            if offset == DAMAGED:
                assert int(result.error.code) == ErrorCode.LOG_DAMAGED
                assert f"offsets {DAMAGED} to {DAMAGED} " in result.error.message
                assert result.error.resume_offset == DAMAGED + 1
            else:
                until = DAMAGED if offset < DAMAGED else BATCHES
                assert not result.HasField("error")
                assert [batch.header.base_offset for batch in batches] == list(range(offset, until))
            assert (result.last_stable_offset, result.high_watermark) == (BATCHES, BATCHES)


@pytest.mark.parametrize("isolation", sorted(ISOLATION))
@pytest.mark.parametrize("is_found_at_start", [True, False])
def test_the_client_meets_damage_as_an_error_and_sees_the_whole_log(
    isolation: str, is_found_at_start: bool, tmp_path: Path, files: MemoryFiles
) -> None:
    tp = _write(tmp_path, files)
    _rot(files, is_found_at_start=is_found_at_start)
    with running_daemon(tmp_path, files=files) as running:
        config = ConsumerConfig(bootstrap_servers=running.address, isolation_level=isolation)
        with BlockingClient(config) as client:
            latest = client.list_offsets({tp: OffsetSpec.LATEST}, isolation)[tp]
            assert latest.offset == BATCHES  # type: ignore[union-attr]
            for until in (BATCHES, NO_END):
                seen: list[int] = []
                with pytest.raises(LogDamagedError):
                    _follow(client, FetchRange(tp, 0, until), config, seen)
                assert seen == list(range(DAMAGED))
            seen = []
            _follow(client, FetchRange(tp, DAMAGED + 1, BATCHES), config, seen)
            assert seen == list(range(DAMAGED + 1, BATCHES))


def test_a_payload_is_checked_for_a_client_that_was_sent_a_wrong_one(
    tmp_path: Path, files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    tp = _write(tmp_path, files)
    _rot(files, at=110)
    with running_daemon(tmp_path, files=files, metrics_port=0) as running, RawClient(running.address) as client:
        fetcher, producer = client.fetcher(), client.producer()
        _, (batches,) = fetcher.fetch({tp: 0})
        assert len(batches) == BATCHES, "ordinary reads check no payload"
        for offset in (0, DAMAGED - 1, DAMAGED + 1, BATCHES - 1):
            _, (batches,) = fetcher.fetch({tp: offset}, check_first_batch=True)
            assert [batch.header.base_offset for batch in batches] == [offset], "one batch, however much is asked for"
        assert not producer.produce(tp, values_batch(tp)).HasField("error"), "what a client says changes nothing"
        assert "brokerd_offline_partition_count 0.0" in get(running.daemon.metrics_port, "/metrics")[1]
        caplog.clear()
        for _ in range(2):
            head, (batches,) = fetcher.fetch({tp: DAMAGED}, check_first_batch=True)
            error = head.results[0].error
            assert (int(error.code), error.resume_offset, batches) == (ErrorCode.LOG_DAMAGED, DAMAGED + 1, [])
        (said,) = [record.getMessage() for record in caplog.records if "are damaged" in record.getMessage()]
        path = next(path for path in files.paths() if path.endswith(".log"))
        assert f"(in {path} from byte {len(files.read_file(path)) // (BATCHES + 1) * DAMAGED} on)" in said
        assert int(producer.produce(tp, values_batch(tp)).error.code) == ErrorCode.LOG_DAMAGED
        assert "brokerd_offline_partition_count 1.0" in get(running.daemon.metrics_port, "/metrics")[1]
        assert int(fetcher.fetch({tp: DAMAGED})[0].results[0].error.code) == ErrorCode.LOG_DAMAGED, "ordinary reads know it now"
        assert len(fetcher.fetch({tp: DAMAGED + 1})[1][0]) == BATCHES - DAMAGED


def test_reads_that_check_go_one_at_a_time_though_their_clients_have_gone(
    tmp_path: Path, files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp = _write(tmp_path, files)
    may_end, begun = threading.Event(), threading.Semaphore(0)
    reading: list[int] = []
    most = 0

    def read_checked(self: Partition, *args: Any, **named: Any) -> FetchDataInfo:
        nonlocal most
        reading.append(0)
        most = max(most, len(reading))
        begun.release()
        may_end.wait(DEADLINE_S)
        found = checked(self, *args, **named)
        reading.pop()
        return found

    checked = Partition.read_checked
    monkeypatch.setattr(Partition, "read_checked", read_checked)
    with running_daemon(tmp_path, files=files) as running, RawClient(running.address) as client:
        for _ in range(2):
            with RawClient(running.address) as leaving:
                leaving.fetcher().post({tp: 0}, check_first_batch=True)
                if not most:
                    assert begun.acquire(timeout=DEADLINE_S)
        one, other = client.fetcher(), client.fetcher()
        one.post({tp: 0}, check_first_batch=True)
        assert len(other.fetch({tp: 0})[1][0]) == BATCHES, "ordinary reads go on"
        may_end.set()
        assert len(one.answer()[1][0]) == 1
        assert most == 1


def test_a_damaged_log_deletes_nothing_that_a_restart_would_bring_back(tmp_path: Path, files: MemoryFiles) -> None:
    tp = _write(tmp_path, files)
    _rot(files, is_found_at_start=True)
    with (
        running_daemon(tmp_path, files=files) as running,
        BlockingClient(ConsumerConfig(bootstrap_servers=running.address)) as client,
    ):
        assert isinstance(client.delete_records({tp: DAMAGED + 2})[tp], LogDamagedError)
        assert client.list_offsets({tp: OffsetSpec.EARLIEST})[tp].offset == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(("trouble", "level"), [("none", "INFO"), ("damage", "WARNING"), ("no checkpoint", "WARNING")])
def test_a_start_that_does_not_serve_everything_is_a_warning(
    trouble: str, level: str, tmp_path: Path, files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    _write(tmp_path, files)
    if trouble == "damage":
        _rot(files, is_found_at_start=True)
    elif trouble == "no checkpoint":
        files.remove_file("checkpoint")
    with caplog.at_level(logging.INFO), running_daemon(tmp_path, files=files):
        pass
    assert [record.levelname for record in caplog.records if record.getMessage().startswith("data directory")] == [level]


def test_a_read_only_partition_is_described_by_the_error_that_its_appends_get(tmp_path: Path, files: MemoryFiles) -> None:
    tp = _write(tmp_path, files)
    files.remove_file("checkpoint")
    with running_daemon(tmp_path, files=files) as running, RawClient(running.address) as client:
        refused = client.producer().produce(tp, values_batch(tp)).error
        assert int(refused.code) == ErrorCode.LOG_DAMAGED
        assert "is read-only" in refused.message
        (topic,) = client.metadata("t").topics
        for described in (topic.partitions[0], client.describe().partitions[0]):
            assert (described.error.code, described.error.message) == (refused.code, refused.message)


def _follow(client: BlockingClient, asked: FetchRange, config: ConsumerConfig, seen: list[int]) -> None:
    with PartitionFetcher(client, [asked], config) as fetcher:
        for fetched in fetcher:
            seen += fetched.offsets.to_pylist()
