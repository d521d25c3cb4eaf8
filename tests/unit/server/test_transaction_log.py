"""Compaction of the coordinator's log: in pieces, between other events, on disks that refuse writes, interrupted anywhere."""

from __future__ import annotations

import asyncio
import copy
import errno
import functools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from brokerd.coordinator.records import decode
from brokerd.coordinator.transaction_coordinator import StateWriter
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import NotEnoughReplicasError, StorageError, WireError
from brokerd.offline.doctor import accept_damaged
from brokerd.partition.core import InSync
from brokerd.partition.partition import Partition
from brokerd.record.batch import values_of, walk_batches
from brokerd.server.coordinator import log as coordinator_log
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.steps import Steps
from brokerd.storage.files import RealFiles
from brokerd.wire.v1.coordinator_log_pb2 import (
    CommitCompleted,
    CommitPrepared,
    CoordinatorRecord,
    MemberOpened,
    TransactionalIdForgotten,
)
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.inner_broker import PRINCIPAL, TransactionBroker, end_request, running
from tests.support.transaction_bench import Execution, commit_of, known_of, totals
from tests.support.wait import DEADLINE_S

IDS = 6
PIECES = IDS + 1  # two entries per id on average; the last piece is the end
DIRECTORY = f"{COORDINATOR.id.hex()}-0"
SEGMENT = f"{DIRECTORY}/{0:020d}.log"
MEMBER = MemberOpened(member_id=b"m" * 16, producer_id=7, txn_version=1, execution_id="e1", owner="task", timeout_ms=60_000)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of two entries. Any log may be compacted, whatever its size."""
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 1)
    monkeypatch.setattr(StateWriter, "pieces", functools.partialmethod(StateWriter.pieces, 2))


async def filled(broker: TransactionBroker, ids: int = IDS) -> None:
    """Records ids with a committed version; the first has an open member, the last is prepared."""
    transactions = broker.transactions
    await transactions.log.make()
    for number in range(ids):
        commit(broker, f"id-{number}", 0, is_complete=number < ids - 1)
    transactions._record("id-0", PRINCIPAL, MEMBER)
    await transactions.log.durable()


def commit(broker: TransactionBroker, name: str, version: int, *, is_complete: bool = True) -> None:
    """Records a version without members."""
    broker.transactions._record(name, PRINCIPAL, commit_of(Execution(version, "e", "r"), totals=totals(1)))
    if is_complete:
        broker.transactions._record(name, PRINCIPAL, CommitCompleted(txn_version=version))


def known(broker: TransactionBroker) -> list[object]:
    return known_of(broker.transactions.coordinator)


class AfterPieces:
    """Calls `act` with the number of each piece of a state that has been appended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
        self.pieces = 0
        append = CoordinatorLog._append

        def noted(log: CoordinatorLog, records: Sequence[CoordinatorRecord]) -> None:
            append(log, records)
            if records[0].HasField("state_begins"):
                self.pieces = 0
            if records[-1].in_state or records[-1].HasField("state_ends"):
                self.pieces += 1
                act(self.pieces)

        monkeypatch.setattr(CoordinatorLog, "_append", noted)


async def test_a_state_of_many_pieces_takes_the_place_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        await filled(broker)
        before, end = known(broker), broker.coordinator_log.ends.log_end_offset
        after = AfterPieces(monkeypatch, lambda _number: None)
        await broker.transactions.compact()
        assert after.pieces == PIECES
        assert broker.coordinator_log.ends.log_start_offset == end
        assert not broker.transactions.log.has_grown()
        assert known(broker) == before
    async with running(files, clock) as broker:
        assert [state.last_version for state in broker.transactions.coordinator.states.values()] == [0] * IDS


async def test_the_end_of_a_commit_is_recorded_before_the_next_event_a_state_or_a_stop() -> None:
    files, clock, written = MemoryFiles(), ManualClock(), Execution(0, "e", "r")
    async with running(files, clock) as broker:
        transactions = broker.transactions

        async def one_commit(number: int) -> None:
            name = f"id-{number}"
            member = await broker.init(name, written, bytes([number]) * 16)
            await transactions.commit(PRINCIPAL, end_request(name, written, [(member, 0)]))

        for number in (1, 2):
            await one_commit(number)
        assert events_in(broker)[1:] == ["member_opened", "commit_prepared", "commit_completed", "member_opened", "commit_prepared"]
        await transactions.compact()
        assert events_in(broker)[0] == "state_begins"
        await one_commit(3)
    assert events_in(broker)[-3:] == ["member_opened", "commit_prepared", "commit_completed"]


async def test_a_disk_that_refuses_a_waiting_entry_delays_the_compaction() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        await filled(broker)
        transactions = broker.transactions
        transactions._record_completed(f"id-{IDS - 1}", PRINCIPAL, CommitPrepared(txn_version=0))

        def refuse(operation: str, path: str) -> None:
            if operation == "pwritev" and path == SEGMENT:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        files.hook = refuse
        await transactions.compact()
        files.hook = None
        assert not transactions.log.has_grown(), "not before it is twice as large"


