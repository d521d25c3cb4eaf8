"""Goal: `make chaos-network` works where it can, and leaves nothing behind. Method: its command with two short faults; the verdict
must report progress after them. Long runs look for bugs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

import pytest

from tests.chaos.network import why_not
from tests.support.wait import DEADLINE_S

_SEED = "6"  # selects two short faults


@pytest.mark.slow
def test_records_go_on_after_faults_of_a_real_network(tmp_path: Path) -> None:
    reason = why_not()
    if reason:
        raise SkipTest(reason)
    command = [sys.executable, "-m", "tests.chaos.network", "--rounds", "2", "--kinds", "isolate,reset", "--seed", _SEED]
    done = subprocess.run(
        [*command, "--no-transactions"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "faults     2: isolate 1, reset 1\n" in done.stdout
    assert not list(tmp_path.iterdir())
    hosts = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "host1" not in hosts
