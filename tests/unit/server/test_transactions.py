"""Transactions inside the broker: expiry, stops, disks that refuse writes, deleted topics, a damaged log."""

from __future__ import annotations

import asyncio
import errno

import pytest

from brokerd.coordinator.transaction_coordinator import JOB_KEPT_MS
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import (
    AlreadyCommittedError,
    DataDirectoryError,
    InvalidTxnStateError,
    NotReadyError,
    StorageError,
    TxnAbortedError,
)
from brokerd.ids import ProducerIdAndEpoch
from brokerd.server.coordinator.transactions import FIRST_MS
from brokerd.server.delayed_produce import Appended, wait_durable
from brokerd.wire.v1.coordinator_log_pb2 import CommitCompleted, MemberOpened
from tests.support.build import raw_batch
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.inner_broker import PRINCIPAL, TIMEOUT_MS, TransactionBroker, Write, append_here, end_request, running
from tests.support.loop import one_turn
from tests.support.transaction_bench import Execution, commit_of
from tests.unit.server.one_execution import NAME, ONE, OneExecution, stable


async def test_an_execution_that_gives_no_sign_of_life_ends_and_its_data_is_void() -> None:
    clock = ManualClock()
    async with running(MemoryFiles(), clock) as broker:
        one = await OneExecution(broker).begin()
        for renew in range(3):
            clock.advance(TIMEOUT_MS - 1)
            if renew % 2:
                await broker.write(one.member, [Write(one.tps[0], b"more")])
            else:
                await broker.heartbeat(NAME, ONE, b"m" * 16)
            await broker.transactions.sweep()
        assert stable(broker, one.tps) == [0, 0]
        clock.advance(TIMEOUT_MS)
        await broker.transactions.sweep()
        assert stable(broker, one.tps) == [3, 2]
        assert one.visible() == [[], []]
        assert broker.transactions.outcomes.expired == 1
        with pytest.raises(InvalidTxnStateError):
            await broker.heartbeat(NAME, ONE, b"m" * 16)
        with pytest.raises(InvalidTxnStateError):
            await broker.write(one.member, [Write(one.tps[0], b"late")])
        with pytest.raises(TxnAbortedError):
            await one.commit()


