"""Guides of docs/ that need Spark, run as written, and the example that one of them names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guides import DOCS, run_guide
from tests.support.ports import held_port


@pytest.mark.slow
def test_first_pipeline(tmp_path: Path) -> None:
    done = run_guide("first-pipeline.md", tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "written\n1001 rows so far\n1002 rows so far\n" in done.stdout
    assert ' sensor-1 = {"celsius": 20.5}\n' in done.stdout


@pytest.mark.slow
def test_a_users_own_test_and_the_example_with_more_of_them(tmp_path: Path) -> None:
    """Runs the example in its directory with a user's plugins, without this project's test settings."""
    example = DOCS.parent / "examples" / "test_exactly_once.py"
    done = run_guide("testing.md", tmp_path, PYTEST_ADDOPTS=f"-p no:timeout -p no:xdist -p no:cacheprovider {example}")
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "5 passed" in done.stdout


@pytest.mark.slow
def test_progress_of_a_query(tmp_path: Path) -> None:
    with held_port() as port:
        done = run_guide("monitoring.md", tmp_path, {"9193": str(port)})
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    batches = [line for line in done.stdout.splitlines() if line.startswith("batch ")]
    assert len(batches) == 2
    assert batches[-1].endswith(" rows, 0 offsets left")
    assert "brokerd_messages_in_total 1000" in done.stdout
