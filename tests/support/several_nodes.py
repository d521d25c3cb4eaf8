"""A three-node replacement for a DaemonProcess that is killed and restarted: each kill hits the next node. With
BROKERD_TEST_FACTOR=3, each node has a copy of each partition."""

from __future__ import annotations

import itertools
import os
from types import TracebackType
from typing import Self

from brokerd.testing import Cluster


class SeveralNodes:
    """A cluster. `kill` kills one node, the next one each time; `restart` restarts it."""

    def __init__(self) -> None:
        factor = int(os.environ.get("BROKERD_TEST_FACTOR", "1"))
        copies = {"default.replication.factor": factor, "min.insync.replicas": min(factor, 2), "broker.session.timeout.ms": 3_000}
        self._cluster = Cluster(config=copies)
        self._victims = itertools.cycle((1, 2, 3))
        self._killed = 0

    def __enter__(self) -> Self:
        self._cluster.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._cluster.close()

    @property
    def address(self) -> str:
        """The bootstrap servers: host:port of all nodes."""
        return self._cluster.bootstrap_servers

    def kill(self) -> None:
        """SIGKILL."""
        self._killed = next(self._victims)
        self._cluster.kill(self._killed)

    def restart(self) -> None:
        """Starts the killed node again."""
        self._cluster.restart(self._killed)
