"""Runs a broker as a child process, with its own directory and a free port."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokerd import Consumer, TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig

_READY = "brokerd ready on "
_COMMAND = (sys.executable, "-c", "import sys; from brokerd.cli import main; sys.exit(main())")
_STOP_TIMEOUT_S = 20


@contextmanager
def running_broker(directory: Path) -> Iterator[str]:
    """Starts a broker with its data in `directory`, yields its HOST:PORT, and stops it cleanly at the end.

    Raises RuntimeError with the broker's output if it does not start.
    """
    log_path = directory / "brokerd.log"
    with log_path.open("wb") as log_file:
        daemon = subprocess.Popen(  # noqa: S603 (our own program)
            [*_COMMAND, "start", "--data-dir", str(directory / "data"), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            start_new_session=True,  # keeps Ctrl-C from the broker: the demo handles it and ends its children
        )
        try:
            assert daemon.stdout is not None
            line = daemon.stdout.readline()
            if not line.startswith(_READY):
                raise RuntimeError(f"the daemon did not start: {line}{log_path.read_text()}".strip())
            yield line.removeprefix(_READY).strip()
        finally:
            daemon.terminate()
            try:
                daemon.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def create_topic(servers: str, name: str, partitions: int) -> None:
    """Creates a topic."""
    with BlockingClient(ClientConfig(bootstrap_servers=servers)) as client:
        client.create_topic(name, partitions)


def log_ends(servers: str, name: str) -> dict[int, tuple[int, int]]:
    """First and next offset of each partition."""
    with Consumer(bootstrap_servers=servers) as consumer:
        tps = [TopicPartition(name, number) for number in range(consumer.partitions_for(name))]
        first, end = consumer.beginning_offsets(tps), consumer.end_offsets(tps)
    return {tp.partition: (first[tp], end[tp]) for tp in tps}
