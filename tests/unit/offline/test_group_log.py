"""Group offsets in the coordinator's log, as shown by `brokerd dump-log`, checked by `brokerd doctor` and kept by a rebuild."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.datadir.topic_store import COORDINATOR
from brokerd.errors import DataDirectoryError
from brokerd.offline.doctor import accept_damaged, rebuild_checkpoint, take_out
from brokerd.offline.rebuild import rebuild_lost
from brokerd.server.coordinator import log as coordinator_log
from brokerd.storage.files import RealFiles
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord
from tests.support.clock import ManualClock
from tests.support.findings import coordinator_segment, errors_in, flip
from tests.support.group_offsets import committed
from tests.support.inner_broker import running

ANN = "ann"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A cleanly closed directory: group g committed, deleted one offset and was deleted; group h committed."""

    async def scenario() -> None:
        async with running(RealFiles(str(tmp_path)), ManualClock()) as broker:
            first, second = await broker.topic()
            offsets = [committed(first, 0, 1, "so far", 5), committed(second)]
            await broker.groups.commit("g", ANN, offsets)
            await broker.groups.delete_offsets("g", [second])
            await broker.groups.delete("g")
            await broker.groups.commit("h", ANN, offsets[:1])

    asyncio.run(scenario())
    return tmp_path


def test_records_are_shown_decoded(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump-log", str(coordinator_segment(data_dir)), "--print-data", "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    records = [record for entry in entries for record in entry.get("records", ())]
    assert [record["event"] for record in records] == ["OffsetsCommitted", "OffsetsDeleted", "GroupDeleted", "OffsetsCommitted"]
    assert [record["group_id"] for record in records] == ["g", "g", "g", "h"]
    first = records[0]["offsets"][0]
    assert (first["partition"], first["offset"], first["leader_epoch"], first["metadata"]) == (0, 0, 1, "so far")
    assert main(["dump-log", str(coordinator_segment(data_dir)), "--print-data"]) == 0
    assert 'group id "g" of "ann", GroupDeleted' in capsys.readouterr().out


def test_it_is_recognized_where_the_topics_file_is_lost(data_dir: Path) -> None:
    (topic_id,) = {path.name.split("-")[0] for path in data_dir.glob("*-1") if path.is_dir()}
    (data_dir / "topics").unlink()
    rebuild_lost(str(data_dir), {topic_id: "t"})

    async def scenario() -> None:
        async with running(RealFiles(str(data_dir)), ManualClock()) as broker:
            assert [topic.name for topic in broker.logs.topics.list()] == ["t"]
            assert broker.groups.table.groups.keys() == {"h"}

    asyncio.run(scenario())


def test_entries_that_an_operator_gives_up_are_passed_over(data_dir: Path) -> None:
    flip(coordinator_segment(data_dir), -50)  # in the newest entry
    assert accept_damaged(str(data_dir))

    async def scenario() -> None:
        async with running(RealFiles(str(data_dir)), ManualClock()) as broker:
            async with broker.groups.settled() as table:
                assert table.groups == {}
            (tp, _) = await broker.topic()
            await broker.groups.commit("g", ANN, [committed(tp)])

    asyncio.run(scenario())


@pytest.mark.parametrize("is_newest", [True, False])
def test_a_batch_that_cannot_be_decoded_counts_as_lost(data_dir: Path, monkeypatch: pytest.MonkeyPatch, is_newest: bool) -> None:
    whole = coordinator_log._batch

    async def scenario() -> None:
        async with running(RealFiles(str(data_dir)), ManualClock()) as broker:
            (first, _) = await broker.topic("u")
            monkeypatch.setattr(coordinator_log, "_batch", lambda _, *rest: whole([CoordinatorRecord(version=99)], *rest))
            await broker.groups.commit("i", ANN, [committed(first)])
            monkeypatch.setattr(coordinator_log, "_batch", whole)
            if not is_newest:
                await broker.groups.commit("j", ANN, [committed(first)])

    asyncio.run(scenario())
    with pytest.raises(DataDirectoryError, match="the batch of __coordinator-0 at offset 3 is intact"):
        take_out(str(data_dir), "__coordinator-0", 3)
    assert "`--take-out __coordinator-0@4`" in errors_in(data_dir)[0].message
    take_out(str(data_dir), "__coordinator-0", 4)
    assert not errors_in(data_dir)

    async def restarted() -> None:
        async with running(RealFiles(str(data_dir)), ManualClock()) as broker, broker.groups.settled() as table:
            assert table.groups.keys() == ({"h"} if is_newest else {"h", "j"})
            assert None in broker.transactions.log.read()  # marks the loss, so nothing presumes a complete log

    asyncio.run(restarted())


def test_a_state_that_lacks_its_groups_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Happens if the state's end rots and the checkpoint is rebuilt. Without their offsets, readers would start elsewhere."""
    monkeypatch.setattr(coordinator_log, "COMPACTION_MIN_BYTES", 10_000)
    monkeypatch.setitem(COORDINATOR.configs, "segment.bytes", "4096")

    async def scenario() -> None:
        async with running(RealFiles(str(tmp_path)), ManualClock()) as broker:
            first, _ = await broker.topic()
            while not broker.transactions.log.has_grown():
                await broker.groups.commit("g", ANN, [committed(first)])
            await broker.transactions.compact()

    asyncio.run(scenario())
    *_, path = sorted(tmp_path.glob(f"{COORDINATOR.id.hex()}-0/*.log"))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)  # in the batch that ends the state
    for name in ("checkpoint", "clean-shutdown", max(path.parent.glob("*.snapshot"))):  # nothing proves that it was durable
        (tmp_path / name).unlink()
    rebuild_checkpoint(str(tmp_path))
    error = errors_in(tmp_path)[-1]
    assert "a state without its end" in error.message
    assert "the broker does not start" in error.message
