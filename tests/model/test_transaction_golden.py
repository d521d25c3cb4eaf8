"""The rules of transactions in scenarios that can be read without Python: commands, and what the coordinator decides then.

`pytest tests/model/test_transaction_golden.py --rewrite` writes what happens now into the files; the commands are in
tests/support/transaction_script.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scenario_text import check
from tests.support.transaction_script import TransactionScript

SCENARIOS = sorted((Path(__file__).parent / "scenarios" / "transaction").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path, is_rewriting: bool) -> None:
    check(path, TransactionScript().do, is_rewriting=is_rewriting)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 9
