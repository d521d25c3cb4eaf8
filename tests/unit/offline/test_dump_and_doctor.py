"""The output of dump and doctor for a data directory, and the repairs that an operator may request."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from brokerd.errors import DataDirectoryError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.offline import doctor
from brokerd.offline.doctor import accept_damaged, check_data_dir, give_up_damaged, rebuild_checkpoint
from brokerd.offline.dump import describe_path
from brokerd.offline.partition_check import Finding, Severity
from brokerd.partition import producer_state
from brokerd.storage.files import RealFile, RealFiles
from tests.support.build import append, first_log, open_log, open_manager, payloads
from tests.support.findings import errors_in, flip, join, tree


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A cleanly closed directory: topic t, 30 batches in several segments, one producer."""
    manager, log = open_log(RealFiles(str(tmp_path)), log_segment_bytes=4_096, log_index_interval_bytes=500)
    for n in range(30):
        append(log, b"%04d" % n * 60, producer=ProducerIdAndEpoch(9, 0), sequence=n)
    manager.close()
    return tmp_path


def _segment(data_dir: Path, at: int = 0) -> Path:
    return sorted(data_dir.glob("*/*.log"))[at]


def test_every_file_is_described_as_json_and_nothing_is_touched(data_dir: Path) -> None:
    before = tree(data_dir)
    entries = list(describe_path(str(data_dir)))
    assert tree(data_dir) == before
    json.dumps(entries)
    types = [entry["type"] for entry in entries]
    assert types.count("batch") == 30
    assert types.count("segment") == len(list(data_dir.glob("*/*.log"))) > 2
    assert {"offset-index", "producer-snapshot", "leader-epochs", "checkpoint", "topics", "data-directory"} <= set(types)
    assert {"node-epoch", "clean-shutdown"} <= set(types)
    batches = [entry for entry in entries if entry["type"] == "batch"]
    assert [(entry["base_offset"], entry["base_sequence"], entry["producer_id"]) for entry in batches[:2]] == [(0, 0, 9), (1, 1, 9)]
    snapshot = [entry for entry in entries if entry["type"] == "producer-snapshot"][-1]
    assert snapshot["producers"][0]["batches"][-1]["last_sequence"] == 29
    assert all(entry.get("belongs_here", True) for entry in entries)


def test_damage_is_shown_where_it_is_and_what_follows_too(data_dir: Path) -> None:
    path = _segment(data_dir)
    flip(path, 400)
    entries = list(describe_path(str(path)))
    problem = next(entry for entry in entries if entry["type"] == "problem")
    assert (problem["offset"], problem["position"]) == (1, 336)
    assert [entry["base_offset"] for entry in entries if entry["type"] == "batch"][:2] == [0, 2]


def test_what_a_running_broker_removes_meanwhile_is_left_out(data_dir: Path) -> None:
    """Retention and a topic deletion remove a file and a whole directory after dump has listed them."""
    last = data_dir / ("f" * 32 + "-0")
    last.mkdir()
    entries = []
    for entry in describe_path(str(data_dir)):
        if entry["type"] == "segment" and last.exists():
            _segment(data_dir, 1).unlink()
            last.rmdir()
        entries.append(entry)
    offsets = [entry["base_offset"] for entry in entries if entry["type"] == "batch"]
    assert offsets == [*range(12), *range(24, 30)]
    assert "topics" in [entry["type"] for entry in entries], "what comes behind it is there"


