"""Control batches and aborted transactions, as shown by `brokerd dump-log` and checked by `brokerd doctor`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.cli import main
from brokerd.ids import TopicIdPartition
from brokerd.offline.doctor import check_data_dir
from brokerd.offline.dump import describe_path
from brokerd.partition.derived_files import read_snapshot, write_snapshot
from brokerd.partition.partition import Partition
from brokerd.partition.producer_state import AbortedTransaction
from brokerd.record import control
from brokerd.record.header import crc_seed
from brokerd.storage.files import RealFiles
from brokerd.storage.names import SNAPSHOT_SUFFIX, offsets_of
from tests.support.build import append, delete_records, open_log
from tests.support.findings import errors_in
from tests.support.log_manager import LogManager
from tests.support.transactions import append_marker, append_member

COMMITTED, ABORTED, OPEN, ABORTED_LATE = 101, 5_000, 103, 104
Change = Callable[[tuple[AbortedTransaction, ...]], tuple[AbortedTransaction, ...]]


def _open(data_dir: Path) -> tuple[LogManager, Partition]:
    return open_log(RealFiles(str(data_dir)), log_segment_bytes=4_096)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A cleanly closed directory: committed, aborted and open transactions over several segments."""
    manager, log = _open(tmp_path)
    for producer_id in (COMMITTED, ABORTED):
        append_member(log, producer_id, 0)
        append(log, bytes(1_500))
    append(log, bytes(1_000))
    append_member(log, OPEN, 0)
    append_marker(log, committed=[COMMITTED], aborted=[ABORTED])
    append_member(log, ABORTED_LATE, 0)
    append_marker(log, aborted=[ABORTED_LATE])
    append(log, bytes(3_000))
    manager.close()
    return tmp_path


def _change_snapshot(data_dir: Path, change: Change) -> None:
    """Applies `change` to the index of aborted transactions in the newest snapshot."""
    files = RealFiles(str(data_dir))
    (directory,) = {path.parent.name for path in data_dir.glob("*/*.log")}
    offset = offsets_of(files.listdir(directory), SNAPSHOT_SUFFIX)[-1]
    tp = TopicIdPartition(bytes.fromhex(directory[:32]), 0)
    snapshot = read_snapshot(files, directory, offset, crc_seed(tp))
    assert snapshot is not None
    write_snapshot(files, directory, snapshot._replace(aborted=change(snapshot.aborted)))
    files.close()


def test_a_control_batch_is_shown_with_its_record(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = list(describe_path(str(data_dir)))
    json.dumps(entries)
    first, second = [entry["control"] for entry in entries if entry["type"] == "batch" and entry["is_control"]]
    assert first == {
        "version": 1,
        "coordinator_epoch": 0,
        "transactional_id": "x",
        "txn_version": 0,
        "committed_producer_ids": [COMMITTED],
        "aborted_producer_ids": [ABORTED],
    }
    assert second["aborted_producer_ids"] == [ABORTED_LATE]
    assert main(["dump-log", str(data_dir), "--print-data"]) == 0
    shown = capsys.readouterr().out
    said = "commits producers [101], aborts producers [5000], coordinator epoch 0"
    assert f'    ends version 0 of transactional id "x", {said}\n' in shown


def test_the_aborted_transactions_of_a_snapshot_are_shown(data_dir: Path) -> None:
    snapshot = [entry for entry in describe_path(str(data_dir)) if entry["type"] == "producer-snapshot"][-1]
    assert snapshot["aborted"] == [
        {"producer_id": ABORTED, "first_offset": 2, "marker_offset": 6, "last_stable_offset": 5},
        {"producer_id": ABORTED_LATE, "first_offset": 7, "marker_offset": 8, "last_stable_offset": 5},
    ]


def test_a_control_batch_of_a_later_version_is_shown_and_found(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, log = _open(data_dir)
    monkeypatch.setattr(control, "CONTROL_VERSION", 2)
    append_marker(log, committed=[OPEN])
    manager.close()
    monkeypatch.undo()
    entries = list(describe_path(str(data_dir)))
    assert "version 2 is not known" in [entry for entry in entries if entry.get("is_control")][-1]["control"]["problem"]
    assert any(error.offset == 10 and "the control batch cannot be read" in error.message for error in errors_in(data_dir))


def test_a_healthy_directory_with_transactions_has_no_findings(data_dir: Path) -> None:
    assert check_data_dir(str(data_dir), decodes_records=False) == []


@pytest.mark.parametrize("is_whole_log", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        lambda aborted: aborted[:-1],
        lambda aborted: (*aborted[:-1], aborted[-1]._replace(first_offset=8)),
        lambda aborted: (*aborted[:-1], aborted[-1]._replace(last_stable_offset=9)),
        lambda aborted: (*aborted, AbortedTransaction(7, 7, 9, 9)),
    ],
    ids=["lost", "begins late", "ends look-ups early", "invented"],
)
def test_a_snapshot_that_is_wrong_about_aborted_transactions_is_found(data_dir: Path, change: Change, is_whole_log: bool) -> None:
    if not is_whole_log:
        _retire(data_dir, 4)
        assert not errors_in(data_dir)
    _change_snapshot(data_dir, change)
    (error,) = errors_in(data_dir)
    assert "the snapshot contradicts the log on which transactions were aborted" in error.message


def _retire(data_dir: Path, before_offset: int) -> None:
    manager, log = _open(data_dir)
    delete_records(manager, log, before_offset)
    assert manager.retention_pass() > 0
    manager.close()


def test_what_the_log_start_has_passed_may_be_forgotten(data_dir: Path) -> None:
    manager, log = _open(data_dir)
    delete_records(manager, log, 7)
    manager.close()
    _change_snapshot(data_dir, lambda aborted: aborted[1:])
    assert not errors_in(data_dir)
