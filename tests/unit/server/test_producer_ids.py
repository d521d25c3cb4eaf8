"""Producer ids, reserved in the coordinator's log: none is given twice, whatever ends or replaces the coordinator."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from brokerd.coordinator.records import producer_ids_reserved
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import NotCoordinatorError, StorageError, UnknownProducerIdError
from brokerd.ids import PRODUCER_NUMBERS, ProducerIdAndEpoch, TopicIdPartition
from brokerd.offline.doctor import accept_damaged, give_up_damaged
from brokerd.server.coordinator import log as coordinator_log
from brokerd.server.coordinator import producer_ids
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.coordinator.producer_ids import MARGIN, ProducerIds
from brokerd.storage.files import RealFiles
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord
from tests.support.build import append, raw_batch
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.findings import coordinator_segment, flip
from tests.support.gate import Gate
from tests.support.inner_broker import TransactionBroker, append_here, running
from tests.support.inner_cluster import cluster
from tests.support.loop import one_turn

BLOCK = 5
DIRECTORY = f"{COORDINATOR.id.hex()}-0"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small blocks of ids. Any log may be compacted, whatever its size."""
    monkeypatch.setattr(producer_ids, "BLOCK", BLOCK)
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 1)


async def take(ids: ProducerIds) -> int:
    """Takes a number as a request does."""
    while not ids.has_next:
        await ids.reserve()
    return ids.take()


def ids_of(broker: TransactionBroker) -> ProducerIds:
    return broker.broker.transactions.producer_ids


async def write(broker: TransactionBroker, tp: TopicIdPartition, number: int) -> None:
    """Appends a producer's first batch, durable on return."""
    append_here(broker.log(tp), raw_batch(b"x" * 32, producer=ProducerIdAndEpoch(number, 0), sequence=0), broker.broker.clock)
    await broker.broker.flusher.drain()


async def test_no_life_gives_what_another_has_given() -> None:
    files, clock, rng, given = MemoryFiles(), ManualClock(), random.Random(2), list[int]()
    for life in range(24):
        is_killed = bool(life % 2)
        async with running(files, clock, is_killed=is_killed) as broker:
            for _ in range(rng.choice((0, 1, BLOCK - 1, BLOCK, BLOCK + 1))):
                given.append(await take(ids_of(broker)))
                if rng.random() < 0.3:
                    await broker.transactions.compact()
        files.power_cut(rng)
    assert given == sorted(set(given))
    assert given[-1] < 24 * (2 * BLOCK), "and wastes less than a block in each"


async def test_no_id_is_given_before_its_block_is_durable() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        ids = ids_of(broker)
        await broker.transactions.log.make()
        with Gate(files, "fdatasync", path=DIRECTORY) as gate:
            asked = [asyncio.create_task(take(ids)) for _ in range(BLOCK + 2)]
            await asyncio.to_thread(gate.wait_until_reached)
            assert (ids.limit, ids.has_next) == (BLOCK, False)
            asked.pop().cancel()
        assert sorted(await asyncio.gather(*asked)) == list(range(BLOCK + 1)), "two blocks, one after the other"
        assert ids.limit == 2 * BLOCK


async def test_a_block_is_not_given_because_the_one_before_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        ids, log = ids_of(broker), broker.transactions.log
        await log.make()
        syncs = [asyncio.Event()]
        monkeypatch.setattr(log, "durable", lambda: syncs[-1].wait())

        async def use_up() -> None:
            await ids.reserve()
            ids.next_id = ids.limit
            syncs.append(asyncio.Event())
            await ids.reserve()

        first, second = asyncio.create_task(use_up()), asyncio.create_task(ids.reserve())
        await one_turn()
        syncs[0].set()
        await second
        assert (ids.limit, ids.has_next) == (2 * BLOCK, False)
        syncs[1].set()
        await first
        assert await take(ids) == BLOCK


async def test_a_caller_that_goes_leaves_its_block_to_the_next() -> None:
    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        ids = ids_of(broker)
        await broker.transactions.log.make()
        with Gate(files, "fdatasync", path=DIRECTORY) as gate:
            asked = asyncio.create_task(take(ids))
            await asyncio.to_thread(gate.wait_until_reached)
            asked.cancel()
            await one_turn()
        assert await take(ids) == 0
        assert ids.limit == BLOCK


async def test_a_block_is_not_given_again_by_a_crash_before_its_first_id() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        await ids_of(broker).reserve()
    files.kill()
    async with running(files, clock) as broker:
        assert await take(ids_of(broker)) == BLOCK


