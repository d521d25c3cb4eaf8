"""How variables on make's command line change the commands of a target."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _dry(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A dry run of make, unaffected by the variables of a make that runs these tests."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", "-n", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("nodes", "module"),
    [((), "run"), (("NODES=1",), "run"), (("NODES=3",), "cluster --factor 3")],
)
def test_chaos_runs_as_many_nodes_as_it_is_told(nodes: tuple[str, ...], module: str) -> None:
    done = _dry("chaos", *nodes, "SECONDS=5", "SEED=7", "KINDS=kill")
    assert f"-m tests.chaos.{module} --seconds 5 --seed 7 --kinds kill\n" in done.stdout


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        ((), ""),
        (("NODES=1",), "BROKERD_TEST_NODES=1"),
        (("NODES=3",), "BROKERD_TEST_NODES=3 BROKERD_TEST_FACTOR=3"),
        (("NODES=3", "FACTOR=2"), "BROKERD_TEST_NODES=3 BROKERD_TEST_FACTOR=2"),
        (("FACTOR=3",), "BROKERD_TEST_FACTOR=3"),
    ],
)
def test_exactly_once_runs_as_many_nodes_and_copies_as_it_is_told(given: tuple[str, ...], variables: str) -> None:
    (line,) = [line for line in _dry("exactly-once", *given, "KILLS=9").stdout.splitlines() if "tests/spark/exactly_once" in line]
    assert line.partition("PATH=")[0].split() == [*variables.split(), "BROKERD_TEST_KILLS=9"]


@pytest.mark.parametrize("target", ["chaos", "exactly-once"])
@pytest.mark.parametrize("nodes", ["2", "13", "1 3", "many"])
def test_other_numbers_of_nodes_are_refused(target: str, nodes: str) -> None:
    done = _dry(target, f"NODES={nodes}")
    assert f"NODES is {nodes}, but must be 1, or 3" in done.stderr
    assert "tests.chaos" not in done.stdout
    assert "tests/spark" not in done.stdout
