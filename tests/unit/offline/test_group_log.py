"""The log of group offsets, as `brokerd dump-log` shows, `brokerd doctor` checks and a rebuild keeps it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.datadir.topic_store import GROUP_OFFSETS
from brokerd.groups import records as group_records
from brokerd.offline.doctor import accept_damaged, check_data_dir
from brokerd.offline.rebuild import rebuild_lost
from brokerd.storage.files import RealFiles
from tests.support.clock import ManualClock
from tests.support.findings import errors_in, flip, own_segment
from tests.support.group_offsets import committed
from tests.support.inner_broker import running

ANN = "ann"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A directory closed cleanly: a group that committed, lost one offset, and was deleted."""

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
    assert main(["dump-log", str(own_segment(data_dir, GROUP_OFFSETS)), "--print-data", "--json"]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    records = [record for entry in entries for record in entry.get("records", ())]
    assert [record["event"] for record in records] == ["OffsetsCommitted", "OffsetsDeleted", "GroupDeleted", "OffsetsCommitted"]
    assert [record["group_id"] for record in records] == ["g", "g", "g", "h"]
    first = records[0]["offsets"][0]
    assert (first["partition"], first["offset"], first["leader_epoch"], first["metadata"]) == (0, 0, 1, "so far")
    assert main(["dump-log", str(own_segment(data_dir, GROUP_OFFSETS)), "--print-data"]) == 0
    assert 'group id "g" of "ann", GroupDeleted' in capsys.readouterr().out


def test_a_healthy_log_has_no_findings(data_dir: Path) -> None:
    assert check_data_dir(str(data_dir)) == []


def test_damage_says_what_the_broker_does_and_what_accepting_means(data_dir: Path) -> None:
    path = own_segment(data_dir, GROUP_OFFSETS)
    flip(path, path.stat().st_size // 2)
    *_, consequence = errors_in(data_dir)
    assert consequence.partition == "__group_offsets-0"
    assert "the broker starts, but refuses all requests about groups" in consequence.message
    assert "brokerd groups reset" in consequence.message


def test_records_of_a_later_version_are_found_and_shown_as_such(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group_records, "VERSION", 2)
    assert any("has version 1; this broker reads 2" in error.message for error in errors_in(data_dir))
    assert main(["dump-log", str(own_segment(data_dir, GROUP_OFFSETS)), "--print-data"]) == 0
    assert "PROBLEM: a record of the log of group offsets has version 1" in capsys.readouterr().out


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
    flip(own_segment(data_dir, GROUP_OFFSETS), -50)  # in the newest entry
    assert accept_damaged(str(data_dir))

    async def scenario() -> None:
        async with running(RealFiles(str(data_dir)), ManualClock()) as broker:
            async with broker.groups.settled() as table:
                assert table.groups == {}
            (tp, _) = await broker.topic()
            await broker.groups.commit("g", ANN, [committed(tp)])

    asyncio.run(scenario())
