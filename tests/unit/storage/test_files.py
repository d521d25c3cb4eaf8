"""The file system interface: RealFiles and MemoryFiles, its twin for tests, keep the same contract."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from brokerd.errors import DataDirectoryError
from brokerd.storage.files import Files, RealFiles, WouldBlock, read_whole, write_all
from tests.support.files import SECTOR, MemoryFiles, failing


@pytest.fixture(params=["real", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return RealFiles(str(tmp_path)) if request.param == "real" else MemoryFiles()


def test_bytes_are_read_where_they_were_written(files: Files) -> None:
    files.mkdir("d")
    file = files.create("d/f")
    assert file.pwritev([b"head", memoryview(b"payload")], 0) == 11
    write_all(file, [b"XX"], 2, 2)
    assert bytes(file.pread(100, 0)) == b"heXXpayload"
    assert bytes(file.pread(3, 4)) == b"pay"
    assert bytes(file.pread(3, 11)) == b""
    assert file.size() == 11
    file.truncate(5)
    file.fdatasync()
    file.close()
    file.close()
    assert read_whole(files, "d/f") == b"heXXp"


def test_names(files: Files) -> None:
    files.mkdir("d")
    for name in ("b", "a"):
        files.create(f"d/{name}").close()
    with pytest.raises(FileExistsError):
        files.create("d/a")
    with pytest.raises(FileNotFoundError):
        files.create("none/a")
    files.rename("d/a", "d/b")
    assert files.listdir("d") == ["b"]
    assert "d" in files.listdir()
    with pytest.raises(OSError, match="not empty"):
        files.rmdir("d")
    files.unlink("d/b")
    with pytest.raises(FileNotFoundError):
        files.unlink("d/b")
    with pytest.raises(FileNotFoundError):
        files.open("d/b")
    files.sync_dir("d")
    files.rmdir("d")
    files.sync_dir()
    with pytest.raises(FileNotFoundError):
        files.listdir("d")


def test_an_open_file_outlives_its_name(files: Files) -> None:
    file = files.create("f")
    file.pwritev([b"still here"], 0)
    files.unlink("f")
    assert bytes(file.pread(10, 0)) == b"still here"
    file.close()


def test_a_second_lock_is_refused(tmp_path: Path) -> None:
    first, second = RealFiles(str(tmp_path)), RealFiles(str(tmp_path))
    first.lock()
    with pytest.raises(DataDirectoryError, match="is locked"):
        second.lock()
    first.close()
    second.lock()
    second.close()


def test_a_lock_that_a_read_only_disk_has_not_is_not_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = RealFiles._open

    def read_only(self: RealFiles, path: str, flags: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, "Read-only file system", path)
        return opened(self, path, flags)

    monkeypatch.setattr(RealFiles, "_open", read_only)
    files = RealFiles(str(tmp_path))
    with pytest.raises(OSError, match="Read-only file system"):
        files.lock()
    (tmp_path / "lock").touch()
    files.lock()
    files.close()


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (tmp_path / "data" / "d").mkdir(parents=True)
    (tmp_path / "data" / "link").symlink_to(tmp_path / "outside" / "secret")
    (tmp_path / "data" / "dirlink").symlink_to(tmp_path / "outside")
    files = RealFiles(str(tmp_path / "data"))
    for path in ("link", "dirlink/secret"):
        with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
            files.open(path)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        files.listdir("dirlink")
    with pytest.raises(OSError, match=r"symbolic links|Not a directory|exists"):
        files.create("dirlink/new")
    assert sorted(os.listdir(tmp_path / "outside")) == ["secret"]


def test_a_named_pipe_in_a_files_place_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "topics")
    file = RealFiles(str(tmp_path)).open("topics")
    with pytest.raises(OSError, match="Illegal seek"):
        file.pread(1, 0)
    file.close()


def test_what_root_creates_belongs_to_the_directorys_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 4_321, 1_234)
    owner = (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
    given: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda fd, *ids: given.append(ids))
    monkeypatch.setattr(os, "chown", lambda path, *ids, **_: given.append(ids))
    files = RealFiles(str(tmp_path))
    files.lock()
    files.mkdir("p")
    for path in ("top", "p/below"):
        files.create(path).close()
    files.open("top", writable=True).close()
    files.close()
    assert given == [owner] * 4


def test_a_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        RealFiles(str(tmp_path / "file" / "below"))
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        RealFiles(str(tmp_path / "none"), must_exist=True)


def test_a_read_that_must_not_wait_gives_cached_bytes_or_says_so(tmp_path: Path) -> None:
    files = RealFiles(str(tmp_path))
    file = files.create("f")
    data = random.Random(1).randbytes(100_000)
    file.pwritev([data], 0)
    try:
        found = bytes(file.pread(200_000, 0, nowait=True))
    except WouldBlock:  # a file system without RWF_NOWAIT
        found = bytes(file.pread(200_000, 0))
    assert data.startswith(found)
    assert found
    file.close()


def test_much_is_read_whole_and_past_the_end_is_short(tmp_path: Path) -> None:
    files = RealFiles(str(tmp_path))
    data = random.Random(2).randbytes(2_621_441)
    write_all(files.create("f"), [data], 0, len(data))
    file = files.open("f")
    for size, position in (
        (len(data), 0),
        (1_048_576, 1),
        (1_048_577, 1),
        (2_500_000, 7),
        (4_000_000, 0),
        (10, len(data)),
        (9, len(data) - 4),
    ):
        assert bytes(file.pread(size, position)) == data[position : position + size], (size, position)
    file.close()


def test_the_kernel_reads_nothing_ahead_of_what_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advised: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, position, size, advice: advised.append((position, size, advice)))
    files = RealFiles(str(tmp_path))
    files.create("f").close()
    files.open("f").close()
    files.open("f", writable=True).close()
    assert advised == [(0, 0, os.POSIX_FADV_RANDOM)] * 3


def test_the_twin_loses_what_was_not_synced() -> None:
    files = MemoryFiles()
    file = files.create("f")
    file.pwritev([b"a" * SECTOR], 0)
    file.fdatasync()
    files.sync_dir()
    file.pwritev([b"b" * SECTOR * 8], SECTOR)
    files.create("g").close()
    outcomes = set()
    for seed in range(60):
        lives = files.copy()
        late = lives.open("f", writable=True)
        late.truncate(SECTOR)
        late.fdatasync()
        late.pwritev([b"b" * SECTOR * 8], SECTOR)
        lives.create("h").close()
        lives.power_cut(random.Random(seed))
        data = read_whole(lives, "f")
        assert data[:SECTOR] == b"a" * SECTOR
        outcomes.add((len(data), data.count(b"b"), "h" in lives.listdir()))
    assert len(outcomes) > 20
    assert {has for _, _, has in outcomes} == {True, False}


def test_the_twins_failed_sync_leaves_clean_pages_that_are_not_on_the_disk() -> None:
    files = MemoryFiles()
    file = files.create("f")
    files.sync_dir()
    file.pwritev([b"lost"], 0)
    files.hook = failing("fdatasync")
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    files.hook = None
    file.fdatasync()
    assert bytes(file.pread(4, 0)) == b"lost"
    files.power_cut(random.Random(0))
    assert b"lost" not in read_whole(files, "f")