async def test_entries_wait_for_the_next_batch_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_log, "_LATE_MAX", 2)
    async with running(MemoryFiles(), ManualClock()) as broker:
        await broker.transactions.log.make()
        for number in range(3):
            commit(broker, f"id-{number}", 0, is_complete=False)
        before = len(events_in(broker))
        for number, recorded in enumerate((0, 2, 2)):
            broker.transactions._record_completed(f"id-{number}", PRINCIPAL, CommitPrepared(txn_version=0))
            assert len(events_in(broker)) == before + recorded


async def test_nothing_is_decided_while_too_few_copies_are_in_sync() -> None:
    written = Execution(0, "e", "r")
    async with running(MemoryFiles(), ManualClock()) as broker:
        member = await broker.init("id", written, b"m" * 16)
        request = end_request("id", written, [(member, 0)])
        before = events_in(broker)
        broker.coordinator_log.set_in_sync(InSync(members=1, replicas=3))
        with pytest.raises(NotEnoughReplicasError, match="1 of 3 replicas are in sync"):
            async with asyncio.timeout(DEADLINE_S):
                await broker.transactions.commit(PRINCIPAL, request)
        assert events_in(broker) == before
        broker.coordinator_log.set_in_sync(InSync(members=3, replicas=3))
        await broker.transactions.commit(PRINCIPAL, request)


def events_in(broker: TransactionBroker) -> list[str]:
    """The kinds of the events in the log."""
    return [record.WhichOneof("event") or "" for record in broker.transactions.log.read() if record is not None]


