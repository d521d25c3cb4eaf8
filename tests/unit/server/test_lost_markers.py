"""Markers lost to damage after their transaction ended: how the next start decides records without a marker."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.coordinator.markers import Ending
from brokerd.datadir.node_state import DecidedMembers
from brokerd.errors import DataDirectoryError
from brokerd.ids import TopicIdPartition
from brokerd.internode.v1.internode_pb2 import OpenMemberData
from brokerd.offline.doctor import accept_damaged, check_data_dir, decide_members, give_up_damaged, take_out
from brokerd.offline.dump import describe_path
from brokerd.offline.partition_check import Finding, Severity
from brokerd.record.header import HEADER_SIZE, decode_header
from brokerd.server.coordinator.leaders import LostMarkers
from brokerd.server.coordinator.transactions import FIRST_MS
from brokerd.storage.files import RealFiles
from tests.support.build import raw_batch
from tests.support.clock import ManualClock
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.inner_broker import PRINCIPAL, TransactionBroker, Write, append_here, end_request, running
from tests.support.transaction_bench import Execution
from tests.unit.server.one_execution import NAME


@pytest.fixture
def compacting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the coordinator's log be compacted at any size."""
    monkeypatch.setattr("brokerd.server.coordinator.log.COMPACTION_MIN_BYTES", 1)


Repair = Callable[[str], list[Finding]]
repairs = pytest.mark.parametrize("repair", [accept_damaged, give_up_damaged])


class Scene:
    """A data directory on a disk: partition 0 of a topic holds a record of a member, its marker and a later record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.files = MemoryFiles()
        self.producer_id = -1  # of the first member

    @contextlib.asynccontextmanager
    async def before(self, **settings: int) -> AsyncIterator[TransactionBroker]:
        """The broker that writes the directory. At its end the files are as after a crash with everything durable."""
        async with running(self.files, self.clock, is_killed=False, **settings) as broker:
            self.tps = await broker.topic()
            yield broker
            self.append(broker, b"later")
        self.save()

    def save(self) -> None:
        """Writes the current files to the directory, except the clean-shutdown mark and snapshots."""
        for name in self.files.paths():
            if name != "clean-shutdown" and not name.endswith(".snapshot"):
                (self.path / name).parent.mkdir(exist_ok=True)
                (self.path / name).write_bytes(self.files.read_file(name))

    def append(self, broker: TransactionBroker, value: bytes) -> None:
        """Appends a batch outside of transactions to partition 0."""
        append_here(broker.log(self.tps[0]), raw_batch(value, timestamp_ms=self.clock.wall_ms()), self.clock)

    async def execution(
        self, broker: TransactionBroker, version: int, *partitions: int, ends: str = "commit", between: bytes = b""
    ) -> None:
        """Writes a member's record to each of these partitions, then `between` to partition 0 if given, and ends the member."""
        execution = Execution(version, f"execution {version}", "run")
        tps = [self.tps[partition] for partition in partitions]
        member = await broker.init(NAME, execution, bytes([version + 1]) * 16)
        if self.producer_id < 0:
            self.producer_id = member.producer_id
        await broker.write(member, [Write(tp, b"row %d" % version) for tp in tps])
        if between:
            self.append(broker, between)
        if ends == "commit":
            await broker.transactions.commit(PRINCIPAL, end_request(NAME, execution, [(member, len(tps))], tps, rows=len(tps)))
        elif ends == "abort":
            await broker.transactions.abort_all(NAME, "")

    async def aborted_without_marker_in(self, refusing: int, *partitions: int) -> None:
        """Aborts a member whose marker one partition refuses; compaction removes the member from the coordinator's log."""
        async with running(self.files, self.clock, is_killed=True) as broker:
            self.tps = await broker.topic()
            self.append(broker, b"before".ljust(32))
            await self.execution(broker, 0, *partitions, ends="nothing")
            with Gate(self.files, "pwritev", path=self.tps[refusing].directory_name, error=errno.ENOSPC):
                await broker.transactions.abort_all(NAME, "")
                await self.compact(broker)
            self.append(broker, b"later")
            await broker.broker.flusher.drain()
            broker.logs.write_checkpoint()
        self.save()

    async def forgotten(self, broker: TransactionBroker, *partitions: int, ends: str = "commit", between: bytes = b"") -> None:
        """An execution of which the coordinator's log keeps nothing. Needs `compacting`."""
        await self.execution(broker, 0, *partitions, ends=ends, between=between)
        if between:
            self.append(broker, between)
        await self.execution(broker, 1, 1)
        await self.compact(broker)

    async def compact(self, broker: TransactionBroker) -> None:
        """Replaces the coordinator's log by a state."""
        log = broker.coordinator_log
        await broker.transactions.compact()
        assert log.ends.log_start_offset > 0

    def rot(self, number: int, partition: int = 0) -> None:
        """Damages the batch with this number in a partition; each batch has one record."""
        self.rot_at(self.tps[partition], number)

    def rot_at(self, tp: TopicIdPartition, offset: int) -> None:
        """Damages the batch that holds an offset."""
        segment = self.path / f"{tp.directory_name}/{0:020d}.log"
        data = bytearray(segment.read_bytes())
        at = 0
        while (header := decode_header(bytes(data[at : at + HEADER_SIZE]))).next_offset <= offset:
            at += header.size
        data[at + HEADER_SIZE + 8] ^= 1
        segment.write_bytes(bytes(data))

    @contextlib.asynccontextmanager
    async def after(self) -> AsyncIterator[TransactionBroker]:
        """A broker restarted on the directory."""
        async with running(RealFiles(str(self.path)), self.clock) as broker:
            yield broker

    def outcome(self, broker: TransactionBroker, partition: int = 0) -> str:
        """The outcome of the first transaction in a partition, as readers of committed records see it."""
        log = broker.log(self.tps[partition])
        if log.ends.last_stable_offset < log.ends.log_end_offset:
            return f"waiting at {log.ends.last_stable_offset}"
        return "aborted" if log.core.aborted_transactions(0, 2) else "committed"


