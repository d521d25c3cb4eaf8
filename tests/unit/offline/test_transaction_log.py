"""Transactions in the coordinator's log, as shown by `brokerd dump-log` and checked by `brokerd doctor`."""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.coordinator import records as transaction_records
from brokerd.coordinator.group_table import NO_OFFSET
from brokerd.coordinator.records import record_of
from brokerd.coordinator.transaction_coordinator import StateWriter
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import DataDirectoryError
from brokerd.offline.doctor import check_data_dir, rebuild_checkpoint
from brokerd.server.coordinator import log as coordinator_log
from brokerd.server.coordinator.groups import AskedOffsets
from brokerd.storage.files import RealFiles
from brokerd.wire.v1.coordinator_log_pb2 import CommitCompleted, StateBegins
from tests.support.clock import ManualClock
from tests.support.findings import coordinator_segment, errors_in, flip
from tests.support.group_offsets import committed
from tests.support.inner_broker import PRINCIPAL, Write, end_request, running
from tests.support.transaction_bench import Execution, commit_of

NAME = "spark-q"
SEGMENT_BYTES = 6_000


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A cleanly closed directory: version 0 committed with one member, and an open member of version 1."""

    async def scenario() -> None:
        async with running(RealFiles(str(tmp_path)), ManualClock()) as broker:
            first, second = Execution(0, "one", "run"), Execution(1, "two", "run")
            tps = await broker.topic()
            member = await broker.init(NAME, first, b"m" * 16)
            await broker.write(member, [Write(tp, b"row") for tp in tps])
            offsets = [committed(tps[0], 1, -1, "so far")]
            asked = AskedOffsets("g", PRINCIPAL, lambda: offsets, {tps[0]: NO_OFFSET})
            await broker.transactions.commit(PRINCIPAL, end_request(NAME, first, [(member, 2)], tps, rows=2), asked)
            await broker.init(NAME, second, b"n" * 16)

    asyncio.run(scenario())
    return tmp_path


def test_records_are_shown_decoded(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump-log", str(coordinator_segment(data_dir)), "--print-data", "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    records = [record for entry in entries for record in entry.get("records", ())]
    reserved = records.pop(0)
    assert (reserved["event"], reserved["limit"]) == ("ProducerIdsReserved", 1_000)
    offsets = records.pop(2)
    assert (offsets["event"], offsets["group_id"], offsets["offsets"][0]["offset"]) == ("OffsetsCommitted", "g", 1)
    assert [record["event"] for record in records] == ["MemberOpened", "CommitPrepared", "CommitCompleted", "MemberOpened"]
    assert {record["transactional_id"] for record in records} == {NAME}
    assert (records[1]["txn_version"], records[1]["execution_id"], records[1]["run_id"]) == (0, "one", "run")
    assert records[1]["committed_producer_ids"] == [records[0]["producer_id"]]
    assert records[1]["totals"]["rows"] == 2
    assert main(["dump-log", str(coordinator_segment(data_dir)), "--print-data"]) == 0
    shown = capsys.readouterr().out
    assert f'transactional id "{NAME}" of "anybody", CommitCompleted: txn_version 0\n' in shown
    assert ", ProducerIdsReserved: limit 1000\n" in shown


def test_a_healthy_log_has_no_findings(data_dir: Path) -> None:
    assert check_data_dir(str(data_dir)) == []


def test_damage_says_that_the_broker_does_not_start_and_what_accepting_means(data_dir: Path) -> None:
    path = coordinator_segment(data_dir)
    flip(path, path.stat().st_size // 2)
    damage, consequence = errors_in(data_dir)
    assert "durable and are damaged" in damage.message
    assert consequence.partition == "__coordinator-0"
    assert "the broker does not start" in consequence.message
    assert "may be written a second time" in consequence.message


def test_records_of_a_later_version_are_found_and_shown_as_such(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transaction_records, "VERSION", 2)
    first, *_, consequence = errors_in(data_dir)
    assert "has version 1; this broker reads 2" in first.message
    assert "the broker does not start" in consequence.message
    assert main(["dump-log", str(coordinator_segment(data_dir)), "--print-data"]) == 0
    assert "PROBLEM: a record of the coordinator's log has version 1" in capsys.readouterr().out


def test_a_lost_checkpoint_keeps_a_broker_with_transactions_from_starting(data_dir: Path) -> None:
    async def start() -> None:
        async with running(RealFiles(str(data_dir)), ManualClock()):
            pass

    (data_dir / "checkpoint").unlink()
    assert any("the broker does not start" in error.message for error in errors_in(data_dir))
    with pytest.raises(DataDirectoryError, match=r"__coordinator: .*checkpoint"):
        asyncio.run(start())


def test_a_broker_starts_with_a_rebuilt_checkpoint_wherever_its_first_segment_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuilt checkpoint lacks the log start, so the log may begin inside an older state, whose first part has been removed."""
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 1)
    monkeypatch.setattr(StateWriter, "pieces", functools.partialmethod(StateWriter.pieces, 2))
    monkeypatch.setitem(COORDINATOR.configs, "segment.bytes", str(SEGMENT_BYTES))
    clock, begins_in_state = ManualClock(), []

    async def commits(version: int) -> None:
        """Commits `version` of one id (version 0: of ten ids), then compacts the log."""
        async with running(RealFiles(str(tmp_path)), clock) as broker:
            transactions = broker.transactions
            await transactions.log.make()
            for number in range(1 if version else 10):
                one = commit_of(Execution(version, "e", "r"))
                transactions._record(f"id-{number}", PRINCIPAL, one)
                transactions._record(f"id-{number}", PRINCIPAL, CommitCompleted(txn_version=version))
            transactions.log._state_bytes = 0  # so has_grown() is true
            await transactions.compact()

    async def versions() -> list[int]:
        async with running(RealFiles(str(tmp_path)), clock) as broker:
            first = next(broker.transactions.log.read())
            begins_in_state.append(first is not None and first.in_state)
            return [state.last_version for state in broker.transactions.coordinator.states.values()]

    for version in range(4):
        asyncio.run(commits(version))
        (tmp_path / "checkpoint").unlink()
        rebuild_checkpoint(str(tmp_path))
        assert sorted(asyncio.run(versions())) == [0] * 9 + [version]
    assert any(begins_in_state), "a segment begins there"


def test_a_log_that_no_start_can_use_is_an_error_though_all_its_batches_are_whole(tmp_path: Path) -> None:
    """Happens if the checkpoint is rebuilt while part of a state is damaged: the log then ends before that part."""

    async def scenario() -> None:
        async with running(RealFiles(str(tmp_path)), ManualClock()) as broker:
            log = broker.transactions.log
            await log.make()
            log.append([record_of("", "", 1, StateBegins())])
            await log.durable()

    asyncio.run(scenario())
    (error,) = errors_in(tmp_path)
    assert "a state without its end" in error.message
    assert "the broker does not start" in error.message
    assert error.partition == "__coordinator-0"