@pytest.mark.parametrize("at", range(1, PIECES + 1))
async def test_events_between_the_pieces_are_read_again_as_they_were(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        await filled(broker)

        def act(number: int) -> None:
            if number == at:
                for name in ("id-0", "id-3", "new"):
                    commit(broker, name, 2)
                broker.transactions._record("id-1", PRINCIPAL, TransactionalIdForgotten())
                broker.transactions._record("id-4", PRINCIPAL, TransactionalIdForgotten())
            elif number == at + 1:
                commit(broker, "id-4", 5)

        AfterPieces(monkeypatch, act)
        await broker.transactions.compact()
        await broker.transactions.log.durable()
        assert broker.coordinator_log.ends.log_start_offset > 0
        before = known(broker)
    files.kill()
    async for again in loaded(files, clock):
        assert known(again) == before


async def loaded(files: MemoryFiles, clock: ManualClock) -> AsyncIterator[TransactionBroker]:
    """A broker that has read the log, and whose sweep finishes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brokerd.server.coordinator.transactions.Transactions.sweep", _nothing)
        async with running(files, clock, is_killed=True) as broker:
            yield broker


async def _nothing(_self: object) -> None:
    return


async def test_cut_off_at_any_piece_the_log_says_what_it_said_there() -> None:
    """A kill leaves the last batch torn, whole, or followed by a fragment. Later events and the next state follow it."""

    files, clock = MemoryFiles(), ManualClock()
    said: list[tuple[int, list[object]]] = []  # size of the log, and what was known at that size
    async with running(files, clock, is_killed=True) as broker:
        await filled(broker)

        def note() -> None:
            said.append((broker.coordinator_log.segments[-1].size_bytes, known(broker)))

        def act(number: int) -> None:
            note()
            for name in (f"id-{number % IDS}", "new")[: 1 + number % 2]:
                commit(broker, name, number, is_complete=False)
                note()

        note()
        with pytest.MonkeyPatch.context() as patch:
            AfterPieces(patch, act)
            patch.setattr(broker.logs.retention, "give_up_below", refusing)
            await broker.transactions.compact()
    assert len(said) > 2 * IDS
    content = files.read_file(SEGMENT)
    for size, _ in said:
        for cut in (size - 1, size, size + 1):
            cut_off = copy.deepcopy(files)
            cut_off.write_file(SEGMENT, content[:cut])
            cut_off.kill()
            expected = [known_then for size_then, known_then in said if size_then <= cut]
            await check_cut(cut_off, clock, expected[-1] if expected else None)


def refusing(_log: Partition, _offset: int) -> Steps[WireError]:
    """Leaves the log start where it is, as if the process had been killed before it moved."""
    yield lambda: None
    return StorageError("no space")


async def check_cut(files: MemoryFiles, clock: ManualClock, expected: list[object] | None) -> None:
    """Everything known is loaded again, over three starts; at each an event, a state and another event are appended."""
    before = expected
    for _ in range(3):
        async for broker in loaded(files, clock):
            assert before is None or known(broker) == before
            commit(broker, "behind", broker.transactions.log._end_offset)
            await broker.transactions.compact()
            commit(broker, "behind", broker.transactions.log._end_offset)
            await broker.transactions.log.durable()
            before = known(broker)
        files.kill()


async def test_a_disk_that_refuses_a_piece_leaves_the_log_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(refused: int) -> int:
        files, clock = MemoryFiles(), ManualClock()
        async with running(files, clock, is_killed=True) as broker:
            await filled(broker)
            writes = 0

            def hook(operation: str, path: str) -> None:
                nonlocal writes
                if operation == "pwritev" and path == SEGMENT:
                    writes += 1
                    if writes == refused:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

            files.hook = hook
            await broker.transactions.compact()
            files.hook = None
            if writes < refused:
                return writes
            assert "cannot be compacted: " in caplog.text
            assert broker.coordinator_log.ends.log_start_offset == 0
            commit(broker, "id-0", 3)
            await broker.transactions.log.durable()
            assert not broker.transactions.log.has_grown(), "not before it is twice as large"
            before = known(broker)
        files.kill()
        async for again in loaded(files, clock):
            assert known(again) == before
            await again.transactions.compact()
            assert again.coordinator_log.ends.log_start_offset > 0
            commit(again, "id-0", 4)
            await again.transactions.log.durable()
            before = known(again)
        files.kill()
        async for again in loaded(files, clock):
            assert known(again) == before
        return 0

    refused = 1
    while not (writes := await scenario(refused)):
        refused += 1
    assert writes == PIECES, "all pieces were refused, one by one"


async def test_a_disk_that_cannot_sync_a_state_stops_the_log(caplog: pytest.LogCaptureFixture) -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock, is_killed=True) as broker:
        await filled(broker)
        before = known(broker)
        with Gate(files, "fdatasync", path=DIRECTORY, error=errno.EIO):
            await broker.transactions.compact()
        assert "cannot be compacted: " in caplog.text
        assert broker.coordinator_log.ends.log_start_offset == 0
    files.kill()
    async for again in loaded(files, clock):
        assert known(again) == before


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_nothing_is_given_up_before_the_state_is_durable(is_stopped: bool) -> None:
    """A stop before that leaves the log unchanged."""

    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        await filled(broker)
        with Gate(files, "fdatasync", path=DIRECTORY) as gate:
            compacting = asyncio.create_task(broker.transactions.compact())
            await asyncio.to_thread(gate.wait_until_reached)
            assert broker.coordinator_log.ends.log_start_offset == 0
            if is_stopped:
                compacting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await compacting
        if not is_stopped:
            await compacting
        commit(broker, "id-0", 3)
        before = known(broker)
    async for again in loaded(files, clock):
        assert (again.coordinator_log.ends.log_start_offset == 0) is is_stopped
        assert known(again) == before
        await again.transactions.compact()
        assert again.coordinator_log.ends.log_start_offset > 0


async def test_others_have_their_turn_while_a_state_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get a turn after a few hundred entries, however many the state has."""

    async with running(MemoryFiles(), ManualClock()) as broker:
        await filled(broker, 500)
        loop, is_over = asyncio.get_running_loop(), False
        in_a_row = longest = 0

        def others() -> None:
            nonlocal in_a_row
            in_a_row = 0
            if not is_over:
                loop.call_soon(others)

        def act(_number: int) -> None:
            nonlocal in_a_row, longest
            in_a_row += 1
            longest = max(longest, in_a_row)

        others()
        after = AfterPieces(monkeypatch, act)
        await broker.transactions.compact()
        is_over = True
        assert after.pieces == 501
        assert longest <= 100


async def test_a_state_of_no_ids() -> None:
    files, clock = MemoryFiles(), ManualClock()
    async with running(files, clock) as broker:
        await broker.transactions.compact()  # there is no log
        await broker.transactions.log.make()
        await broker.transactions.compact()  # it is empty
        await filled(broker)
        for name in list(broker.transactions.coordinator.states):
            broker.transactions._record(name, PRINCIPAL, TransactionalIdForgotten())
        await broker.transactions.compact()
        assert broker.coordinator_log.ends.log_end_offset - broker.coordinator_log.ends.log_start_offset == 2
    async with running(files, clock) as broker:
        assert not broker.transactions.coordinator.states


@pytest.mark.parametrize("lost", range(PIECES))
async def test_a_piece_that_damage_took_is_given_up_alone(tmp_path: Path, lost: int) -> None:
    """An operator has accepted the damage. The other pieces and all later events count, since nothing precedes the state."""

    clock = ManualClock()
    async with running(RealFiles(str(tmp_path)), clock) as broker:
        await filled(broker)
        begin = broker.coordinator_log.segments[-1].size_bytes
        await broker.transactions.compact()
        end = broker.coordinator_log.segments[-1].size_bytes
        commit(broker, "id-0", 3)
        commit(broker, "behind", 3)
    data = bytearray((tmp_path / SEGMENT).read_bytes())
    batches = list(walk_batches(pa.py_buffer(bytes(data[begin:end]))))
    assert len(batches) == PIECES
    data[begin + sum(batch.data.size for batch in batches[: lost + 1]) - 1] ^= 1
    (tmp_path / SEGMENT).write_bytes(data)
    accept_damaged(str(tmp_path))
    left = [decode(value) for number, batch in enumerate(batches) for value in values_of(batch) if number != lost]
    committed = {record.transactional_id for record in left if record.HasField("commit_prepared")}
    async with running(RealFiles(str(tmp_path)), clock) as broker:
        states = broker.transactions.coordinator.states
        assert set(states) == committed | {"id-0", "behind"}
        assert (states["id-0"].last_version, states["behind"].last_version) == (3, 3)
