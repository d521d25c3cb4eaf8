"""Attacks on exactly once: `python -m benchmarks.exactly_once [--against brokerd,three-nodes,kafka,delta] [--attack NAME]...`

A pipeline writes files to the sink in micro-batches of one file and two tasks. An accident happens outside the sink, the same for
all sinks. Other attacks use a program without Spark, or a query that reads. Afterwards, the rows that a reader of committed rows
sees are compared with the input. The table shows rows doubled, silently skipped, or refused with an error.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.exactly_once.attacks import ATTACKS, Attack, NotHitError, attack
from benchmarks.exactly_once.peers import PYSPARK_OF_PEERS, Delta, Kafka
from benchmarks.exactly_once.processes import DriverDiedError, DriverProcess, cluster
from benchmarks.exactly_once.systems import AppendTo, AppendToInverted, Brokerd, System, ThreeNodes

SYSTEMS: dict[str, type[System]] = {
    system.name: system for system in (Brokerd, ThreeNodes, AppendTo, AppendToInverted, Kafka, Delta)
}
NOT_RUN = "not run"
_MISSING = 2
_INTERRUPTED = 130  # a shell's exit code for Ctrl-C
_EPILOG = f"""
attacks:
{chr(10).join(f"  {each.name:22}{each.text}" for each in ATTACKS)}

A cell of the table says: exact (each row is there once); N doubled; N silently skipped (the run ended well, the rows are not
there); refused, with the error, and N left out; its N rows are there (though their writer was told that error); N of an unfinished
batch seen (while the driver was dead); N void (written, and hidden from readers of committed rows); not run, with the reason: the
accident did not happen as it was meant to. The exit status is then 1.

append_to is brokerd with micro-batches that append_to writes: the driver every other one, the sink the rest, and in the next run
of the query the other way round; append_to-inverted begins with the sink.

Needs Linux and Java 17 or later. brokerd runs from this checkout, with the PySpark of this interpreter; pandas must be there, which
Spark asks for where an accident is made inside of a query. Kafka and Delta run with PySpark {PYSPARK_OF_PEERS}, which pip puts
into --peers/env, and with jars that Maven copies into --peers: about 1 GB, once. An attack takes a quarter of a minute to four; all
processes listen on loopback (127.0.0.1 to 127.0.0.3), and end with the program, also on Ctrl-C. Files are below $TMPDIR, and are
removed.
"""

Cells = dict[str, str]  # attack -> text


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table. Returns 1 if an attack could not be run, 2 if something is missing, 130 if interrupted."""
    parser = _parser()
    given = parser.parse_args(arguments)
    names = list(dict.fromkeys(given.against.split(",")))
    if set(names) - set(SYSTEMS):
        parser.error(f"--against knows {', '.join(SYSTEMS)}, not {given.against}")
    chosen = [each for each in ATTACKS if not given.attack or each.name in given.attack]
    columns: dict[str, Cells] = {}
    try:
        with _systems(names, Path(given.peers).absolute()) as systems:
            missing = [line for system in systems for line in system.missing()]
            if missing:
                print("\n".join(dict.fromkeys(missing)), file=sys.stderr)
                return _MISSING
            for system in systems:
                head, cells = _attacked(system, chosen)
                columns[head] = cells
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return _MISSING
    except KeyboardInterrupt:
        print("\ninterrupted: all processes have ended", file=sys.stderr)
        return _INTERRUPTED
    print(table(chosen, columns))
    if given.json:
        Path(given.json).write_text(json.dumps(columns, indent=1) + "\n")
    return int(any(cell.startswith(NOT_RUN) for cells in columns.values() for cell in cells.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exactly_once",
        description="Attacks exactly once through Spark, and prints a table of rows doubled, skipped and refused.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    attacks = [each.name for each in ATTACKS]
    peers = "interpreter and jars of Kafka and Delta; default %(default)s"
    parser.add_argument("--against", default="brokerd", metavar="NAMES", help=f"of {','.join(SYSTEMS)}; default brokerd")
    parser.add_argument(
        "--attack", action="append", choices=attacks, metavar="NAME", help="one of those below; may be repeated; default: all"
    )
    parser.add_argument("--peers", default="benchmarks/results/peers", metavar="DIR", help=peers)
    parser.add_argument("--json", metavar="FILE", help="for the table as JSON")
    return parser


@contextmanager
def _systems(names: Sequence[str], peers: Path) -> Iterator[list[System]]:
    """The systems, not started, each with a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="exactly-once-", ignore_cleanup_errors=True) as directory:
        made = []
        for name in names:
            folder = Path(directory, name)
            folder.mkdir()
            made.append(SYSTEMS[name](folder, peers))
        yield made


def _attacked(system: System, chosen: Sequence[Attack]) -> tuple[str, Cells]:
    """Attacks one system; returns the heading of its column, and the cells."""
    cells = {}
    spark = ""
    with system, DriverProcess(system, system.directory / "driver.log") as local:
        for each in chosen:
            print(f"{system.name}: {each.name}: ", end="", flush=True)
            with ExitStack() as stack:
                try:
                    driver = _driver_on_cluster(system, stack) if each.on_cluster else local
                    outcome = attack(system, driver, each, uuid.uuid4().hex[:6])
                    cells[each.name] = outcome.text() if outcome else f"not applicable: no {each.needs}"
                    spark = driver.spark or spark
                except (NotHitError, DriverDiedError, RuntimeError) as error:
                    cells[each.name] = f"{NOT_RUN}: {str(error) or 'the driver died'}"
            print(cells[each.name], flush=True)
    return f"{system.version}, PySpark {spark}", cells


def _driver_on_cluster(system: System, stack: ExitStack) -> DriverProcess:
    master = stack.enter_context(cluster(system))
    stack.callback(shutil.rmtree, system.directory / "cluster", ignore_errors=True)
    return stack.enter_context(DriverProcess(system, system.directory / "driver.log", master))


def table(chosen: Sequence[Attack], columns: dict[str, Cells]) -> str:
    """A Markdown table with one row per attack and one column per system."""
    lines = [f"| {datetime.datetime.now(datetime.UTC).date()} | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for each in chosen:
        cells = [" ".join(cells[each.name].split()) for cells in columns.values()]
        lines.append(f"| {each.text} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
