"""A broker whose data directory is backed up and later restored. No assertions here."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from tests.support.daemon import DaemonProcess


class Restored:
    """A daemon with topics t and out, of one partition each."""

    def __init__(self, path: Path) -> None:
        self.daemon = DaemonProcess(path / "data")
        self.daemon.start()
        with BlockingClient(ClientConfig(bootstrap_servers=self.daemon.address)) as client:
            client.create_topic("t", 1)
            client.create_topic("out", 1)
        self._backup = path / "backup"

    def write(self, count: int, begin: int = 0, timestamp: int | None = None) -> None:
        """Writes numbered records to topic t; `timestamp`: ms since 1970."""
        with Producer({"bootstrap.servers": self.daemon.address}) as producer:
            for number in range(begin, begin + count):
                producer.send("t", value=b"%d" % number, timestamp=timestamp)

    def back_up(self, *, is_running: bool) -> None:
        """Copies the directory of a broker that keeps running, in the same epoch, or of one that is stopped and then restarted."""
        if is_running:
            self.daemon.process.send_signal(signal.SIGSTOP)
        else:
            self.daemon.terminate()
        shutil.copytree(self.daemon.data_dir, self._backup)
        if is_running:
            self.daemon.process.send_signal(signal.SIGCONT)
        else:
            self.daemon.restart()

    def restore(self) -> None:
        """Replaces the data directory by the copy."""
        self.daemon.kill()
        shutil.rmtree(self.daemon.data_dir)
        shutil.copytree(self._backup, self.daemon.data_dir)
        self.daemon.restart()
