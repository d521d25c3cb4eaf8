"""The rules of a partition in scenarios that can be read without Python: commands, and what its core decides then.

`pytest tests/model/test_partition_golden.py --rewrite` writes what happens now into the files; the commands are in
tests/support/partition_script.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.partition_script import PartitionScript
from tests.support.scenario_text import check

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "partition").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, is_rewriting: bool) -> None:
    check(path, PartitionScript().do, is_rewriting=is_rewriting)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 12