async def test_heartbeats_keep_nothing_open_beyond_its_greatest_age(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    async with running(MemoryFiles(), clock, transaction_max_age_ms=3 * TIMEOUT_MS) as broker:
        one = await OneExecution(broker).begin()
        for _ in range(6):
            assert stable(broker, one.tps) == [0, 0]
            await broker.heartbeat(NAME, ONE, b"m" * 16)
            clock.advance(TIMEOUT_MS // 2)
            await broker.transactions.sweep()
        assert stable(broker, one.tps) == [2, 2]
        assert one.visible() == [[], []]
        assert "expired after transaction.max.age.ms, although it is alive" in caplog.text
        with pytest.raises(InvalidTxnStateError):
            await broker.heartbeat(NAME, ONE, b"m" * 16)


async def test_a_restart_grants_a_full_time_out_and_the_open_go_on() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()
        clock.advance(TIMEOUT_MS - 1)
    clock.advance(TIMEOUT_MS - 1)
    async with running(files, clock) as broker:
        one.broker = broker
        clock.advance(TIMEOUT_MS - 1)
        await broker.transactions.sweep()
        await one.commit()
        assert one.visible() == [[b"row"], [b"row"]]


async def test_data_of_producers_that_nobody_knows_is_aborted_at_the_start_and_by_the_sweep() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()
        state = broker.transactions.coordinator
        for producer_id in list(state.open_members):  # as if its record had been lost
            state._open.pop(producer_id)
        await broker.transactions.sweep()
        assert stable(broker, one.tps) == [2, 2]
        assert one.visible() == [[], []]


async def test_a_commit_that_one_disk_refuses_stays_prepared_and_is_driven_on() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()
        with Gate(files, "pwritev", path=one.tps[1].directory_name, error=errno.ENOSPC):
            with pytest.raises(StorageError, match="is committed, but not visible yet") as raised:
                await one.commit()
            assert raised.value.retriable
            assert stable(broker, one.tps) == [0, 0], "no partition shows it before the others"
            assert one.visible() == [[], []]
            with pytest.raises(StorageError):
                await one.commit()
            await broker.transactions.sweep()
            assert stable(broker, one.tps) == [0, 0]
        clock.advance(FIRST_MS)
        await broker.transactions.sweep()
        assert stable(broker, one.tps) == [2, 2]
        assert one.visible() == [[b"row"], [b"row"]]
        await one.commit()
        assert not broker.transactions.coordinator.prepared()


async def test_a_commit_whose_marker_cannot_be_synced_is_finished_by_the_next_start() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        one = await OneExecution(broker).begin()
        with (
            Gate(files, "fdatasync", path=one.tps[1].directory_name, error=errno.EIO),
            pytest.raises(StorageError, match="is committed, but not visible yet"),
        ):
            await one.commit()
        assert stable(broker, one.tps) == [0, 0]
    files.kill()
    async with running(files, clock) as broker:
        one.broker = broker
        assert one.visible() == [[b"row"], [b"row"]]


async def test_nothing_is_decided_on_a_log_that_a_flush_failed_of() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        one = await OneExecution(broker).begin()
        with (
            Gate(files, "fdatasync", path=COORDINATOR.id.hex(), error=errno.EIO),
            pytest.raises(StorageError, match="refused to make"),
        ):
            await one.commit()
        with pytest.raises(StorageError):
            await one.commit()
        await broker.transactions.sweep()
        assert stable(broker, one.tps) == [0, 0]
        with pytest.raises(StorageError):
            await broker.init(NAME, Execution(1, "next", "run"), b"n" * 16)
    files.kill()
    async with running(files, clock) as broker:
        one.broker = broker
        await one.commit()
        assert one.visible() == [[b"row"], [b"row"]]


async def test_last_stable_offsets_move_in_one_step_and_an_init_need_not_wait_for_it() -> None:
    files = MemoryFiles()
    async with running(files, ManualClock()) as broker:
        one = await OneExecution(broker).begin()
        with Gate(files, "fdatasync", path=one.tps[1].directory_name) as gate:
            commit = asyncio.create_task(one.commit())
            await asyncio.to_thread(gate.wait_until_reached)
            log = broker.log(one.tps[0])
            await wait_durable(broker.broker.produce_purgatory, [Appended(log, 1, log.leader_epoch)])  # the marker of partition 0
            assert stable(broker, one.tps) == [0, 0]
            with pytest.raises(AlreadyCommittedError):
                await broker.init(NAME, Execution(0, "twin", "another run"), b"t" * 16)
            await broker.init(NAME, Execution(1, "next", "another run"), b"n" * 16)
        await commit
        assert stable(broker, one.tps) == [2, 2]


async def test_a_stop_during_a_commit_leaves_all_of_it_or_none() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()

        with Gate(files, "fdatasync", path=one.tps[1].directory_name) as gate:
            commit = asyncio.create_task(one.commit())
            await asyncio.to_thread(gate.wait_until_reached)
            broker.broker.begin_stop()
            broker.broker.drop_waiting()
            with pytest.raises(NotReadyError):
                await commit
            with pytest.raises(NotReadyError):
                await one.commit()
    async with running(files, clock) as broker:
        one.broker = broker
        assert one.visible() == [[b"row"], [b"row"]]
        await one.commit()


@pytest.mark.parametrize("is_commit", [True, False], ids=["committed", "aborted"])
async def test_an_ended_member_writes_nothing_outside_of_transactions_either(is_commit: bool) -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()
        refuse_plain_batch(broker, one)
        if is_commit:
            await one.commit()
        else:
            await broker.transactions.abort_all(NAME, "")
        refuse_plain_batch(broker, one)
    async with running(files, clock) as broker:
        refuse_plain_batch(broker, one)


def refuse_plain_batch(broker: TransactionBroker, one: OneExecution) -> None:
    """Asserts that batches outside of transactions are refused under the member's id."""
    end = broker.log(one.tps[0]).ends.log_end_offset
    for sequence, epoch in ((0, 0), (1, 0), (0, 1)):
        batch = raw_batch(b"plain", producer=ProducerIdAndEpoch(one.member.producer_id, epoch), sequence=sequence)
        is_open = one.member.producer_id in broker.transactions.coordinator.open_members
        with pytest.raises(InvalidTxnStateError, match="is of a transaction, but its batch is not"):
            append_here(broker.log(one.tps[0]), batch, broker.broker.clock, is_open_member=is_open)
    assert broker.log(one.tps[0]).ends.log_end_offset == end


async def test_a_topic_that_is_deleted_and_created_again_meanwhile() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()
        (kept,) = await broker.topic("kept", 1)
        await broker.write(one.member, [Write(kept, b"kept")])
        await broker.broker.admin.run(broker.logs.changes.delete("t", broker.broker.forget_topic))
        again = await broker.topic()
        assert not {tp.topic_id for tp in again} & {tp.topic_id for tp in one.tps}
        asked = end_request(NAME, ONE, [(one.member, 3)], [*one.tps, kept], rows=3)
        await broker.transactions.commit(PRINCIPAL, asked)
        assert broker.visible(kept) == [b"kept"]
        assert stable(broker, again) == [0, 0]
        assert not broker.transactions.leaders.producer_ids
    async with running(files, clock) as broker:
        await broker.transactions.commit(PRINCIPAL, asked)
        assert broker.visible(kept) == [b"kept"]


@pytest.mark.parametrize("at", [20, 200], ids=["header", "payload"])
async def test_a_broker_does_not_start_without_all_of_its_log(at: int) -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()
        await one.commit()
    path = f"{COORDINATOR.id.hex()}-0/{0:020d}.log"
    damaged = bytearray(files.read_file(path))
    damaged[at] ^= 1
    files.write_file(path, bytes(damaged))
    with pytest.raises(DataDirectoryError, match=r"coordinator's log cannot be used.*`brokerd doctor`"):
        async with running(files, clock):
            raise AssertionError("it serves")


@pytest.mark.parametrize("are_at_work", [False, True])
async def test_others_have_their_turns_while_many_ids_may_be_forgotten_at_once(are_at_work: bool) -> None:
    """As JOB_KEPT_MS after a start, when all loaded ids expire together."""

    clock, count = ManualClock(), 400
    async with running(MemoryFiles(), clock) as broker:
        transactions = broker.transactions
        await transactions.log.make()
        for number in range(count):
            name = f"job-{number}"
            event = commit_of(Execution(0, "e", ""), one_write=True)
            transactions._record(name, PRINCIPAL, event)
            transactions._record(name, PRINCIPAL, CommitCompleted())
            if are_at_work:
                member = MemberOpened(member_id=b"m" * 16, producer_id=number, txn_version=1, timeout_ms=2 * JOB_KEPT_MS)
                transactions._record(name, PRINCIPAL, member)
        clock.advance(JOB_KEPT_MS)
        swept = asyncio.create_task(transactions.sweep())
        turns = 0
        while not swept.done():
            await one_turn()
            turns += 1
        assert len(transactions.coordinator.states) == (count if are_at_work else 0)
        assert turns > count // 20, "some are looked at between two turns of others"
