"""The first guide of docs/, as it is written: a broker, a Spark job that writes, one that reads twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.guides import run_guide


@pytest.mark.slow
def test_first_pipeline(tmp_path: Path) -> None:
    done = run_guide("first-pipeline.md", tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "written\n1001 rows so far\n1002 rows so far\n" in done.stdout
    assert ' sensor-1 = {"celsius": 20.5}\n' in done.stdout
