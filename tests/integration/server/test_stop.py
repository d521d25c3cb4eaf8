"""Goal: a stop has one deadline over all its steps, whatever clients and disks do. Method: the real daemon and SIGTERM, or a disk
that does not respond; the tests' deadlines are far above the broker's own.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from benchmarks.raw_http2 import RawHttp2
from brokerd.server.daemon import StopOverdueError
from brokerd.wire.methods import UNARY
from brokerd.wire.v1 import fetch_pb2
from tests.support.daemon import DaemonProcess, RunningDaemon
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.raw_client import RawClient, values_batch
from tests.support.victim import Victim
from tests.support.wait import DEADLINE_S, wait_until

WATCH = "/grpc.health.v1.Health/Watch"


def test_a_watcher_that_reads_nothing_holds_up_no_stop(tmp_path: Path) -> None:
    """The grace is ten minutes, and the watchers last for a minute and a half: a stop that waits for either fails the test."""
    with DaemonProcess(tmp_path / "data", settings={"shutdown.grace.ms": 600_000}) as daemon, ExitStack() as stack:
        victim = Victim(daemon)
        watchers = [stack.enter_context(closing(RawHttp2(daemon.port, window=0))) for _ in range(3)]
        for watcher in watchers:
            for _ in range(20):
                watcher.send_message(watcher.call(WATCH), health_pb2.HealthCheckRequest().SerializeToString())
            watcher.pump(0.1)
        victim.works()
        victim.channel.close()
        assert daemon.terminate(60) == 0
    assert (tmp_path / "data" / "clean-shutdown").exists()


def test_calls_whose_requests_never_come_hold_up_no_stop(tmp_path: Path) -> None:
    """The grace is an hour, so a stop that waits for these calls fails the test."""
    settings = {"shutdown.grace.ms": 600_000}
    with DaemonProcess(tmp_path / "data", settings=settings) as daemon, closing(RawHttp2(daemon.port)) as stranger:
        for name in UNARY:
            stranger.call(UNARY[name].path)
        stranger.pump(0.1)
        with RawClient(daemon.address) as client:
            client.metadata()
        assert daemon.terminate() == 0


def test_parked_fetches_of_many_partitions_hold_up_no_stop(tmp_path: Path) -> None:
    settings = {"shutdown.grace.ms": 500, "num.partitions": 1, "max.in.flight.bytes": 2**20}
    with DaemonProcess(tmp_path / "data", settings=settings) as daemon, RawClient(daemon.address) as client:
        tps = client.create_topic(partitions=500)
        data = fetch_pb2.FetchRequest(
            max_wait_ms=60_000,
            min_bytes=1,
            max_bytes=2**20,
            partitions=[{"topic_id": tp.topic_id, "partition": tp.partition, "current_leader_epoch": 1} for tp in tps],
        ).SerializeToString()
        for _ in range(90):
            client.fetcher().send(data)
        client.metadata()
        assert daemon.terminate() == 0
    assert (tmp_path / "data" / "clean-shutdown").exists()


@pytest.mark.parametrize("settings", [{"shutdown_grace_ms": 0}], indirect=True)
def test_a_disk_that_does_not_answer_ends_a_stop_at_its_deadline(
    running: RunningDaemon, client: RawClient, files: MemoryFiles
) -> None:
    (tp,) = client.create_topic()
    client.producer().produce(tp, values_batch(tp))
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        stopping = running.begin_stop()
        gate.wait_until_reached()
        with pytest.raises(StopOverdueError, match="closing the logs"):
            stopping.result(DEADLINE_S)
    wait_until(lambda: "clean-shutdown" in files.paths(), what="the disk has answered at last")
    running._end_loop()
