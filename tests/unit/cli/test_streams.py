"""Goal: a standard stream that is closed or cannot be written never causes a traceback; an error is one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd.datadir.node_state import create_meta
from brokerd.storage.files import RealFiles
from tests.support.wait import DEADLINE_S

HASH_TOKEN = f"{sys.executable} -m brokerd hash-token"


def shell(command: str, cwd: Path) -> tuple[int, str]:
    """Exit code and standard error."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S, cwd=cwd, check=False)
    return done.returncode, done.stderr


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("0123456789abcdefghijklmnopqrstuvwxyzABCD")
    (tmp_path / "brokerd").symlink_to(Path(__file__).parents[3] / "brokerd")
    return tmp_path


def test_full_disk_behind_standard_output_is_told(directory: Path) -> None:
    expected = "brokerd: cannot write to standard output: No space left on device\n"
    assert shell(f"{HASH_TOKEN} < token > /dev/full", directory) == (1, expected)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_that_cannot_be_written_is_an_error(directory: Path, unbuffered: str) -> None:
    expected = "brokerd: cannot write to standard output: No space left on device\n"
    command = f"PYTHONUNBUFFERED={unbuffered} {sys.executable} -m brokerd topics --help > /dev/full"
    assert shell(command, directory) == (1, expected)


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii"])
def test_a_path_that_is_no_text_is_printed_escaped(directory: Path, encoding: str) -> None:
    files = RealFiles(os.fsdecode(bytes(directory) + b"/\xff"))
    create_meta(files, 0)
    files.close()
    command = f"PYTHONIOENCODING={encoding} {sys.executable} -m brokerd dump-log --json $(printf '\\377') > out"
    assert shell(command, directory) == (0, "")
    assert json.loads((directory / "out").read_text("utf-8"))["path"] == "\udcff/meta"


def test_closed_standard_output_drops_what_is_printed(directory: Path) -> None:
    assert shell(f"{HASH_TOKEN} < token >&-", directory) == (0, "")


def test_closed_standard_input_is_an_empty_one(directory: Path) -> None:
    code, error = shell(f"{HASH_TOKEN} <&-", directory)
    assert code == 1
    assert error.startswith("brokerd: the token has 0 characters")
