"""Goal: standard streams that cannot be written, or that are closed, end in a sentence and never in a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


def test_closed_standard_output_drops_what_is_printed(directory: Path) -> None:
    assert shell(f"{HASH_TOKEN} < token >&-", directory) == (0, "")


def test_closed_standard_input_is_an_empty_one(directory: Path) -> None:
    code, error = shell(f"{HASH_TOKEN} <&-", directory)
    assert code == 1
    assert error.startswith("brokerd: the token has 0 characters")
