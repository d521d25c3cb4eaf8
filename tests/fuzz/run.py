"""Sends hostile input to everything that an unauthenticated client can reach, and judges the results:

    python -m tests.fuzz.run --inputs 1000000 --seed 7
    python -m tests.fuzz.run --seed 7 --only batch.payload:1234

Three phases, each in its own process: record batches for check and decoder, requests to a daemon's methods, and a real daemon's
port. Equal seeds give equal inputs. Exit code 1, with the input's name, if the daemon dies, hangs, responds with an internal error,
acknowledges malformed input, loses or changes acknowledged data, writes outside its directory, or grows.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from brokerd.clock import stopwatch_ns
from tests.fuzz import batches, service, wire
from tests.fuzz.report import FuzzError, Report
from tests.fuzz.requests import fetch_edges, produce_edges, unary_edges

# Thousandths of all inputs, by phase. A stream of produce.batches holds several inputs.
SHARES: dict[str, dict[str, int]] = {
    "batches": {"batch.spoilt": 200, "batch.payload": 130, "batch.header": 70},
    "service": {
        "unary.fields": 180,
        "unary.bytes": 120,
        "produce.fields": 50,
        "produce.bytes": 40,
        "produce.batches": 80,
        "fetch.fields": 40,
        "fetch.bytes": 30,
        "unary.edges": 15,
        "produce.edges": 4,
        "fetch.edges": 4,
    },
    "wire": {"wire.unary": 14, "wire.produce": 7, "wire.fetch": 6, "wire.port": 10},
}


def counts_of(phase: str, inputs: int) -> dict[str, int]:
    """The number of inputs of each kind. All boundary values are tried, however few inputs are requested."""
    counts = {kind: max(1, inputs * share // 1_000) for kind, share in SHARES[phase].items()}
    if phase == "service":
        counts["produce.batches"] = max(1, counts["produce.batches"] // service.BATCHES_PER_STREAM)
        for kind, edges in (("unary.edges", unary_edges()), ("produce.edges", produce_edges()), ("fetch.edges", fetch_edges())):
            counts[kind] = max(counts[kind], len(edges))
    return counts


def run_phase(phase: str, counts: dict[str, int], seed: int, progress: Path, *, first: int = 0) -> Report:
    """Runs one phase in this process. Raises FuzzError."""
    report = Report(progress)
    try:
        if phase == "batches":
            batches.run(counts, seed, report, first=first)
        else:
            with tempfile.TemporaryDirectory(prefix="brokerd-fuzz-") as home:
                (service if phase == "service" else wire).run(counts, seed, report, Path(home), first=first)
    finally:
        report.close()
    return report


def main(arguments: list[str] | None = None) -> int:
    """Runs all phases, or one kind."""
    parser = argparse.ArgumentParser(description="Hostile input for brokerd.")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="KIND:NUMBER", help="one input of an earlier run")
    parser.add_argument("--phase", choices=list(SHARES), help=argparse.SUPPRESS)
    parser.add_argument("--progress", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.only:
        return _only(args.only, args.seed)
    if args.phase:
        return _child(args)
    total = 0
    for phase in SHARES:
        told = _run_child(phase, args.inputs, args.seed)
        if told is None:
            return 1
        total += told
    print(f"{total} inputs, seed {args.seed}: nothing found")
    return 0


def _child(args: argparse.Namespace) -> int:
    faulthandler.enable()
    try:
        report = run_phase(args.phase, counts_of(args.phase, args.inputs), args.seed, Path(args.progress))
    except FuzzError as finding:
        print(f"FOUND (seed {args.seed}): {finding}", file=sys.stderr)
        return 1
    print(json.dumps({"outcomes": report.outcomes, "figures": report.figures}))
    return 0


def _only(only: str, seed: int) -> int:
    kind, _, number = only.partition(":")
    phase = next(phase for phase, shares in SHARES.items() if kind in shares)
    with tempfile.NamedTemporaryFile() as progress:
        report = run_phase(phase, {kind: 1}, seed, Path(progress.name), first=int(number))
    print(json.dumps(report.outcomes))
    return 0


def _run_child(phase: str, inputs: int, seed: int) -> int | None:
    """Runs a phase in a child process and prints its counts. Returns the number of inputs, None if it failed."""
    started_ns = stopwatch_ns()
    with tempfile.NamedTemporaryFile() as progress:
        command = [sys.executable, "-m", "tests.fuzz.run", "--phase", phase, "--inputs", str(inputs), "--seed", str(seed)]
        child = subprocess.run([*command, "--progress", progress.name], stdout=subprocess.PIPE, text=True, check=False)
        last = Path(progress.name).read_text().strip()
    seconds = (stopwatch_ns() - started_ns) / 1e9
    if child.returncode != 0:
        how = f"was ended by signal {-child.returncode}" if child.returncode < 0 else "failed"
        print(f"phase {phase} {how}; under way was {last}, seed {seed}", file=sys.stderr)
        return None
    told = json.loads(child.stdout.splitlines()[-1])
    total = sum(sum(outcomes.values()) for outcomes in told["outcomes"].values())
    print(f"{phase}: {total} inputs in {seconds:.0f} s")
    for kind, outcomes in told["outcomes"].items():
        shown = ", ".join(f"{count} {outcome}" for outcome, count in Counter(outcomes).most_common())
        print(f"  {kind:16} {sum(outcomes.values()):8}  {shown}")
    print("  " + ", ".join(f"{name} {value}" for name, value in told["figures"].items()), flush=True)
    return total


if __name__ == "__main__":
    raise SystemExit(main())
