"""Bugs of replication, planted into all nodes of a cluster of `brokerd.testing`, like those in planted_daemon.py.

Followers also pause after each response, each for a different time. The pauses are harmless, but make replicas differ more at a
kill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from brokerd.partition.core import Append, PartitionCore
from brokerd.partition.log_ends import LogEnd, LogEnds, Moved
from brokerd.partition.producer_state import Marker, ProducerStates
from brokerd.record.header import BatchHeader
from brokerd.server.replication.copying import Copier
from brokerd.testing import warm_process
from tests.support import replication_bugs
from tests.support.planting import Put, plant

_REST_SECONDS = 0.15  # times the node's id
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from {} import main; main({!r}, *map(int, sys.argv[2:]))"


def the_leader_is_enough(put: Put) -> None:
    """acks=all is acknowledged once the leader has the batch, however many followers are in sync."""

    def in_sync(original: Any, self: LogEnds, _followers: Iterable[int], is_enough: bool = True) -> Moved:
        moved: Moved = original(self, (), is_enough=is_enough)
        return moved

    replication_bugs.min_insync_replicas_is_ignored(put)
    plant(put, LogEnds, "in_sync", in_sync, wraps=True)


def a_majority_is_enough(put: Put) -> None:
    """The high watermark is what a majority of the in-sync replicas has, as in Raft, but any of them is elected, as in Kafka."""

    def advance(original: Any, self: LogEnds) -> Moved:
        replicas = self._replicas
        if replicas:
            fastest = sorted(replicas, key=lambda node: replicas[node])[len(replicas) // 2 :]
            self._replicas = {node: replicas[node] for node in fastest}
        moved: Moved = original(self)
        self._replicas = replicas
        return moved

    replication_bugs.min_insync_replicas_is_ignored(put)
    plant(put, LogEnds, "_advance_high_watermark", advance, wraps=True)


def the_leaders_disk_is_enough_to_read(put: Put) -> None:
    """Consumers read up to the leader's durable end, as with one replica, although followers may lack those records."""

    def of(original: Any, self: LogEnds, end: LogEnd) -> int:
        return self.durable_end if end is LogEnd.HIGH_WATERMARK else int(original(self, end))

    plant(put, LogEnds, "of", of, wraps=True)


def followers_know_no_producers(put: Put) -> None:
    """Followers keep no producer state, and the next leader lets each producer continue at any sequence."""

    def append(original: Any, self: PartitionCore, header: BatchHeader, *, marker: Marker | None = None) -> Append:
        appended: Append = original(self, header, marker=marker)
        return appended._replace(producer=None)

    plant(put, PartitionCore, "append_as_follower", append, wraps=True)
    plant(put, ProducerStates, "_check_unknown", lambda self, header: None)


BUGS: dict[str, Callable[[Put], None]] = {
    "the-leader-is-enough": the_leader_is_enough,
    "a-majority-is-enough": a_majority_is_enough,
    "the-leaders-disk-is-enough-to-read": the_leaders_disk_is_enough_to_read,
    "followers-know-no-producers": followers_know_no_producers,
    "anyone-may-be-elected": replication_bugs.a_replica_that_is_not_in_sync_is_elected,
}


async def _take_and_rest(take: Any, self: Copier, data: bytes) -> None:
    await take(self, data)
    life, rested = self._membership.last_life, asyncio.Event()
    assert life is not None, "it has asked"
    asyncio.get_running_loop().call_later(_REST_SECONDS * life.node_id, rested.set)
    await rested.wait()


@contextmanager
def planted(bug: str) -> Iterator[None]:
    """All brokers of `brokerd.testing` started inside the context have this bug."""
    warm_process.end()
    with mock.patch.object(warm_process, "_PROGRAM", _PROGRAM.format(__name__, bug)):
        try:
            yield
        finally:
            warm_process.end()


def main(bug: str, fd: int, parent_pid: int) -> None:
    """The process that brokers are forked from, with a bug; see brokerd/testing/warm_process.py."""
    BUGS[bug](setattr)
    plant(setattr, Copier, "_take", _take_and_rest, wraps=True)
    warm_process.main(fd, parent_pid)
