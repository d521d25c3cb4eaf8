"""What variables on make's command line do to a target."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _dry(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What make would run, whatever a make that runs the tests was told."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("nodes", "module"),
    [((), "run"), (("NODES=1",), "run"), (("NODES=3",), "cluster --factor 3")],
)
def test_chaos_runs_as_many_nodes_as_it_is_told(nodes: tuple[str, ...], module: str) -> None:
    done = _dry("chaos", *nodes, "SECONDS=5", "SEED=7", "KINDS=kill")
    assert f"-m tests.chaos.{module} --seconds 5 --seed 7 --kinds kill\n" in done.stdout


@pytest.mark.parametrize("nodes", ["2", "13", "1 3", "many"])
def test_chaos_refuses_other_numbers_of_nodes(nodes: str) -> None:
    done = _dry("chaos", f"NODES={nodes}")
    assert f"NODES is {nodes}, but must be 1, or 3" in done.stderr
    assert "tests.chaos" not in done.stdout
