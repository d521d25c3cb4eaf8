"""Bugs of transactions, planted like those in planted_daemon.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from brokerd.datadir.partition_table import PartitionTable
from brokerd.partition.core import Append, PartitionCore
from brokerd.partition.log_ends import LogEnds
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import BatchMetadata
from brokerd.record.header import BatchHeader
from tests.support.planting import Put, plant

_LATER_SECONDS = 0.2


def aborted_are_not_named(put: Put) -> None:
    """A read_committed fetch does not name the aborted transactions in its range."""
    plant(put, PartitionCore, "aborted_transactions", lambda self, from_offset, until_offset: [])


def markers_count_one_by_one(put: Put) -> None:
    """The markers of a commit take effect in one partition after another."""
    release = PartitionTable.release

    def release_first(self: PartitionTable, held: Iterable[tuple[str, Partition]]) -> None:
        found = [*held]
        release(self, found[:1])
        if found[1:]:
            asyncio.get_running_loop().call_later(_LATER_SECONDS, release, self, found[1:])

    plant(put, PartitionTable, "release", release_first)


def durable_is_stable(put: Put) -> None:
    """The last stable offset is the high watermark, despite open transactions below it."""
    plant(put, LogEnds, "_stable_end", lambda self: max(self.high_watermark, self.log_start_offset))


def any_member_may_write(put: Put) -> None:
    """A transactional batch is appended whether or not its member is open."""
    append = PartitionCore.append_as_leader

    def append_any(
        self: PartitionCore, header: BatchHeader, now_ms: int, *, clock_ahead_ms: int = 0, is_open_member: bool = False
    ) -> Append | BatchMetadata:
        return append(self, header, now_ms, clock_ahead_ms=clock_ahead_ms, is_open_member=header.is_transactional)

    plant(put, PartitionCore, "append_as_leader", append_any)


BUGS: dict[str, Callable[[Put], None]] = {
    "aborted-are-not-named": aborted_are_not_named,
    "markers-count-one-by-one": markers_count_one_by_one,
    "durable-is-stable": durable_is_stable,
    "any-member-may-write": any_member_may_write,
}
