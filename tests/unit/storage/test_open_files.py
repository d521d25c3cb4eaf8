"""OpenFiles bounds the number of open files."""

from __future__ import annotations

import pytest

from brokerd.storage.open_files import OpenFiles
from tests.support.files import MemoryFiles


def _files(count: int) -> MemoryFiles:
    files = MemoryFiles()
    for n in range(count):
        files.write_file(f"f{n}", b"%d" % n)
    return files


def test_the_least_recently_used_are_closed() -> None:
    files = _files(10)
    pool = OpenFiles(files, limit=3)
    for n in range(10):
        with pool.use(f"f{n}") as file:
            assert bytes(file.pread(9, 0)) == b"%d" % n
        with pool.use("f0"):
            pass
    assert len(pool) == files.open_count == 3
    opened = files.open_count
    with pool.use("f0"):
        assert files.open_count == opened
    pool.close()
    assert files.open_count == 0


def test_what_is_in_use_is_never_closed() -> None:
    files = _files(10)
    pool = OpenFiles(files, limit=2)
    handles = [pool.acquire(f"f{n}", writable=True) for n in range(10)]
    assert [bytes(handle.file.pread(9, 0)) for handle in handles] == [b"%d" % n for n in range(10)]
    assert files.open_count == 10
    pool.drop("f3")
    assert bytes(handles[3].file.pread(9, 0)) == b"3"
    for handle in handles:
        pool.release(handle)
    with pool.use("f1"):
        pass
    assert len(pool) <= 10
    pool.close()
    assert files.open_count == 0


def test_too_many_open_files_closes_idle_ones_and_tries_again() -> None:
    files = _files(6)
    pool = OpenFiles(files, limit=100)
    for n in range(4):
        with pool.use(f"f{n}"):
            pass

    def hook(operation: str, path: str) -> None:
        if operation == "open" and files.open_count >= 4:
            raise OSError(24, "Too many open files")

    files.hook = hook
    with pool.use("f5"):
        assert files.open_count <= 4
    held = [pool.acquire(f"f{n}") for n in range(4)]
    with pytest.raises(OSError, match="Too many"):
        pool.acquire("f4")
    assert len(held) == 4