async def test_a_state_holds_what_is_reserved_before_it_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reservation precedes the state in the log, and the compaction removes it."""
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        ids = ids_of(broker)
        await ids.reserve()
        ids.next_id = ids.limit
        reserve = asyncio.create_task(ids.reserve())
        await one_turn()
        assert (ids.limit, ids.has_next) == (2 * BLOCK, False)
        await broker.transactions.compact()
        assert broker.transactions.log.start_offset == 2
        await reserve
        assert ids.take() == BLOCK
    files.kill()
    async with running(files, clock) as broker:
        assert await take(ids_of(broker)) == 2 * BLOCK


async def test_a_block_reserved_among_the_pieces_of_a_state_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        ids = ids_of(broker)
        await ids.reserve()
        append_batch, seen = CoordinatorLog._append, list[str]()

        def noted(log: CoordinatorLog, records: Sequence[CoordinatorRecord]) -> None:
            if records[0].HasField("state_ends"):
                append_batch(log, [producer_ids_reserved(7 * BLOCK)])
            append_batch(log, records)
            seen.append(records[0].WhichOneof("event") or "")

        monkeypatch.setattr(CoordinatorLog, "_append", noted)
        await broker.transactions.compact()
        assert seen == ["state_begins", "producer_ids_reserved", "state_ends"]
    files.kill()
    async with running(files, clock) as broker:
        assert await take(ids_of(broker)) == 7 * BLOCK


async def test_the_next_coordinator_goes_on_above_all_that_the_former_may_give() -> None:
    async with cluster(ManualClock()) as nodes:
        former = ids_of(nodes.nodes[0])
        assert [await take(former) for _ in range(2)] == [0, 1]
        await nodes.lead(0)
        present = ids_of(nodes.nodes[0])
        assert present is not former
        assert await take(present) == BLOCK
        assert [former.take() for _ in range(BLOCK - 2)] == [2, 3, 4], "to requests that came before"
        with pytest.raises(NotCoordinatorError):
            await former.reserve()
        assert not former.has_next
        await nodes.stop(0)
        await nodes.start(0)
        assert await take(ids_of(nodes.nodes[0])) == 2 * BLOCK


async def test_numbers_end() -> None:
    async with running(MemoryFiles(), ManualClock()) as broker:
        ids = ids_of(broker)
        ids.limit = ids.next_id = PRODUCER_NUMBERS - BLOCK
        await ids.reserve()
        ids.next_id = ids.limit
        with pytest.raises(StorageError, match="used up"):
            await ids.reserve()


@pytest.mark.parametrize("repair", [accept_damaged, give_up_damaged])
async def test_behind_a_lost_reservation_ids_go_on_far_above_all_that_are_known(tmp_path: Path, repair: object) -> None:
    clock = ManualClock()

    async def given(count: int) -> list[int]:
        async with running(RealFiles(str(tmp_path)), clock) as broker:
            numbers = [await take(ids_of(broker)) for _ in range(count)]
            (tp,) = await broker.topic(partitions=1)
            for number in numbers[:1]:
                await write(broker, tp, number)
            return numbers

    await given(2 * BLOCK)
    segment = coordinator_segment(tmp_path)
    flip(segment, segment.stat().st_size - 1)  # the last reservation
    assert callable(repair)
    assert repair(str(tmp_path))
    for _ in range(2):
        assert await given(0) == []
    first, *_, last = await given(2 * BLOCK)
    assert first == BLOCK + MARGIN, "above the reservation that is left, and once, however often it is started"
    assert await given(1) == [last + 1], "a reservation behind the loss tells all"


async def test_a_partition_may_know_more_than_a_log_that_lost_its_end_unnoticed() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        (tp,) = await broker.topic(partitions=1)
        await write(broker, tp, 7)
        assert await take(ids_of(broker)) == 0
    async with running(files, clock) as broker:
        assert await take(ids_of(broker)) == 7 + 1 + MARGIN


async def test_numbers_that_clients_make_up_use_up_nothing() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        (tp,) = await broker.topic(partitions=1)
        await write(broker, tp, PRODUCER_NUMBERS - 2)
    for life in range(3):
        async with running(files, clock) as broker:
            assert await take(ids_of(broker)) == PRODUCER_NUMBERS - MARGIN + life * BLOCK


async def test_a_start_tells_partitions_that_lost_records_who_is_new() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        (tp,) = await broker.topic(partitions=1)
        early = ProducerIdAndEpoch(await take(ids_of(broker)), 0)
        await write(broker, tp, early.producer_id)
        broker.log(tp).producers.forget_all(PRODUCER_NUMBERS)
    async with running(files, clock) as broker:
        log = broker.log(tp)
        with pytest.raises(UnknownProducerIdError, match="may have been forgotten"):
            append(log, b"x", producer=early, sequence=0)
        assert append(log, b"x", producer=ProducerIdAndEpoch(await take(ids_of(broker)), 0), sequence=0) == 1
