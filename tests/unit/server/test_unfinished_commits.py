"""Decided commits that cannot be finished: visible nowhere, over restarts too, until all partitions have their markers."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from brokerd.errors import AlreadyCommittedError, StorageError
from brokerd.ids import TopicIdPartition
from brokerd.offline.doctor import accept_damaged, give_up_damaged
from brokerd.offline.partition_check import Finding
from brokerd.server.coordinator.transactions import FIRST_MS, MAX_MS
from brokerd.server.handlers import transaction_admin
from brokerd.server.security.topic_authorizer import ANYBODY, Principal, TopicAuthorizer, TopicRights
from brokerd.storage.files import RealFiles
from brokerd.wire.v1 import transaction_pb2
from tests.support.build import raw_batch
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.inner_broker import PRINCIPAL, TransactionBroker, Write, append_here, end_request, running
from tests.support.transaction_bench import Execution
from tests.unit.server.one_execution import NAME, ONE, OneExecution, stable


def no_space(files: MemoryFiles, tp: TopicIdPartition) -> Gate:
    """Lets a partition refuse further batches."""
    return Gate(files, "pwritev", path=tp.directory_name, error=errno.ENOSPC)


async def prepared_with_one_marker(files: MemoryFiles, clock: ManualClock) -> OneExecution:
    """A prepared commit of a stopped broker: one partition has its marker, the other refused it."""
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()
        with no_space(files, one.tps[1]), pytest.raises(StorageError, match="is committed, but not visible yet"):
            await one.commit()
        assert [broker.log(tp).ends.log_end_offset for tp in one.tps] == [2, 1]
        return one


async def committed_elsewhere(broker: TransactionBroker, version: int) -> list[bytes]:
    """Commits a version of another query to another topic; returns all that readers see there."""
    (other,) = await broker.topic("other", 1)
    execution = Execution(version, f"another {version}", "run")
    member = await broker.init("another", execution, bytes([version]) * 16)
    await broker.write(member, [Write(other, b"row")])
    await broker.transactions.commit(PRINCIPAL, end_request("another", execution, [(member, 1)], [other], rows=1))
    return broker.visible(other)


async def test_a_start_that_cannot_finish_a_commit_shows_it_nowhere_until_a_start_can() -> None:
    files, clock = MemoryFiles(), ManualClock()
    one = await prepared_with_one_marker(files, clock)
    for life in range(2):
        with no_space(files, one.tps[1]):
            async with running(files, clock) as broker:
                one.broker = broker
                assert stable(broker, one.tps) == [0, 0], "the marker of one of them was written before the start"
                assert one.visible() == [[], []]
                assert await committed_elsewhere(broker, life) == [b"row"] * (life + 1), "others are served meanwhile"
                with pytest.raises(AlreadyCommittedError):
                    await broker.init(NAME, Execution(0, "twin", "another run"), b"t" * 16)
                with pytest.raises(StorageError, match="is committed, but not visible yet"):
                    await one.commit()
    async with running(files, clock) as broker:
        one.broker = broker
        assert one.visible() == [[b"row"], [b"row"]]
        await one.commit()


async def test_what_a_start_could_not_finish_the_sweep_does_in_one_step(caplog: pytest.LogCaptureFixture) -> None:
    files, clock = MemoryFiles(), ManualClock()
    one = await prepared_with_one_marker(files, clock)
    async with refusing(files, clock, one) as broker:
        assert "If one of them will never take a marker again" in caplog.text
        clock.advance(FIRST_MS)
        await broker.transactions.sweep()
        assert one.visible() == [[b"row"], [b"row"]]
        assert not broker.transactions.coordinator.prepared()


async def test_a_partition_that_never_takes_its_marker_is_given_up_by_deleting_its_topic() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        one = await OneExecution(broker).begin()
        (kept,) = await broker.topic("kept", 1)
        await broker.write(one.member, [Write(kept, b"kept")])
        with no_space(files, one.tps[1]), pytest.raises(StorageError):
            await broker.transactions.commit(PRINCIPAL, end_request(NAME, ONE, [(one.member, 3)], [*one.tps, kept], rows=3))
    async with refusing(files, clock, one) as broker:
        assert stable(broker, [kept]) == [0]
        await broker.broker.admin.run(broker.logs.changes.delete("t"))
        clock.advance(FIRST_MS)
        await broker.transactions.sweep()
        assert broker.visible(kept) == [b"kept"]


@pytest.mark.parametrize("repair", [accept_damaged, give_up_damaged])
async def test_a_damaged_partition_takes_its_marker_once_an_operator_has_decided(
    tmp_path: Path, repair: Callable[[str], list[Finding]]
) -> None:
    clock = ManualClock()
    one = await damaged_after_a_decision(tmp_path, clock)
    async with running(RealFiles(str(tmp_path)), clock) as broker:
        one.broker = broker
        assert broker.log(one.tps[1]).damage is not None
        assert stable(broker, one.tps)[0] == 0
        with pytest.raises(StorageError, match=r"is committed, but not visible yet: .*damage"):
            await one.commit()
    assert repair(str(tmp_path))
    async with running(RealFiles(str(tmp_path)), clock) as broker:
        assert broker.visible(one.tps[0]) == [b"row"]
        assert broker.log(one.tps[1]).ends.last_stable_offset == broker.log(one.tps[1]).ends.log_end_offset
        assert not broker.transactions.coordinator.prepared()


async def damaged_after_a_decision(path: Path, clock: ManualClock) -> OneExecution:
    """A directory with a prepared commit: one partition has its marker, the other refused it and has a damaged first batch."""
    files = MemoryFiles()
    async with running(files, clock) as broker:
        tps = await broker.topic()
        append_here(broker.log(tps[1]), raw_batch(b"to rot"), clock)
        one = await OneExecution(broker).begin()
        with no_space(files, one.tps[1]), pytest.raises(StorageError):
            await one.commit()
    for name in files.paths():
        if name != "clean-shutdown":  # without it, the start reads everything again
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(files.read_file(name))
    segment = path / f"{one.tps[1].directory_name}/{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[20] ^= 1
    segment.write_bytes(bytes(data))
    return one


async def test_an_operator_finds_what_holds_back_readers() -> None:
    files, clock = MemoryFiles(), ManualClock()
    one = await prepared_with_one_marker(files, clock)
    async with refusing(files, clock, one) as broker:
        clock.advance(FIRST_MS)
        expected = [(tp.partition, 0, -1, NAME, FIRST_MS) for tp in one.tps]
        assert await hanging(broker, ANYBODY, FIRST_MS) == expected, "also where the marker is written"
        assert await hanging(broker, ANYBODY, FIRST_MS + 1) == []
        assert await hanging(broker, Principal("stranger", TopicRights({})), 0) == []
        await broker.transactions.sweep()
        assert await hanging(broker, ANYBODY, 0) == []


async def hanging(broker: TransactionBroker, principal: Principal, idle_ms: int) -> list[tuple[int, int, int, str, int]]:
    """Partition, first offset, producer id, transactional id and idle time (ms) of each transaction that holds back readers."""
    authorizer = TopicAuthorizer(principal, broker.logs.topics)
    request = transaction_pb2.FindHangingTransactionsRequest(idle_ms=idle_ms)
    response = await transaction_admin.find_hanging_transactions(broker.broker, authorizer, request)
    return [
        (one.partition.partition, one.partition.first_offset, one.producer_id, one.transactional_id, one.idle_ms)
        for one in response.transactions
    ]


async def test_a_state_of_everything_knows_what_a_commit_holds_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.server.coordinator.log.COMPACTION_MIN_BYTES", 1)

    files, clock = MemoryFiles(), ManualClock()
    one = await prepared_with_one_marker(files, clock)
    for _ in range(2):
        async with refusing(files, clock, one) as broker:
            assert stable(broker, one.tps) == [0, 0]
            await broker.transactions.compact()
            log = broker.coordinator_log
            assert log.ends.log_start_offset > 0


@contextlib.asynccontextmanager
async def refusing(files: MemoryFiles, clock: ManualClock, one: OneExecution) -> AsyncIterator[TransactionBroker]:
    """A broker that could not finish the commit at its start, but can now."""
    gate = no_space(files, one.tps[1])
    gate.__enter__()
    async with running(files, clock) as broker:
        gate.__exit__(None, None, None)
        one.broker = broker
        assert stable(broker, one.tps) == [0, 0]
        yield broker


async def test_a_sweep_tries_again_after_ten_seconds_and_then_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    files, clock = MemoryFiles(), ManualClock()
    one = await prepared_with_one_marker(files, clock)
    async with refusing(files, clock, one) as broker:
        began_ms, attempts = clock.monotonic_ms(), list[int]()

        async def refused(*_: object) -> None:
            attempts.append(clock.monotonic_ms() - began_ms)
            raise StorageError("no space")

        with monkeypatch.context() as patch:
            patch.setattr(broker.transactions.leaders, "write_markers", refused)
            for _ in range(14):
                await broker.transactions.sweep()
                clock.advance(FIRST_MS)
        assert attempts == [FIRST_MS, FIRST_MS + MAX_MS, FIRST_MS + 2 * MAX_MS]
