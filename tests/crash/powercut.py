"""Cuts the power of a real daemon's disk while producers and consumers run: `python -m tests.crash.powercut`.

The disk is a loop device (tests/support/loop_disk.py); the load and the checker are those of tests/chaos. After each cut the doctor
must find nothing durable lost, the log must reach what was acknowledged before the cut, and work must continue. Exit code 0 only
then, and only if each kind of cut happened.

If the file system is shut down during an fdatasync, Linux may return 0 although the data is gone (18 of 240 files in a trial
without a broker). A real power cut leaves no process to report that success, so the broker is stopped before the cut:

- machine  stopped during its flushes, and killed after the cut: it cannot report their result
- disk     stopped between flushes, and continued after the cut: on a dead disk, its responses must still be true
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from brokerd.client.blocking import BlockingClient
from brokerd.client.offsets import OffsetSpec
from brokerd.config.client import ClientConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import WireError
from brokerd.ids import TopicIdPartition
from brokerd.offline.doctor import check_data_dir
from brokerd.offline.partition_check import Severity
from tests.chaos.checker import Anomaly, check
from tests.chaos.history import Outcome, Send
from tests.chaos.workload import Workload
from tests.support.daemon import DaemonProcess
from tests.support.loop_disk import LOG_FLUSH, NO_LOG_FLUSH, LoopDisk, why_not
from tests.support.wait import wait_until

TOPIC = "cut"
_PARTITIONS = 4
_SETTINGS: dict[str, object] = {"log.segment.bytes": 65_536, "log.checkpoint.interval.ms": 100}
_FLAGS = {LOG_FLUSH: "journal written", NO_LOG_FLUSH: "journal lost"}
_WHOM = ("machine", "disk")
_KINDS = [(whom, flag) for whom in _WHOM for flag in _FLAGS]
# Thread states in /proc: stopped; and stopped or about to be, after a call that cannot be interrupted.
_STOPPED = frozenset("T")
_STOPPING = frozenset("TD")
_WORK_SECONDS = 0.8
_DEAD_SECONDS = 0.3

DaemonType = Callable[..., DaemonProcess]


class Outage:
    """The result of a run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.cuts: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.sends: Counter[Outcome] = Counter()
        self.torn_tails = 0
        self.calls_under_way = 0  # cuts during a system call of the broker to the disk
        self.problems: list[str] = []
        self.anomalies: list[Anomaly] = []

    @property
    def is_clean(self) -> bool:
        """True if nothing was wrong."""
        return not self.anomalies and not self.problems

    def __str__(self) -> str:
        return "\n".join(
            (
                f"seed       {self.seed}",
                "cuts       " + ", ".join(f"{kind} {count}" for kind, count in sorted(self.cuts.items())),
                "broker     " + ", ".join(f"{ending} {count}" for ending, count in sorted(self.endings.items())),
                f"recovery   cut {self.torn_tails} torn tails; {self.calls_under_way} cuts met a broker that waited for the disk",
                "sends      " + ", ".join(f"{outcome.value} {count}" for outcome, count in self.sends.items()),
                *(f"PROBLEM    {problem}" for problem in self.problems),
                *(f"ANOMALY    {anomaly}" for anomaly in self.anomalies),
                "verdict    " + ("clean" if self.is_clean else "NOT CLEAN"),
            )
        )


def run(*, cuts: int, seed: int, daemon_type: DaemonType = DaemonProcess) -> Outage:
    """`cuts` cuts, of all kinds in turn. Ends early at the first problem."""
    outage = Outage(seed)
    with tempfile.TemporaryDirectory(prefix="brokerd-powercut-") as scratch, LoopDisk(Path(scratch)) as disk:
        daemon = daemon_type(disk.path / "data", settings=_SETTINGS)
        daemon.stderr_path = Path(scratch) / "stderr"
        with daemon:
            with BlockingClient(_client_config(daemon)) as client:
                client.create_topic(TOPIC, _PARTITIONS)
            workload = Workload(daemon.address, TOPIC, partitions=_PARTITIONS, producers=3, consumers=2, seed=seed)
            workload.start()
            try:
                _Cutter(disk, daemon, workload, outage, random.Random(seed)).run(cuts)
            except BaseException:
                workload.abandon()
                raise
            workload.halt()
            if not outage.problems:
                workload.stop()
        outage.torn_tails = daemon.stderr_path.read_text().count("cut a torn tail")
    outage.sends = Counter(send.outcome for send in workload.history.sends)
    if not outage.problems:
        outage.anomalies = check(workload.history)
    return outage


