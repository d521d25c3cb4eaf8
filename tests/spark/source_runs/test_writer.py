"""Goal: the writer's record is correct, and a plain read_committed reader sees exactly that. Method: a real broker that is killed
meanwhile, no Spark.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from tests.spark.source_runs.runs import plain_reader_violations
from tests.spark.source_runs.writer import Writer, wait_until_decided
from tests.support.daemon import DaemonProcess
from tests.support.wait import wait_until

TOPICS = {"t": 2, "u": 1}
KILLS = 2


def write_under_kills(daemon: DaemonProcess, writer: Writer) -> None:
    """Runs some transactions between kills."""
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(writer.run, daemon.address, is_over)
        try:
            for _ in range(KILLS):
                enough = writer.transactions.total() + 6
                wait_until(lambda enough=enough: writer.transactions.total() >= enough or writing.done(), what="transactions")  # type: ignore[misc]
                daemon.kill()
                daemon.restart()
        finally:
            is_over.set()
        writing.result()
    wait_until_decided(daemon.address, list(TOPICS))


def test_the_plain_reader_sees_what_the_writer_says_over_kills_of_the_broker(tmp_path: Path) -> None:
    writer = Writer(TOPICS, 1, pause_s=0)
    with DaemonProcess(tmp_path / "data", settings={"log.segment.bytes": 65_536}) as daemon:
        with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
            for topic, partitions in TOPICS.items():
                client.create_topic(topic, partitions)
        write_under_kills(daemon, writer)
        for topic, written in writer.written.items():
            assert plain_reader_violations(daemon.address, topic, written) == []
            assert written.committed
            assert written.aborted
            offsets = [row.offset for row in written.committed if row.partition == 0]
            assert max(offsets) >= len(offsets), "no gaps: nothing was aborted, and no transaction has left a mark"
