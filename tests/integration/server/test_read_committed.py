"""Fetch and ListOffsets with read_committed: aborted transactions in responses, and waiting for open transactions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.partition.partition import Partition
from brokerd.wire.v1 import fetch_pb2, offsets_pb2
from tests.support.build import arrow_batch
from tests.support.clock import START_WALL_MS
from tests.support.daemon import RunningDaemon
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.raw_client import LONG_MS, RawClient, values_batch
from tests.support.transactions import append_marker, append_member, release_marker
from tests.support.wait import wait_until

COMMITTED = fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED
UNCOMMITTED = fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED
EARLY_MS, LATE_MS = START_WALL_MS + 1_000, START_WALL_MS + 5_000


class Transactions:
    """Writes members' batches and markers to a partition of a running daemon, as its coordinator does."""

    def __init__(self, running: RunningDaemon, tp: TopicIdPartition) -> None:
        self._running = running
        self._tp = tp

    def write(self, producer_id: int, sequence: int = 0, *, count: int = 1, size: int = 8) -> int:
        """Appends a member's batch, durably; returns its base offset."""
        return self._append(lambda log: append_member(log, producer_id, sequence, count=count, payload=bytes(size)))

    def commit(self, *producer_ids: int, is_held: bool = False) -> int:
        """Appends a commit marker, durably; returns its offset."""
        return self._append(lambda log: append_marker(log, committed=producer_ids, is_held=is_held))

    def abort(self, *producer_ids: int) -> int:
        """Appends an abort marker, durably; returns its offset."""
        return self._append(lambda log: append_marker(log, aborted=producer_ids))

    def plain(self, timestamp_ms: int) -> int:
        """Appends a batch outside of transactions, durably; returns its offset."""
        return self._append(lambda log: log.append(arrow_batch([b"x"], [timestamp_ms]), now_wall_ms=timestamp_ms).base_offset)

    def release(self, offset: int) -> None:
        """Releases a held marker, and wakes waiting readers."""
        self._running.run(self._release(offset))

    def _append(self, append: Callable[[Partition], int]) -> int:
        log, offset = self._running.run(self._append_here(append))
        wait_until(lambda: log.ends.high_watermark == log.ends.log_end_offset)
        return offset

    async def _append_here(self, append: Callable[[Partition], int]) -> tuple[Partition, int]:
        log = self._log()
        return log, append(log)

    async def _release(self, offset: int) -> None:
        log = self._log()
        log.wake(release_marker(log, offset))

    def _log(self) -> Partition:
        return self._running.daemon.broker.partitions.leader(self._tp)


@pytest.fixture
def tp(client: RawClient) -> TopicIdPartition:
    return client.create_topic()[0]


@pytest.fixture
def transactions(running: RunningDaemon, tp: TopicIdPartition) -> Transactions:
    return Transactions(running, tp)


def parked(running: RunningDaemon) -> int:
    return len(running.daemon.broker.fetch_purgatory)


def fetched(client: RawClient, tp: TopicIdPartition, offset: int, **limits: int) -> tuple[list[tuple[int, int, int]], list[int]]:
    """The aborted transactions of a response, and the base offsets of its batches."""
    head, (batches,) = client.fetcher().fetch({tp: offset}, **limits)
    aborted = [(one.producer_id, one.first_offset, one.marker_offset) for one in head.results[0].aborted]
    return aborted, [batch.header.base_offset for batch in batches]


def test_the_answer_names_the_aborted_transactions_of_the_range_that_it_returns(
    client: RawClient, tp: TopicIdPartition, transactions: Transactions
) -> None:
    for sequence in range(3):
        transactions.write(7, sequence)
        transactions.write(8, sequence)
    transactions.abort(7)
    transactions.commit(8)
    client.producer().produce(tp, values_batch(tp))
    whole = [(7, 0, 6)]
    assert fetched(client, tp, 0, isolation_level=COMMITTED) == (whole, [0, 1, 2, 3, 4, 5, 6, 7, 8])
    assert fetched(client, tp, 0, isolation_level=UNCOMMITTED) == ([], [0, 1, 2, 3, 4, 5, 6, 7, 8])
    for offset in range(7):
        aborted, (base_offset,) = fetched(client, tp, offset, isolation_level=COMMITTED, max_bytes=1)
        is_void = offset in (0, 2, 4)
        assert (aborted, base_offset) == (whole if is_void else [], offset), "wherever an answer begins and ends"
    assert fetched(client, tp, 7, isolation_level=COMMITTED) == ([], [7, 8])