class _Cutter:
    def __init__(self, disk: LoopDisk, daemon: DaemonProcess, workload: Workload, outage: Outage, dice: random.Random) -> None:
        self._disk = disk
        self._daemon = daemon
        self._workload = workload
        self._outage = outage
        self._dice = dice
        self._pause = threading.Event()
        self._counted = 0
        self._ends = dict.fromkeys(range(_PARTITIONS), 0)

    def run(self, cuts: int) -> None:
        for number in range(cuts):
            if not self._workload.goes_on():
                self._outage.problems.append(f"no progress after cut {number}")
            if self._outage.problems:
                return
            self._pause.wait(self._dice.random() * _WORK_SECONDS)
            whom, flag = _KINDS[number % len(_KINDS)]
            self._stop_broker(_STOPPED if whom == "disk" else _STOPPING)
            self._disk.cut_power(flag)
            self._outage.cuts[f"{whom}, {_FLAGS[flag]}"] += 1
            self._end_broker(whom)
            self._disk.restore_power()
            self._look(number, self._acknowledged_ends())

    def _stop_broker(self, states: frozenset[str]) -> None:
        os.kill(self._daemon.pid, signal.SIGSTOP)
        seen: set[str] = set()

        def is_stopped() -> bool:
            nonlocal seen
            seen = _thread_states(self._daemon.pid)
            return seen <= states

        wait_until(is_stopped, what="the broker stops")
        self._outage.calls_under_way += "D" in seen

    def _end_broker(self, whom: str) -> None:
        if whom == "disk":
            os.kill(self._daemon.pid, signal.SIGCONT)
            self._pause.wait(self._dice.random() * _DEAD_SECONDS)
        if whom == "disk" and self._dice.random() < 0.5:
            self._daemon.terminate()
            self._outage.endings["terminated"] += 1
        else:
            self._daemon.kill()
            self._outage.endings["killed"] += 1

    def _acknowledged_ends(self) -> dict[int, int]:
        """The offset that each partition must reach, from the acknowledgements so far."""
        sends: list[Send] = self._workload.history.sends
        count = len(sends)
        for send in sends[self._counted : count]:
            if send.outcome is Outcome.OK:
                self._ends[send.tp.partition] = max(self._ends[send.tp.partition], send.offset + 1)
        self._counted = count
        return dict(self._ends)

    def _look(self, number: int, ends: dict[int, int]) -> None:
        findings = check_data_dir(str(self._disk.path / "data"))
        errors = [finding for finding in findings if finding.severity is Severity.ERROR]
        if errors:
            self._outage.problems.append(f"after cut {number} the doctor says {errors}")
        try:
            self._daemon.start()
        except RuntimeError as error:
            self._outage.problems.append(f"after cut {number}: {error}")
            return
        with BlockingClient(_client_config(self._daemon)) as client:
            topic_id = client.metadata([TOPIC]).topics[TOPIC].topic_id
            asked = {TopicIdPartition(topic_id, partition): OffsetSpec.LATEST for partition in ends}
            for tp, latest in client.list_offsets(asked).items():
                if isinstance(latest, WireError):
                    raise latest
                if latest.offset < ends[tp.partition]:
                    lost = f"partition {tp.partition} ends at {latest.offset}, {ends[tp.partition]} was acknowledged"
                    self._outage.problems.append(f"after cut {number} {lost}")


def _thread_states(pid: int) -> set[str]:
    """The states of the process's threads, one letter each."""
    states = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


def _client_config(daemon: DaemonProcess) -> ClientConfig:
    return from_mapping(ClientConfig, {"bootstrap.servers": daemon.address})


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    args = parser.parse_args()
    reason = why_not()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 2
    started = time.monotonic()
    outage = run(cuts=args.cuts, seed=args.seed)
    sys.stdout.write(f"{outage}\n           in {time.monotonic() - started:.0f} s\n")
    return 0 if outage.is_clean and len(outage.cuts) == len(_KINDS) else 1


if __name__ == "__main__":
    raise SystemExit(main())
