"""Runs a workload under faults against the real daemon and prints a verdict: `python -m tests.chaos.run --seconds 60 --seed 1`.

Exit code 0 only if nothing was wrong, every kind of fault asked for happened, and work went on during and after it.
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
from pathlib import Path

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from brokerd.config.settings import from_mapping
from tests.chaos.checker import Anomaly, check
from tests.chaos.history import Outcome
from tests.chaos.nemesis import Nemesis
from tests.chaos.workload import Workload
from tests.support.daemon import DaemonProcess
from tests.support.proxy import Proxy

TOPIC = "chaos"
_QUIET_SECONDS = 2.0
_PROGRESS_SECONDS = 60.0
_SETTINGS: dict[str, object] = {"log.segment.bytes": 262_144, "log.checkpoint.interval.ms": 200}


class Verdict:
    """What a run showed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.faults: Counter[str] = Counter()
        self.sends: Counter[Outcome] = Counter()
        self.anomalies: list[Anomaly] = []
        self.stalled_after: list[str] = []

    @property
    def is_clean(self) -> bool:
        """True if nothing was wrong."""
        return not self.anomalies and not self.stalled_after

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}",
            "faults     " + ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items())),
            "sends      " + ", ".join(f"{outcome.value} {count}" for outcome, count in self.sends.items()),
            *(f"no progress within {_PROGRESS_SECONDS:.0f} s after {name}" for name in self.stalled_after),
            *(f"ANOMALY {anomaly}" for anomaly in self.anomalies),
            "verdict    " + ("clean" if self.is_clean else "NOT CLEAN"),
        ]
        return "\n".join(lines)


def run(*, seconds: float, seed: int, kinds: list[str] | None = None, partitions: int = 4, rounds: int | None = None) -> Verdict:
    """One run on a fresh data directory: faults of `kinds` (default all) for `seconds`, or `rounds` of them."""
    dice = random.Random(seed)
    verdict = Verdict(seed)
    stopped = threading.Event()
    with tempfile.TemporaryDirectory() as scratch, Proxy() as proxy:
        settings = {**_SETTINGS, "advertised.host": proxy.host, "advertised.port": proxy.port}
        daemon = DaemonProcess(Path(scratch) / "data", settings=settings)
        daemon.start()
        try:
            proxy.target = ("127.0.0.1", daemon.port)
            bootstrap = f"{proxy.host}:{proxy.port}"
            with BlockingClient(from_mapping(ClientConfig, {"bootstrap.servers": bootstrap})) as client:
                client.create_topic(TOPIC, partitions)
            workload = Workload(bootstrap, TOPIC, partitions=partitions, producers=3, consumers=2, seed=seed)
            nemesis = Nemesis(daemon, proxy, dice, stopped)
            workload.start()
            try:
                _torment(workload, nemesis, dice, verdict, kinds or sorted(nemesis.faults()), seconds, rounds)
            finally:
                history = workload.stop()
        finally:
            daemon.terminate()
    verdict.faults = nemesis.counts
    verdict.sends = Counter(send.outcome for send in history.sends)
    verdict.anomalies = check(history)
    return verdict


def _torment(
    workload: Workload,
    nemesis: Nemesis,
    dice: random.Random,
    verdict: Verdict,
    kinds: list[str],
    seconds: float,
    rounds: int | None,
) -> None:
    """Fault after fault, with quiet between; after each, work must go on."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    done = 0
    while time.monotonic() < deadline and (rounds is None or done < rounds):
        kind = kinds[done % len(kinds)] if done < len(kinds) else dice.choice(kinds)
        pause.wait(dice.random() * (_QUIET_SECONDS if rounds is None else 0.3))
        nemesis.run(kind)
        done += 1
        if not _goes_on(workload):
            verdict.stalled_after.append(kind)


def _goes_on(workload: Workload) -> bool:
    """Waits until something more is acknowledged."""
    before = workload.acknowledged
    pause = threading.Event()
    deadline = time.monotonic() + _PROGRESS_SECONDS
    while workload.acknowledged == before:
        if time.monotonic() > deadline or workload.failures:
            return False
        pause.wait(0.01)
    return True


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--kinds", help="comma-separated kinds of fault; default all")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO if args.verbose else logging.CRITICAL, format="%(asctime)s %(name)s %(message)s")
    verdict = run(seconds=args.seconds, seed=args.seed, kinds=args.kinds.split(",") if args.kinds else None)
    sys.stdout.write(f"{verdict}\n")
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
