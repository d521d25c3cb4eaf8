"""Goal: the coverage table sums what it should, and shows the least covered first."""

from __future__ import annotations

from tests.support.coverage_table import table


def file(statements: int, covered: int, branches: int = 0, covered_branches: int = 0) -> dict[str, dict[str, int]]:
    numbers = {"num_statements": statements, "covered_lines": covered}
    return {"summary": numbers | {"num_branches": branches, "covered_branches": covered_branches}}


def test_packages_are_sums_and_the_least_covered_come_first() -> None:
    files = {"p/a.py": file(10, 5), "p/b.py": file(4, 4, 6, 1), "p/q/c.py": file(10, 10), "p/q/__init__.py": file(0, 0)}
    assert table({"files": files}).split("\n") == [
        "  50.0 %     10 of    20 missed  p",
        " 100.0 %      0 of    10 missed  p/q",
        "  66.7 %     10 of    30 missed  all",
        "",
        "least covered:",
        "  50.0 %      5 of    10 missed  p/a.py",
        "  50.0 %      5 of    10 missed  p/b.py",
        "",
    ]
