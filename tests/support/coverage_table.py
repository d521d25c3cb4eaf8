"""Prints coverage.py's JSON report for `make coverage`: a line for each package, then the least covered modules.

    python -m coverage json -o - | python tests/support/coverage_table.py

Standard library only.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LEAST = 15


class Covered(NamedTuple):
    """Lines and branches of one module or package: how many there are, how many ran."""

    name: str
    total: int
    ran: int

    @property
    def percent(self) -> float:
        """Nothing to run is all of it."""
        return 100 * self.ran / self.total if self.total else 100.0

    def __str__(self) -> str:
        return f"{self.percent:6.1f} %  {self.total - self.ran:5} of {self.total:5} missed  {self.name}"


def modules(report: Mapping[str, Any]) -> list[Covered]:
    """Each file of a report."""
    found = []
    for name, file in report["files"].items():
        summary = file["summary"]
        total = summary["num_statements"] + summary.get("num_branches", 0)
        found.append(Covered(name, total, summary["covered_lines"] + summary.get("covered_branches", 0)))
    return found


def packages(files: Iterable[Covered]) -> list[Covered]:
    """Sums by folder, in the order of their names."""
    sums: dict[str, list[Covered]] = defaultdict(list)
    for file in files:
        sums[file.name.rpartition("/")[0]].append(file)
    return [Covered(name, sum(f.total for f in held), sum(f.ran for f in held)) for name, held in sorted(sums.items())]


def table(report: Mapping[str, Any]) -> str:
    """For people."""
    files = modules(report)
    least = sorted((file for file in files if file.ran < file.total), key=lambda file: file.percent)[:LEAST]
    everything = Covered("all", sum(file.total for file in files), sum(file.ran for file in files))
    return "\n".join(map(str, [*packages(files), everything])) + "\n\nleast covered:\n" + "\n".join(map(str, least)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table(json.load(sys.stdin)))
