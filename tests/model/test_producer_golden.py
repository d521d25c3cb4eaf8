"""Scenarios of delivery, readable without Python: commands, and what the producer does in response.

`pytest tests/model/test_producer_golden.py --rewrite` rewrites the files with the current behaviour;
tests/support/producer_script.py defines the commands.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.producer_script import Script
from tests.support.scenario_text import check

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "producer").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, is_rewriting: bool) -> None:
    check(path, Script().do, is_rewriting=is_rewriting)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 12
