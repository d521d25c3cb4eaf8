"""Attacks on exactly once: `python -m benchmarks.exactly_once [--against brokerd,kafka,delta] [--attack NAME]...`

Rows in files -> micro-batches of one file, two tasks -> the sink, and an accident on the way, the same for all sinks and outside of
them (job.py). After each attack everything that a reader of committed rows sees is held against the input; the table says what was
doubled, what was silently skipped, and what was refused with which error. "-": the attack does not apply.

brokerd runs from this checkout, with the PySpark of this interpreter, beside which pandas must be installed: Spark asks for it
where an accident is made in the middle of a query. Kafka and Delta run with PySpark 4.2, whose virtual environment is made in
`--peers`/env, and with jars that Maven copies into `--peers` as pom.xml beside this file says (`java` and `mvn` are on the path).
All of it listens on loopback, and ends with the program.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from benchmarks.exactly_once.attacks import ATTACKS, Attack, NotHitError, attack
from benchmarks.exactly_once.pipeline import DriverDiedError, DriverProcess
from benchmarks.exactly_once.systems import SYSTEMS, System

Cells = dict[str, str]  # attack -> what is said of it


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.exactly_once", description="attacks on exactly once through Spark")
    parser.add_argument("--against", default="brokerd", help=f"of {','.join(SYSTEMS)}; default brokerd")
    parser.add_argument("--attack", action="append", choices=[each.name for each in ATTACKS], help="may be repeated; default: all")
    parser.add_argument(
        "--peers", default="benchmarks/results/peers", help="where interpreter and jars of Kafka and Delta are kept"
    )
    parser.add_argument("--json", help="a file for the table as JSON")
    given = parser.parse_args(arguments)
    chosen = [each for each in ATTACKS if not given.attack or each.name in given.attack]
    names = given.against.split(",")
    if set(names) - set(SYSTEMS):
        parser.error(f"--against knows {', '.join(SYSTEMS)}, not {given.against}")
    columns: dict[str, Cells] = {}
    for name in names:
        with (
            tempfile.TemporaryDirectory(prefix="exactly-once-", ignore_cleanup_errors=True) as directory,
            SYSTEMS[name](Path(directory), Path(given.peers).absolute()) as system,
        ):
            head, cells = _attacked(system, chosen)
        columns[head] = cells
    print(table(chosen, columns))
    if given.json:
        Path(given.json).write_text(json.dumps(columns, indent=1) + "\n")


def _attacked(system: System, chosen: Sequence[Attack]) -> tuple[str, Cells]:
    """One column, and its head."""
    driver = DriverProcess(system, system.directory / "driver.log")
    cells = {}
    for each in chosen:
        try:
            outcome = attack(system, driver, each, uuid.uuid4().hex[:6])
            cells[each.name] = outcome.text() if outcome else "-"
        except (NotHitError, DriverDiedError) as error:
            cells[each.name] = f"not run: {str(error) or 'the driver died'}"
        print(f"{system.name}: {each.name}: {cells[each.name]}", flush=True)
    driver.stop()
    return f"{system.version}, PySpark {driver.spark}", cells


def table(chosen: Sequence[Attack], columns: dict[str, Cells]) -> str:
    """One row for each attack, one column for each system."""
    lines = [f"| {datetime.datetime.now(datetime.UTC).date()} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    lines += [f"| {each.text} | {' | '.join(cells[each.name] for cells in columns.values())} |" for each in chosen]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
