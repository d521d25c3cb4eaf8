"""Runs a workload under faults against a real daemon and prints a verdict: `python -m tests.chaos.run --seconds 60 --seed 1`.

The exit code is 0 only if nothing was wrong, every requested kind of fault happened, and work continued during and after it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from brokerd.config.settings import from_mapping
from tests.chaos.checker import Anomaly, check
from tests.chaos.history import History, Outcome, Poll
from tests.chaos.nemesis import HARMLESS, SYSCALL_FAULTS, Nemesis, has_strace
from tests.chaos.workload import PAUSE_SECONDS, PROGRESS_SECONDS, Workload
from tests.support.daemon import DaemonProcess
from tests.support.proxy import Proxy

logger = logging.getLogger(__name__)

TOPIC = "chaos"
TRANSACTIONAL = ("chaos-mixed", "chaos-transactions")
_QUIET_SECONDS = 2.0
_PAUSE_A_SECOND = 0.00005  # a run of half an hour has pauses of up to 0.09 s
SETTINGS: dict[str, object] = {"log.segment.bytes": 262_144, "log.checkpoint.interval.ms": 200}


class Faults(Protocol):
    """Causes faults, and counts them."""

    counts: Counter[str]
    injected: Counter[str]

    def faults(self) -> Mapping[str, Callable[[], None]]:
        """All faults, by name."""

    def run(self, name: str) -> None:
        """Runs one fault to its end."""


class Verdict:
    """The result of a run. `kinds` are the requested faults."""

    def __init__(self, seed: int, kinds: Sequence[str]) -> None:
        self.seed = seed
        self.kinds = kinds
        self.faults: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.acknowledged_during: Counter[str] = Counter()
        self.slowest_s: dict[str, float] = {}  # from the end of a fault of the kind to the next acknowledgement
        self.sends: Counter[Outcome] = Counter()
        self.commits_went_on = False
        self.commits: Counter[Outcome | None] = Counter()
        self.read_count = 0
        self.anomalies: list[Anomaly] = []
        self.stalled_after: list[str] = []

    def judge(self, history: History, nemesis: Faults) -> None:
        """Checks the history, and takes over the counts of faults."""
        self.faults, self.injected = nemesis.counts, nemesis.injected
        self.sends = Counter(send.outcome for send in history.sends)
        self.commits = Counter(attempt.outcome for attempt in history.attempts)
        self.read_count = sum(len(read.records) for read in history.reads if isinstance(read, Poll))
        self.anomalies = check(history)

    @property
    def problems(self) -> list[str]:
        """Problems other than anomalies that fail or invalidate a run."""
        found = [f"no progress within {PROGRESS_SECONDS:.0f} s after {kind}" for kind in self.stalled_after]
        found += [f"{kind} never happened" for kind in self.kinds if not self.faults[kind]]
        harmless = [kind for kind in HARMLESS if self.faults[kind]]
        if not self.commits_went_on:
            found.append(f"no transaction was committed within {PROGRESS_SECONDS:.0f} s after the faults")
        found += [f"no progress during {kind}" for kind in harmless if not self.acknowledged_during[kind]]
        return found

    @property
    def is_clean(self) -> bool:
        """True if nothing was wrong."""
        return not self.anomalies and not self.problems

    def __str__(self) -> str:
        lines = [
            f"seed       {self.seed}",
            f"faults     {sum(self.faults.values())}: " + _counts(self.faults),
            "hit        " + _counts(self.injected),
            "acked      during faults: " + _counts(self.acknowledged_during),
            "slowest    from a fault's end to the next acknowledgement, s: "
            + ", ".join(f"{kind} {seconds:.1f}" for kind, seconds in sorted(self.slowest_s.items())),
            "sends      " + ", ".join(f"{outcome.value} {count}" for outcome, count in self.sends.items()),
            "commits    " + ", ".join(f"{outcome.value if outcome else 'never asked'} {n}" for outcome, n in self.commits.items()),
            f"reads      {self.read_count}",
            *(f"PROBLEM    {problem}" for problem in self.problems),
            *(f"ANOMALY    {anomaly}" for anomaly in self.anomalies),
            "verdict    " + ("clean" if self.is_clean else "NOT CLEAN"),
        ]
        return "\n".join(lines)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))


def run(
    *,
    seconds: float,
    seed: int,
    kinds: list[str] | None = None,
    partitions: int = 4,
    rounds: int | None = None,
    daemon_type: Callable[..., DaemonProcess] = DaemonProcess,
) -> Verdict:
    """One run on a fresh data directory: faults of `kinds` (default all) for `seconds`, or `rounds` of them."""
    with tempfile.TemporaryDirectory() as scratch, Proxy() as proxy:
        settings = {**SETTINGS, "advertised.host": proxy.host, "advertised.port": proxy.port}
        daemon = daemon_type(Path(scratch) / "data", settings=settings)
        with daemon:
            proxy.target = ("127.0.0.1", daemon.port)
            bootstrap = f"{proxy.host}:{proxy.port}"
            with BlockingClient(from_mapping(ClientConfig, {"bootstrap.servers": bootstrap})) as client:
                for topic in (TOPIC, *TRANSACTIONAL):
                    client.create_topic(topic, partitions)
            workload = Workload(
                bootstrap,
                TOPIC,
                partitions=partitions,
                producers=3,
                consumers=2,
                seed=seed,
                pause_seconds=pause_seconds(seconds, rounds),
                transactional=TRANSACTIONAL,
            )
            nemesis = Nemesis(daemon, proxy, random.Random(seed), threading.Event())
            verdict = Verdict(seed, kinds or sorted(nemesis.faults()))
            workload.start()
            try:
                torment(workload, nemesis, random.Random(f"{seed}-order"), verdict, seconds, rounds)
                verdict.commits_went_on = workload.commits_go_on()
            except BaseException as error:
                workload.abandon()  # the failure of the fault must surface, not the client errors that follow from it
                error.add_note(f"chaos: seed {seed}, kinds {','.join(verdict.kinds)}, after {nemesis.counts.total()} faults")
                raise
            history = workload.stop()
            daemon.terminate()
    verdict.judge(history, nemesis)
    return verdict


def pause_seconds(seconds: float, rounds: int | None) -> float:
    """The pauses of producers. They grow with the length of the run, since its history must fit into memory."""
    return max(PAUSE_SECONDS, seconds * _PAUSE_A_SECOND) if rounds is None else PAUSE_SECONDS


def torment(workload: Workload, nemesis: Faults, dice: random.Random, verdict: Verdict, seconds: float, rounds: int | None) -> None:
    """Injects one fault after another, with quiet between them; after each, work must continue."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    done = 0
    while time.monotonic() < deadline and (rounds is None or done < rounds):
        kind = verdict.kinds[done] if done < len(verdict.kinds) else dice.choice(verdict.kinds)
        pause.wait(dice.random() * (_QUIET_SECONDS if rounds is None else 0.3))
        before, begun = workload.acknowledged, time.monotonic()
        nemesis.run(kind)
        verdict.acknowledged_during[kind] += workload.acknowledged - before
        done += 1
        ended = time.monotonic()
        if not workload.goes_on():
            verdict.stalled_after.append(kind)
        waited = time.monotonic() - ended
        verdict.slowest_s[kind] = max(verdict.slowest_s.get(kind, 0.0), waited)
        logger.info("%s for %.1f s, and %.1f s until work went on", kind, ended - begun, waited)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--kinds", help="comma-separated kinds of fault; default all")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(asctime)s %(name)s %(message)s")
    if not has_strace() and not set(args.kinds.split(",") if args.kinds else SYSCALL_FAULTS).isdisjoint(SYSCALL_FAULTS):
        sys.stderr.write(f"{', '.join(SYSCALL_FAULTS)} need strace, and there is none: install it, or ask for other kinds\n")
        return 2
    started = time.monotonic()
    verdict = run(seconds=args.seconds, seed=args.seed, kinds=args.kinds.split(",") if args.kinds else None)
    sys.stdout.write(f"{verdict}\n           in {time.monotonic() - started:.0f} s\n")
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
