"""Goal: with a shell's limit of 1,024 descriptors a thousand segments and silent clients stop nothing. Method: a daemon process."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.client.offsets import OffsetSpec
from brokerd.config.client import ClientConfig
from brokerd.ids import TopicIdPartition
from brokerd.storage.files import RealFiles
from tests.support.build import append, open_log
from tests.support.daemon import DaemonProcess
from tests.support.raw_client import RawClient, RawProducer, values_batch

LIMIT = 1_024
SEGMENTS = 1_000
SILENT = 200


class _Limited(DaemonProcess):
    def command(self) -> list[str]:
        """Sets a shell's limit of descriptors, soft and hard."""
        limit = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT})); "
        return [limit + part if part.startswith("import sys") else part for part in super().command()]


def _append(producer: RawProducer, tp: TopicIdPartition, count: int) -> int:
    """Appends `count` batches, each in its own segment; returns the last one's offset, once all are durable."""
    for _ in range(count):
        producer.post([(tp, values_batch(tp, size=4_000))], acks=-1)
    offsets = [producer.answer().results[0] for _ in range(count)]
    assert not [result.error for result in offsets if result.HasField("error")]
    return offsets[-1].base_offset


def _made(root: Path, monkeypatch: pytest.MonkeyPatch) -> TopicIdPartition:
    """A log of a thousand segments, created without waiting for the disk."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)
    root.mkdir()
    manager, log = open_log(RealFiles(str(root)), log_segment_bytes=4_096)
    for n in range(SEGMENTS):
        append(log, b"x" * 4_000)
        if n % 50 == 49:
            log.flush()
    assert len(log.segments) == SEGMENTS
    manager.write_checkpoint()
    manager.close()
    return log.tp


def test_segments_and_silent_connections_beyond_the_limit_stop_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tp = _made(tmp_path / "data", monkeypatch)
    with _Limited(tmp_path / "data", settings={"log.segment.bytes": 4_096}) as daemon, ExitStack() as stack:
        client = stack.enter_context(RawClient(daemon.address))
        producer = client.producer()
        fetcher, at = client.fetcher(), 0
        while at < SEGMENTS:
            _, (batches,) = fetcher.fetch({tp: at}, max_wait_ms=1_000)
            at = batches[-1].header.next_offset
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", daemon.port))) for _ in range(SILENT)]
        assert len(silent) == SILENT
        assert _append(producer, tp, 20) == SEGMENTS + 19
        with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as other:
            assert other.delete_records({tp: 900})[tp] == 900
            assert other.list_offsets({tp: OffsetSpec.EARLIEST})[tp].offset == 900  # type: ignore[union-attr]
        grown = client.create_topic("many", partitions=20)
        for partition in grown[::10]:
            assert _append(producer, partition, 1) == 0
        assert len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) <= LIMIT
        assert daemon.terminate() == 0
    said = daemon.stderr_path.read_text()
    assert "Too many open files" not in said
    assert "refuses appends" not in said