def test_nothing_undecided_is_returned(client: RawClient, tp: TopicIdPartition, transactions: Transactions) -> None:
    client.producer().produce(tp, values_batch(tp))
    transactions.write(7)
    transactions.write(8)
    transactions.abort(8)
    assert fetched(client, tp, 0, isolation_level=COMMITTED) == ([], [0])
    assert fetched(client, tp, 0, isolation_level=UNCOMMITTED) == ([], [0, 1, 2, 3])
    transactions.abort(7)
    assert fetched(client, tp, 0, isolation_level=COMMITTED) == ([(8, 2, 3), (7, 1, 4)], [0, 1, 2, 3, 4])


@pytest.mark.parametrize("min_bytes", [1, 2**20])
@pytest.mark.parametrize("is_held", [False, True], ids=["marker", "release"])
def test_a_parked_fetch_wakes_when_the_last_stable_offset_moves(
    running: RunningDaemon, client: RawClient, tp: TopicIdPartition, transactions: Transactions, is_held: bool, min_bytes: int
) -> None:
    transactions.write(7, size=500)
    marker = transactions.commit(7, is_held=True) if is_held else -1
    fetcher, other = client.fetcher(), client.fetcher()
    fetcher.post({tp: 0}, max_wait_ms=LONG_MS, min_bytes=min_bytes, isolation_level=COMMITTED)
    other.post({tp: marker + 1}, max_wait_ms=LONG_MS, min_bytes=2**20, isolation_level=UNCOMMITTED)
    wait_until(lambda: parked(running) == 2)
    if is_held:
        transactions.release(marker)
    else:
        transactions.commit(7)
    _, (batches,) = fetcher.answer()
    assert [batch.header.base_offset for batch in batches] == [0, 1]
    assert parked(running) == 1, "who reads all waits for bytes alone"


def test_min_bytes_counts_what_is_decided_as_long_as_nothing_is_undecided(
    running: RunningDaemon, client: RawClient, tp: TopicIdPartition
) -> None:
    stream, fetcher = client.producer(), client.fetcher()
    batch = values_batch(tp, size=1_000)
    fetcher.post({tp: 0}, max_wait_ms=LONG_MS, min_bytes=2 * batch.size, isolation_level=COMMITTED)
    wait_until(lambda: parked(running) == 1)
    stream.produce(tp, batch)
    assert parked(running) == 1
    stream.produce(tp, batch)
    _, (batches,) = fetcher.answer()
    assert len(batches) == 2


def test_a_log_start_that_moves_during_a_read_leaves_nothing_to_return(
    running: RunningDaemon, client: RawClient, tp: TopicIdPartition, transactions: Transactions, files: MemoryFiles
) -> None:
    transactions.write(7)
    transactions.abort(7)
    files.is_cold = True
    fetcher = client.fetcher()
    log = running.daemon.broker.partitions.leader(tp)
    with Gate(files, "pread", path=tp.directory_name) as gate:
        fetcher.post({tp: 0}, isolation_level=COMMITTED)
        gate.wait_until_reached()
        running.loop.call_soon_threadsafe(log.set_log_start, 2)
        wait_until(lambda: log.ends.log_start_offset == 2)
    head, (batches,) = fetcher.answer()
    assert ErrorCode(head.results[0].error.code) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert batches == []


def test_look_ups_of_offsets_show_nothing_undecided(client: RawClient, tp: TopicIdPartition, transactions: Transactions) -> None:
    transactions.plain(EARLY_MS)
    transactions.write(7)
    transactions.plain(LATE_MS)
    by_time = offsets_pb2.OFFSET_SPEC_TIMESTAMP

    def listed(isolation_level: int) -> list[int]:
        asked = ((offsets_pb2.OFFSET_SPEC_LATEST, 0), (by_time, LATE_MS), (by_time, EARLY_MS))
        found = [client.list_offset(tp, spec, isolation_level=isolation_level, timestamp=time_ms) for spec, time_ms in asked]
        return [result.offset for result in found]

    assert listed(UNCOMMITTED) == [3, 2, 0]
    assert listed(COMMITTED) == [1, -1, 0]
    transactions.commit(7)
    assert listed(COMMITTED) == [4, 2, 0]