@repairs
async def test_the_last_commit_gets_its_marker_again(tmp_path: Path, repair: Repair, compacting: None) -> None:
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.execution(broker, 0, 0, 1)
        await scene.compact(broker)
    scene.rot(1)
    async with scene.after() as broker:
        assert broker.log(scene.tps[0]).damage is not None
    repair(str(tmp_path))
    async with scene.after() as broker:
        assert [scene.outcome(broker, partition) for partition in (0, 1)] == ["committed", "committed"]


async def test_the_members_of_a_commit_are_not_searched_for_each_piece_of_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacting: None
) -> None:
    """A search through ten thousand members for each of their pieces in each partition would take minutes."""

    class Unsearched(list[int]):
        def __contains__(self, _one: object) -> bool:
            raise AssertionError("a search through all members")

    committed = LostMarkers.committed

    def of_many(lost: LostMarkers, ended: list[int]) -> dict[Ending, list[int]]:
        return {ending: Unsearched(ids) for ending, ids in committed(lost, ended).items()}

    monkeypatch.setattr(LostMarkers, "committed", of_many)
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.execution(broker, 0, 0, 1)
    scene.rot(1)
    accept_damaged(str(tmp_path))
    async with scene.after() as broker:
        assert scene.outcome(broker) == "committed"