def test_a_batch_that_a_running_broker_is_writing_is_no_damage(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _segment(data_dir)
    whole, sizes = list(describe_path(str(path))), [path.stat().st_size - 10]
    real_size = RealFile.size
    monkeypatch.setattr(RealFile, "size", lambda file: sizes.pop() if sizes else real_size(file))
    assert list(describe_path(str(path)))[1:] == whole[1:-1]
    path.write_bytes(path.read_bytes()[:-10])
    assert [entry["type"] for entry in describe_path(str(path))][-1] == "problem"


def test_a_directory_that_cannot_be_read_hides_no_other(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = _segment(data_dir).parent
    unreadable = (partition, data_dir / "lost+found")
    unreadable[1].mkdir()
    listed = RealFiles.listdir

    def listdir(files: RealFiles, path: str = "") -> list[str]:
        if files.root in map(str, unreadable):
            raise PermissionError(errno.EACCES, "Permission denied")
        return listed(files, path)

    monkeypatch.setattr(RealFiles, "listdir", listdir)
    entries = list(describe_path(str(data_dir)))
    problems = [(entry["path"], entry["problem"]) for entry in entries if entry["type"] == "problem"]
    assert problems == [(str(partition), f"the directory {partition} cannot be read: Permission denied")]
    assert {"checkpoint", "data-directory", "topics"} <= {entry["type"] for entry in entries}
    with pytest.raises(DataDirectoryError, match="cannot be read: Permission denied"):
        list(describe_path(str(partition)))


def test_files_that_are_none_of_ours_are_problems_or_refused(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "checkpoint").write_bytes(b"nonsense")
    assert [entry["type"] for entry in describe_path(str(data_dir / "checkpoint"))] == ["problem"]
    with pytest.raises(DataDirectoryError, match="there is no file"):
        list(describe_path(str(data_dir / f"{99:020d}.snapshot")))
    (tmp_path / "other").write_text("")
    with pytest.raises(DataDirectoryError, match="other is not a file of a brokerd data directory: its name is unknown"):
        list(describe_path(str(tmp_path / "other")))
    with pytest.raises(DataDirectoryError, match=r"there is no file .*nowhere"):
        list(describe_path(str(tmp_path / "nowhere")))


def test_a_healthy_directory_has_no_findings_and_is_not_touched(data_dir: Path) -> None:
    before = tree(data_dir)
    assert check_data_dir(str(data_dir)) == []
    assert tree(data_dir) == before
    with pytest.raises(DataDirectoryError, match="not a data directory"):
        check_data_dir(str(data_dir.parent))


def test_a_directory_of_a_version_that_kept_fewer_batches_of_a_producer_has_no_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(producer_state, "WINDOW_BATCHES", 5)
        manager, _ = open_manager(RealFiles(str(tmp_path)))
        for n in range(10):
            append(first_log(manager), b"record", producer=ProducerIdAndEpoch(9, 0), sequence=n)
        manager.close()
    assert check_data_dir(str(tmp_path)) == []


def test_a_repair_does_not_hide_another_error(data_dir: Path) -> None:
    (data_dir / "meta").unlink()
    for repair in (accept_damaged, give_up_damaged):
        (finding,) = repair(str(data_dir))
        assert finding.message.startswith("the file meta of the data directory is missing")


def test_a_file_of_unknown_name_is_named(data_dir: Path) -> None:
    (_segment(data_dir).parent / "x\x1b[31m").touch()
    (finding,) = check_data_dir(str(data_dir))
    assert finding.message == r"'x\x1b[31m' is not a file of brokerd: it is left alone"


@pytest.mark.parametrize("pattern", ["*/*.index", "*/*.snapshot", "*/leader-epochs"])
def test_rotten_derived_files_are_warnings(data_dir: Path, pattern: str) -> None:
    path = sorted(data_dir.glob(pattern))[0]
    flip(path, -3)
    findings = check_data_dir(str(data_dir))
    assert [finding.severity for finding in findings] == [Severity.WARNING]
    assert findings[0].path.split("/")[1].split(".")[0] == path.name.split(".")[0]


@pytest.mark.parametrize("name", ["meta", "node-epoch", "topics", "checkpoint"])
def test_rotten_files_of_the_directory_are_errors(data_dir: Path, name: str) -> None:
    data = bytearray((data_dir / name).read_bytes())
    for at in range(30, len(data), 4_096):  # node-epoch has two slots
        data[at] ^= 4
    (data_dir / name).write_bytes(data)
    findings = check_data_dir(str(data_dir))
    assert Severity.ERROR in {finding.severity for finding in findings if finding.path == name}


def test_a_torn_tail_is_a_warning_and_a_missing_segment_an_error(data_dir: Path) -> None:
    last = _segment(data_dir, -1)
    last.write_bytes(last.read_bytes() + b"torn")
    findings = [finding for finding in check_data_dir(str(data_dir)) if "torn tail of 4 bytes" in finding.message]
    assert [finding.severity for finding in findings] == [Severity.WARNING]
    _segment(data_dir, 1).unlink()
    errors = errors_in(data_dir)
    assert [(finding.partition, finding.offset) for finding in errors] == [("t-0", 12)]


def test_a_missing_checkpoint_is_rebuilt_when_asked(data_dir: Path) -> None:
    with pytest.raises(DataDirectoryError, match="in order"):
        rebuild_checkpoint(str(data_dir))
    for _ in range(3):  # starts that append nothing leave no trace in the log
        manager, _ = open_manager(RealFiles(str(data_dir)))
        epochs = [first_log(manager).leader_epoch]
        manager.close()
    (data_dir / "checkpoint").unlink()
    manager, report = open_manager(RealFiles(str(data_dir)))
    assert report.read_only_reason
    epochs.append(first_log(manager).leader_epoch)
    assert len(payloads(first_log(manager))) == 30
    manager.close()
    notes = rebuild_checkpoint(str(data_dir))
    assert [(note.partition, note.offset) for note in notes] == [("t-0", 30)]
    manager, report = open_manager(RealFiles(str(data_dir)))
    assert not report.read_only_reason
    assert append(first_log(manager), b"again") == 30
    epochs.append(first_log(manager).leader_epoch)
    assert epochs[0] < epochs[1] == epochs[2], "a life that could write has an epoch of its own"
    manager.close()


def test_the_doctor_says_of_damage_what_can_be_done(data_dir: Path) -> None:
    _segment(data_dir, 1).unlink()
    (error,) = errors_in(data_dir)
    assert "--accept-damaged" in error.message
    assert "--give-up-damaged" in error.message
    accept_damaged(str(data_dir))
    assert not [finding for finding in check_data_dir(str(data_dir)) if "--accept-damaged" in finding.message]


def test_a_node_of_a_cluster_is_told_of_other_copies_first(data_dir: Path) -> None:
    join(data_dir)
    assert not check_data_dir(str(data_dir)), "nothing is damaged"
    _segment(data_dir, 1).unlink()
    first, second, *_ = check_data_dir(str(data_dir))
    assert (first.severity, second.severity) == (Severity.NOTE, Severity.ERROR)
    assert "this is node 3 of cluster 'prod'" in first.message
    assert "`brokerd cluster reassign`" in first.message


@pytest.fixture
def copies(data_dir: Path) -> Path:
    """The directory of a cluster node, with a second topic u."""
    manager, _ = open_manager(RealFiles(str(data_dir)), log_segment_bytes=4_096)
    for _ in range(2):
        append(first_log(manager, "u"), b"x")
    manager.close()
    join(data_dir)
    return data_dir


def _spoil(copies: Path) -> None:
    for segment in copies.glob("*/00000000000000000000.log"):
        segment.write_bytes(segment.read_bytes()[:-1] + b"!")


def test_what_says_of_which_cluster_a_copy_is_must_be_there_before_it_is_repaired(copies: Path) -> None:
    """If `meta` were put back after the repair, the cluster would take the repaired copy for complete."""
    _spoil(copies)
    (copies / "meta").unlink()
    for repair in (accept_damaged, give_up_damaged):
        with pytest.raises(DataDirectoryError, match="the file meta is lost, which says whether this is a node of a cluster"):
            repair(str(copies))


def test_an_only_copy_whose_log_is_lost_is_damaged(copies: Path) -> None:
    """If it became a new partition, its offsets would be reused."""
    lost = min(path for path in copies.iterdir() if path.is_dir() and path.name.endswith("-0"))
    shutil.rmtree(lost)
    (copies / "checkpoint").unlink()
    notes = rebuild_checkpoint(str(copies), ["t-0", "u-0"])
    assert [note.message for note in notes].count("its directory is missing: it counts as damaged") == 1
    assert errors_in(copies)


def test_a_repair_that_was_killed_is_repeated(copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _spoil(copies)
    write, written = doctor._write_holes, list[object]()

    def killed(*args: Any) -> None:
        if written:
            raise OSError(errno.EIO, "killed")
        written.append(args)
        write(*args)

    monkeypatch.setattr(doctor, "_write_holes", killed)
    with pytest.raises(OSError, match="killed"):
        accept_damaged(str(copies), ["t-0", "u-0"])
    monkeypatch.setattr(doctor, "_write_holes", write)
    accept_damaged(str(copies), ["t-0", "u-0"])
    assert not errors_in(copies)


@pytest.mark.parametrize("repair", [accept_damaged, give_up_damaged])
def test_a_node_of_a_cluster_repairs_only_what_no_other_node_has(
    copies: Path, repair: Callable[[str, Collection[str]], list[Finding]]
) -> None:
    """A repaired copy would stay in sync, and could lead without records that the other copies have."""
    _spoil(copies)
    before = tree(copies)
    with pytest.raises(DataDirectoryError, match=r"node 3 of cluster 'prod'.* copies of t-0 and 1 more: nothing.*--only-copy t-0`"):
        repair(str(copies), ())
    with pytest.raises(DataDirectoryError, match="no partition 't-1' here"):
        repair(str(copies), ["t-0", "t-1"])
    assert tree(copies) == before
    assert {note.partition for note in repair(str(copies), ["u-0"])} == {"u-0"}
    assert {finding.partition for finding in errors_in(copies)} == {"t-0"}


def test_a_rebuilt_checkpoint_vouches_for_the_only_copies_alone(copies: Path) -> None:
    """Another node may have acknowledged records that this node has lost with its tail."""
    (copies / "checkpoint").unlink()
    with pytest.raises(DataDirectoryError, match="other nodes may have whole copies of t-0 and 1 more"):
        rebuild_checkpoint(str(copies))
    assert [note.partition for note in rebuild_checkpoint(str(copies), ["u-0"]) if "counts as damaged" in note.message] == ["t-0"]
    assert [(finding.partition, finding.offset) for finding in errors_in(copies)] == [("t-0", 30)]
    accept_damaged(str(copies), ["t-0"])
    assert not errors_in(copies), "also if it was the only copy"


def test_the_only_copies_are_those_of_a_cluster(data_dir: Path) -> None:
    _segment(data_dir, 1).unlink()
    with pytest.raises(DataDirectoryError, match=r"a node alone.*leave --only-copy out"):
        accept_damaged(str(data_dir), ["t-0"])
