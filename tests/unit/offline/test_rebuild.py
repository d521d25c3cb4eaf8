"""Lost files of a data directory, rebuilt from the logs: no epoch or offset is reused, only topic names and settings are lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from brokerd.errors import DataDirectoryError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.offline.doctor import check_data_dir
from brokerd.offline.rebuild import EPOCH_MARGIN, rebuild_lost
from brokerd.storage.checksummed_file import DocumentKind, encode_document
from brokerd.storage.files import RealFiles
from tests.support.build import append, first_log, open_manager, payloads
from tests.support.findings import errors_in, join, tree
from tests.support.log_manager import LogManager

LOST = ("meta", "topics", "node-epoch")
HELD = 700


def _open(data_dir: Path) -> LogManager:
    return open_manager(RealFiles(str(data_dir)), log_segment_bytes=4_096)[0]


def _kill(data_dir: Path, manager: LogManager) -> None:
    """Leaves the directory as a kill would: unlocked, without the clean-shutdown mark."""
    manager.close()
    (data_dir / "clean-shutdown").unlink()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Topics t (2 partitions, one without records) and u, after three starts that each ended by a kill."""
    for _ in range(3):
        manager = _open(tmp_path)
        for name, partitions in (("t", 2), ("u", 1)):
            if not manager.topics.has(name):
                manager.create_topic(name, partitions, {"retention.ms": "-1"})
            log = first_log(manager, name)
            for _ in range(20):
                append(log, b"x" * 300, producer=ProducerIdAndEpoch(HELD, 0), sequence=log.ends.log_end_offset)
            log.flush()
        _kill(tmp_path, manager)
    return tmp_path


@pytest.mark.parametrize("how", ["missing", "damaged"])
@pytest.mark.parametrize("name", LOST)
def test_one_lost_file_is_made_anew(data_dir: Path, name: str, how: str) -> None:
    path = data_dir / name
    damaged = bytearray(path.read_bytes())
    for at in range(30, len(damaged), 4_096):  # node-epoch has two slots
        damaged[at] ^= 4
    path.unlink() if how == "missing" else path.write_bytes(damaged)
    files = RealFiles(str(data_dir))
    with pytest.raises(DataDirectoryError, match="doctor"):
        open_manager(files)
    files.close()
    errors = errors_in(data_dir)
    assert [finding.path for finding in errors] == [name]
    assert "--rebuild-lost" in errors[0].message
    notes = rebuild_lost(str(data_dir), {})
    assert {note.path for note in notes} == {name}
    assert (data_dir / f"{name}.damaged").exists() == (how == "damaged")
    assert not errors_in(data_dir)
    manager = _open(data_dir)
    names = [topic.name for topic in manager.topics.list()]
    assert len(names) == 2
    assert (names == ["t", "u"]) == (name != "topics")
    for topic in names:
        assert len(payloads(first_log(manager, topic))) == 60
    assert (manager.node_epoch > EPOCH_MARGIN) == (name == "node-epoch")
    manager.close()


def test_what_a_clean_stop_says_of_the_ends_outlives_a_lost_node_epoch(data_dir: Path) -> None:
    """A full disk had room for the clean-shutdown mark, but not for the checkpoint."""
    manager = _open(data_dir)
    manager.write_checkpoint()
    checkpoint = (data_dir / "checkpoint").read_bytes()
    log = first_log(manager, "u")
    append(log, b"acknowledged")
    manager.close()
    (data_dir / "checkpoint").write_bytes(checkpoint)
    (data_dir / "node-epoch").unlink()
    last = data_dir / log.segments[-1].path
    last.write_bytes(last.read_bytes()[:-1])
    rebuild_lost(str(data_dir), {})
    assert [(finding.partition, finding.offset) for finding in errors_in(data_dir)] == [("u-0", 60)]
    manager = _open(data_dir)
    assert first_log(manager, "u").damage is not None
    manager.close()


def test_a_rotten_mark_of_a_clean_stop_says_nothing(data_dir: Path) -> None:
    (data_dir / "clean-shutdown").write_bytes(b"nonsense")
    (data_dir / "node-epoch").unlink()
    assert [finding.path for finding in errors_in(data_dir)] == ["node-epoch"]
    rebuild_lost(str(data_dir), {})
    assert not errors_in(data_dir)
    _open(data_dir).close()