@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_a_partition_that_takes_no_marker_is_tried_less_and_less_often(
    tmp_path: Path, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.execution(broker, 0, 0, ends=ends)
    scene.rot(1)
    said = []
    async with scene.after() as broker:
        for _ in range(30):
            said.append(sum("not all of their markers are written" in message for message in caplog.messages))
            scene.clock.advance(FIRST_MS)
            await broker.transactions.sweep()
    assert said[:8] == [1, 2, 2, 2, 2, 2, 2, 3]
    assert said[-1] < 10
    accept_damaged(str(tmp_path))
    async with scene.after() as broker:
        assert scene.outcome(broker) == ("committed" if ends == "commit" else "aborted")


@repairs
async def test_an_aborted_member_stays_void(tmp_path: Path, repair: Repair) -> None:
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.execution(broker, 0, 0, ends="abort")
    scene.rot(1)
    assert not errors(repair(str(tmp_path)))
    async with scene.after() as broker:
        assert scene.outcome(broker) == "aborted"


@pytest.mark.parametrize("is_committed", [True, False])
@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_what_nobody_knows_waits_for_an_operator(
    tmp_path: Path, ends: str, is_committed: bool, caplog: pytest.LogCaptureFixture, compacting: None
) -> None:
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.forgotten(broker, 0, ends=ends)
    scene.rot(1)
    (error,) = errors(accept_damaged(str(tmp_path)))
    assert error == errors(check_data_dir(str(tmp_path)))[0]
    assert (error.partition, error.offset) == ("t-0", 0)
    assert f"producer {scene.producer_id} wrote records from offset 0 to 0" in error.message
    assert "offsets 1 to 1" in error.message
    for life in range(2):
        caplog.clear()
        async with scene.after() as broker:
            assert error.message in caplog.messages
            await broker.transactions.sweep()
            assert scene.outcome(broker) == "waiting at 0", "neither hidden nor shown"
            assert broker.transactions.undecided_count == 1
            await scene.execution(broker, 10 + life, 1)
    (note,) = decide_members(str(tmp_path), is_committed=is_committed)
    assert str(scene.producer_id) in note.message
    assert not errors(check_data_dir(str(tmp_path)))
    async with scene.after() as broker:
        assert scene.outcome(broker) == ("committed" if is_committed else "aborted")
        assert broker.transactions.undecided_count == 0
    with pytest.raises(DataDirectoryError, match="nothing to decide here"):
        decide_members(str(tmp_path), is_committed=is_committed)


@pytest.mark.parametrize("ends", ["commit", "abort"])
async def test_a_marker_in_another_partition_tells_it(tmp_path: Path, ends: str, compacting: None) -> None:
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.forgotten(broker, 0, 1, ends=ends)
    scene.rot(1)
    said = "committed" if ends == "commit" else "aborted"
    assert f"its marker in t-1 at offset 1 says that it was {said}" in errors(check_data_dir(str(tmp_path)))[-1].message
    assert not errors(accept_damaged(str(tmp_path)))
    async with scene.after() as broker:
        assert scene.outcome(broker) == said


async def test_a_segment_that_is_lost_with_the_marker(tmp_path: Path, compacting: None, capsys: pytest.CaptureFixture[str]) -> None:
    scene = Scene(tmp_path)
    async with scene.before(log_segment_bytes=4_096) as broker:
        await scene.forgotten(broker, 0, between=bytes(4_000))
    segments = sorted((tmp_path / scene.tps[0].directory_name).glob("*.log"))
    assert len(segments) > 3
    segments[2].unlink()  # it holds only the marker
    assert errors(accept_damaged(str(tmp_path)))
    async with scene.after() as broker:
        assert scene.outcome(broker) == "waiting at 0"
    arguments = ["doctor", str(tmp_path), "--member", str(scene.producer_id)]
    assert main([*arguments, "--decide", "commit"]) == 0
    assert f"the next start takes the records of producer {scene.producer_id} for committed" in capsys.readouterr().out
    assert main([*arguments, "--decide", "abort", "--accept-damaged"]) != 0
    assert "--decide excludes all other options" in capsys.readouterr().err
    assert main([*arguments, "--decode"]) != 0
    assert "--member needs --decide" in capsys.readouterr().err
    async with scene.after() as broker:
        assert scene.outcome(broker) == "committed"


async def test_a_partition_that_lost_nothing_and_has_no_marker_proves_that_there_was_no_commit(
    tmp_path: Path, compacting: None
) -> None:
    scene = Scene(tmp_path)
    await scene.aborted_without_marker_in(1, 0, 1)
    scene.rot(2)
    assert not errors(accept_damaged(str(tmp_path)))
    async with scene.after() as broker:
        assert [scene.outcome(broker, partition) for partition in (0, 1)] == ["aborted", "aborted"]


@pytest.mark.parametrize("is_taken_out", [False, True])
async def test_what_cannot_have_held_the_marker_is_no_reason_to_wait(tmp_path: Path, is_taken_out: bool, compacting: None) -> None:
    scene = Scene(tmp_path)
    await scene.aborted_without_marker_in(0, 0)
    if is_taken_out:
        take_out(str(tmp_path), "t-0", 2)
    else:
        scene.rot(0)
        accept_damaged(str(tmp_path))
    assert not errors(check_data_dir(str(tmp_path)))
    async with scene.after() as broker:
        assert scene.outcome(broker) == "aborted"


async def test_data_below_the_log_start_waits_for_nobody(tmp_path: Path, compacting: None) -> None:
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.forgotten(broker, 0)
        (error,) = await broker.broker.admin.run(broker.logs.retention.delete_records([(broker.log(scene.tps[0]), 2)]))
        assert error is None
        scene.append(broker, b"to rot".ljust(32))
    scene.rot(1)
    scene.rot(2)
    assert not errors(accept_damaged(str(tmp_path)))
    async with scene.after() as broker:
        log = broker.log(scene.tps[0])
        assert log.ends.last_stable_offset == log.ends.log_end_offset, "nothing of it can be read"


async def test_the_doctor_reads_a_damaged_log_of_the_transactions_as_a_start_does(
    tmp_path: Path, compacting: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("brokerd.coordinator.transaction_coordinator.PIECE_BYTES_MAX", 1)

    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.forgotten(broker, 0)
        log = broker.coordinator_log
        piece = log.ends.log_start_offset
    scene.rot(1)
    scene.rot_at(log.tp, piece)  # the first piece of the state, with members of the last commit
    (error,) = errors(accept_damaged(str(tmp_path)))
    assert error == errors(check_data_dir(str(tmp_path)))[0]
    async with scene.after() as broker:
        assert error.message in caplog.messages
        assert scene.outcome(broker) == "waiting at 0"


async def test_a_topic_that_is_deleted_needs_no_decision(tmp_path: Path, compacting: None) -> None:
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.forgotten(broker, 0)
    scene.rot(1)
    accept_damaged(str(tmp_path))
    async with scene.after() as broker:
        assert broker.transactions.undecided_count == 1
        await broker.broker.admin.run(broker.logs.changes.delete("t"))
        broker.broker.members.forget(scene.tps[0])
        assert broker.transactions.undecided_count == 0


async def test_only_what_is_undecided_can_be_decided(tmp_path: Path, compacting: None) -> None:
    scene = Scene(tmp_path)
    async with scene.before() as broker:
        await scene.forgotten(broker, 0)
    scene.rot(1)
    with pytest.raises(DataDirectoryError, match="nothing to decide on producer 7"):
        decide_members(str(tmp_path), [scene.producer_id, 7], is_committed=True)
    decide_members(str(tmp_path), is_committed=True)
    decide_members(str(tmp_path), is_committed=False)
    accept_damaged(str(tmp_path))
    (decided,) = describe_path(str(tmp_path / "decided-members"))
    assert (decided["committed"], decided["aborted"]) == ([], [scene.producer_id])
    (tmp_path / "decided-members").write_bytes(b"rotten")
    async with scene.after() as broker:
        assert scene.outcome(broker) == "waiting at 0"


def errors(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.ERROR]


async def test_a_partition_whose_leader_answers_late_proves_that_there_was_no_commit() -> None:
    """As after a power cut in a cluster, where the coordinator's node is up before the others."""
    lost_markers = LostMarkers(DecidedMembers())
    damaged = OpenMemberData(topic_id=bytes(16), producer_id=7, end_offset=1, is_readable=True, lost_from=1, lost_until=2)
    whole = OpenMemberData(topic_id=bytes(16), partition=1, producer_id=7, end_offset=1, is_readable=True, lost_from=-1)
    await lost_markers.find([7], [damaged], list, str)
    assert (lost_markers.undecided([7]), lost_markers.void([7])) == ([7], [])
    await lost_markers.find([7], [damaged], list, str)
    assert lost_markers.undecided([7]) == [7], "it has not answered yet"
    await lost_markers.find([7], [damaged, whole], list, str)
    assert (lost_markers.undecided([7]), lost_markers.void([7])) == ([], [7])
