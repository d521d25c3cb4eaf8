"""Shows that the chaos tests find bugs: `python -m tests.chaos.planted` plants bugs into the broker, one at a time.

Each bug gets runs of a few faults that can expose it, with successive seeds, until the checker names an anomaly (with power cuts,
also until the doctor or the log's end shows a loss). The exit code is 0 only if every bug was found. The bugs are in
planted_daemon.py. Those in planted_replication.py are planted into each of three nodes with three replicas.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.chaos import cluster, planted_replication
from tests.chaos.nemesis import SYSCALL_FAULTS, has_strace
from tests.chaos.run import run
from tests.crash import powercut
from tests.support.daemon import DaemonProcess
from tests.support.loop_disk import why_not

_ATTEMPTS = 5
_ROUND_SECONDS = 60.0


class PlantedDaemon(DaemonProcess):
    """A daemon with a bug."""

    bug = ""

    def command(self) -> list[str]:
        """See DaemonProcess."""
        original = super().command()
        return [sys.executable, "-m", "tests.chaos.planted_daemon", self.bug, *original[original.index("start") :]]


class Plan(NamedTuple):
    """A bug, and how to look for it. Without `kinds`, power cuts. `anomaly`: the anomaly that must be found; empty = any."""

    bug: str
    kinds: Sequence[str]
    rounds: int
    anomaly: str = ""


PLANS = (
    Plan("retries-are-new", ("drop-answers", "cut"), 6),
    Plan("unknown-producers-are-welcome", ("kill",), 8),
    Plan("gaps-are-fine", ("write-error",), 4),
    Plan("recovery-cuts-too-much", ("kill",), 4),
    Plan("acknowledged-unsynced", (), 4),
    Plan("aborted-are-not-named", ("cut",), 6, "aborted-read"),
    Plan("markers-count-one-by-one", ("cut",), 6, "torn-transaction"),
    Plan("durable-is-stable", ("cut",), 6, "precommitted-read"),
    Plan("any-member-may-write", ("cut",), 12, "zombie-write"),
    Plan("the-leader-is-enough", ("kill",), 4, "lost-write"),
    Plan("a-majority-is-enough", ("kill",), 4, "lost-write"),
    Plan("the-leaders-disk-is-enough-to-read", ("kill",), 8, "vanished-read"),
    Plan("followers-know-no-producers", ("kill",), 4, "duplicate"),
    Plan("anyone-may-be-elected", ("kill-two", "pause"), 4, "lost-write"),
)


def look_for(plan: Plan, first_seed: int) -> str:
    """The anomaly that exposed the bug, its seed and the time; "" if none did."""
    started = time.monotonic()
    planted: type[PlantedDaemon] = type("Planted", (PlantedDaemon,), {"bug": plan.bug})
    for seed in range(first_seed, first_seed + _ATTEMPTS):
        found = _look(plan, seed, planted)
        if found:
            return f"found {found}, seed {seed}, after {time.monotonic() - started:.0f} s"
    return ""


def _look(plan: Plan, seed: int, planted: Callable[..., DaemonProcess]) -> str:
    """The findings of one run; "" if there are none."""
    kinds, seconds = list(plan.kinds), _ROUND_SECONDS * plan.rounds
    if plan.bug in planted_replication.BUGS:
        with planted_replication.planted(plan.bug):
            verdict = cluster.run(seconds=seconds, seed=seed, kinds=kinds, rounds=plan.rounds, factor=cluster.NODES)
        anomalies = verdict.anomalies
    elif kinds:
        try:
            anomalies = run(seconds=seconds, seed=seed, kinds=kinds, rounds=plan.rounds, daemon_type=planted).anomalies
        except RuntimeError as error:  # a broker does not start if its coordinator's log is damaged
            if "were durable and are damaged" not in str(error):
                raise
            return "a start that is refused for damage"
    else:
        outage = powercut.run(cuts=plan.rounds, seed=seed, daemon_type=planted)
        if outage.problems:
            return f"{outage.problems[0][:160]}..."
        anomalies = outage.anomalies
    if plan.anomaly and plan.anomaly not in {anomaly.kind for anomaly in anomalies}:
        return ""
    return ", ".join(f"{anomaly.kind} ({anomaly.count})" for anomaly in anomalies)


def _why_not(plan: Plan) -> str:
    if not plan.kinds:
        return why_not()
    if not has_strace() and not set(SYSCALL_FAULTS).isdisjoint(plan.kinds):
        return "it takes strace, and there is none"
    return ""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[plan.bug for plan in PLANS])
    parser.add_argument("--seed", type=int, default=1, help="of the first run; each next one has the next seed")
    args = parser.parse_args()
    missed = 0
    for plan in PLANS:
        if args.only not in (None, plan.bug):
            continue
        reason = _why_not(plan)
        found = look_for(plan, args.seed) if not reason else ""
        missed += not found
        sys.stdout.write(f"{plan.bug}: {found or reason or f'NOT FOUND in {_ATTEMPTS} runs'}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