def test_a_lost_log_of_a_node_of_a_cluster_is_not_made_anew(data_dir: Path) -> None:
    """An empty log would count as in sync, and could lead."""
    manager = _open(data_dir)
    lost = first_log(manager, "u").tp
    manager.close()
    join(data_dir)
    shutil.rmtree(data_dir / lost.directory_name)
    (data_dir / "topics").unlink()
    rebuild_lost(str(data_dir), {lost.topic_id.hex(): "u"})
    assert {(finding.partition, finding.offset) for finding in errors_in(data_dir)} == {("u-0", 0)}


def test_all_lost_at_once_and_names_given_back(data_dir: Path) -> None:
    manager = _open(data_dir)
    ids = {topic.name: topic.id.hex() for topic in manager.topics.list()}
    epoch = manager.node_epoch
    append(first_log(manager, "t"), b"last", producer=ProducerIdAndEpoch(HELD + 5_000, 0), sequence=0)
    manager.close()
    for name in LOST:
        (data_dir / name).unlink()
    text = "\n".join(finding.message for finding in check_data_dir(str(data_dir)))
    assert "--rebuild-lost --name ID=NAME" in text
    notes = rebuild_lost(str(data_dir), {ids["t"]: "t"})
    assert {note.path for note in notes} == set(LOST)
    assert f"'recovered-{ids['u']}'" in "\n".join(note.message for note in notes)
    manager = _open(data_dir)
    assert manager.node_epoch > epoch
    topic = manager.topics.by_name("t")
    assert (topic.id.hex(), topic.partition_count) == (ids["t"], 2)
    log = first_log(manager, "t")
    assert len(payloads(log)) == 61
    # Producer state is kept too: a repeated batch gets its original offset.
    assert append(log, b"last", producer=ProducerIdAndEpoch(HELD + 5_000, 0), sequence=0) == 60
    assert append(log, b"next", producer=ProducerIdAndEpoch(HELD, 0), sequence=60) == 61
    manager.close()
    assert check_data_dir(str(data_dir)) == []


def test_what_cannot_be_done_changes_nothing(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(DataDirectoryError, match=r"in order.*--rebuild-checkpoint.*--accept-damaged"):
        rebuild_lost(str(data_dir), {})
    with pytest.raises(DataDirectoryError, match="no partitions"):
        rebuild_lost(str(tmp_path_factory.mktemp("empty")), {})
    (data_dir / "node-epoch").unlink()
    topic_ids = sorted({path.name.partition("-")[0] for path in data_dir.glob("*-0")} - {"spare"})
    before = tree(data_dir)
    for names, problem in (
        ({topic_ids[0]: "x"}, "the file topics is in order"),
        ({"0" * 32: "x"}, "no partition of a topic with id 000"),
        ({topic_ids[0]: "no/such"}, "cannot be a topic's name"),
        ({topic_ids[0]: "same", topic_ids[1]: "same"}, "two topics would have the same name"),
    ):
        if problem.startswith("no partition"):
            (data_dir / "topics").unlink()
            before = tree(data_dir)
        with pytest.raises(DataDirectoryError, match=problem):
            rebuild_lost(str(data_dir), names)
        assert tree(data_dir) == before
    newer = (data_dir / "meta").read_bytes().replace(b"data-directory 2 ", b"data-directory 3 ")
    (data_dir / "meta").write_bytes(newer)
    rebuild_lost(str(data_dir), {})
    assert (data_dir / "meta.damaged").read_bytes() == newer, "its CRC covers the version: it is damaged, not newer"


def test_a_newer_format_is_not_rebuilt(data_dir: Path) -> None:
    (data_dir / "meta").write_bytes(encode_document(DocumentKind("data-directory", 3), b"{}"))
    (data_dir / "topics").unlink()
    with pytest.raises(DataDirectoryError, match="format version 3"):
        rebuild_lost(str(data_dir), {})
    assert not (data_dir / "topics").exists()


def test_a_rebuild_that_was_cut_short_can_be_repeated(data_dir: Path) -> None:
    for name in LOST:
        (data_dir / name).rename(data_dir / f"{name}.damaged")
    assert {note.path for note in rebuild_lost(str(data_dir), {})} == set(LOST)
    (data_dir / "meta").unlink()
    assert [note.path for note in rebuild_lost(str(data_dir), {})] == ["meta"]
    manager = _open(data_dir)
    assert manager.topics.partition_count() == 3
    manager.close()


def test_what_a_node_of_a_cluster_had_is_not_guessed(data_dir: Path) -> None:
    """A log that no file lists would come back empty and in sync."""
    join(data_dir)
    for name in ("topics", "checkpoint"):
        (data_dir / name).unlink()
    with pytest.raises(DataDirectoryError, match="nothing tells which partitions this node had"):
        rebuild_lost(str(data_dir), {})
    assert not (data_dir / "topics").exists()
