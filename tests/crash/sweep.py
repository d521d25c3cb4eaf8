"""Kills a real daemon at every call of a scripted run that changes its data directory: `python -m tests.crash.sweep`.

There are four series. A number identifies each point, so that it can be repeated (`--only restart:17`):

- first: a new data directory: start, create, produce with rolls, delete records, retention, alter, delete, clean stop
- restart: the same directory after the clean stop, with fewer requests
- recovery-*: the start after a kill, until the broker serves, from directories that a kill left in the middle of an operation;
  every other point is killed again, in the recovery that follows
- each pwritev of these is also executed in part: one byte, a header, the first block

After each point sweep_check.py recovers without a tracer and checks everything. Exit code 0 only if all points held and every kind
of call was met.
"""

from __future__ import annotations

import argparse
import copy
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.crash.sweep_check import check, connected
from tests.crash.sweep_script import SETTINGS, Died, Expected, Script
from tests.support import tracer
from tests.support.traced_daemon import Step, TracedDaemon

_TORN_BYTES = (1, 96, 512)
_MUST_MEET = {"pwritev", "fdatasync", "fsync", "rename", "create", "unlink", "mkdir"}
# Moments of the first life at which recovery begins: call, end of the path, index among such calls.
_MOMENTS = {
    "torn": ("pwritev", ".log", -1),
    "unsynced": ("fdatasync", ".log", -3),
    "rolled": ("fsync", "-0", -2),
    "removing": ("unlink", ".log", 1),
    "checkpoint": ("rename", "checkpoint.tmp", -2),
}


class Start(NamedTuple):
    """A data directory (None: a new one), its expected state, and the requests to the broker."""

    name: str
    directory: Path | None
    expected: Expected
    life: Callable[[Script], None]


class Point(NamedTuple):
    """A moment to kill the daemon at. `again_at` is the moment in the recovery that follows; 0 = none."""

    start: Start
    number: int
    torn_bytes: int
    again_at: int

    def __str__(self) -> str:
        torn = f"+{self.torn_bytes}" if self.torn_bytes >= 0 else ""
        return f"{self.start.name}:{self.number}{torn}"


@dataclass
class Tally:
    """Counts of what the sweep met."""

    calls: Counter[str]
    points: Counter[str]
    failures: list[str]
    unreached: int = 0
    torn: int = 0
    killed_again: int = 0

    def __str__(self) -> str:
        return "\n".join(
            (
                "points     " + ", ".join(f"{name} {count}" for name, count in self.points.items()),
                "killed at  " + ", ".join(f"{call} {count}" for call, count in self.calls.most_common()),
                f"           of them torn writes {self.torn}; killed again in recovery {self.killed_again}",
                f"           the run was over before {self.unreached}",
                *(f"FAILED     {failure}" for failure in self.failures),
                f"verdict    {sum(self.points.values())} points, {len(self.failures)} failed",
            )
        )


class Lived(NamedTuple):
    """One life of the broker: directory, expected state, the calls that changed the directory, how many came before it served."""

    directory: Path
    expected: Expected
    steps: list[Step]
    steps_of_start: int


class Sweep:
    """All points, one after another, in a scratch directory."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.tally = Tally(Counter(), Counter(), [])

    def starts(self, only: str | None = None) -> Iterator[Start]:
        """The scenarios to sweep, or the one named; each is created lazily."""
        first = Start("first", None, Expected(), Script.first_life)
        if only in (None, first.name):
            yield first
        complete = self._live(first, 0)
        if only in (None, "restart"):
            yield Start("restart", complete.directory, complete.expected, Script.later_life)
        for name, (call, suffix, which) in _MOMENTS.items():
            if only not in (None, f"recovery-{name}"):
                continue
            numbers = [n for n, step in enumerate(complete.steps, 1) if step.call == call and step.path.endswith(suffix)]
            ended = self._live(first, numbers[which], torn_bytes=512 if name == "torn" else -1)
            yield Start(f"recovery-{name}", ended.directory, ended.expected, Script.later_life)

    def points(self, start: Start) -> Iterator[Point]:
        """Every change of one life, and every write of it in part."""
        complete = self._live(start, 0)
        is_recovery = start.name.startswith("recovery")
        steps = complete.steps[: complete.steps_of_start] if is_recovery else complete.steps
        for number, step in enumerate(steps, 1):
            again_at = 1 + number * 7 % len(steps) if is_recovery and number % 2 else 0
            yield Point(start, number, -1, again_at)
            if step.call == "pwritev":
                yield Point(start, number, _TORN_BYTES[number % len(_TORN_BYTES)], 0)

    def run(self, point: Point) -> None:
        """Runs one point, and notes a failure."""
        self.tally.points[point.start.name] += 1
        where = "nowhere"
        scratch: list[Path] = []
        try:
            lived = self._live(point.start, point.number, torn_bytes=point.torn_bytes)
            scratch.append(lived.directory.parent)
            where = str(lived.steps[-1])
            self._note(point, lived.steps)
            if point.again_at:
                lived = self._live(Start("again", lived.directory, lived.expected, Script.later_life), point.again_at)
                scratch.append(lived.directory.parent)
                where += f", again at {lived.steps[-1]}"
                self.tally.killed_again += len(lived.steps) >= point.again_at
            check(lived.directory, lived.expected)
        except Exception as error:
            self.tally.failures.append(f"{point} at {where}: {type(error).__name__}: {error}")
            sys.stdout.write(f"{self.tally.failures[-1]}\n")
        finally:
            for leftover in scratch:
                shutil.rmtree(leftover, ignore_errors=True)

    def _note(self, point: Point, steps: list[Step]) -> None:
        if len(steps) < point.number:
            self.tally.unreached += 1
            return
        self.tally.calls[steps[-1].call] += 1
        self.tally.torn += point.torn_bytes >= 0 and steps[-1].call == "pwritev"

    def _live(self, start: Start, kill_at: int, *, torn_bytes: int = -1) -> Lived:
        """One life of a daemon on a copy of a directory."""
        directory = Path(tempfile.mkdtemp(dir=self._scratch)) / "data"
        if start.directory is not None:
            shutil.copytree(start.directory, directory)
        expected = copy.deepcopy(start.expected)
        daemon = TracedDaemon(directory, kill_at=kill_at, torn_bytes=torn_bytes, settings=SETTINGS)
        steps_of_start = 0
        try:
            died = _started_dead(daemon)
            if not died:
                steps_of_start = len(daemon.steps())
                died = _talk(daemon, expected, start.life)
            if not died:
                daemon.terminate()
        finally:
            if daemon.process.poll() is None:
                daemon.kill()
        steps = daemon.steps()
        if died and not daemon.was_reached:
            raise AssertionError(f"the daemon died by itself: {daemon.stderr_path.read_text()[-2_000:]}")
        return Lived(directory, expected, steps, steps_of_start)


def _started_dead(daemon: TracedDaemon) -> bool:
    """Starts the daemon; True if it died before it served."""
    try:
        daemon.start()
    except RuntimeError:
        return True
    return False


def _talk(daemon: TracedDaemon, expected: Expected, life: Callable[[Script], None]) -> bool:
    """Sends the requests; True if the broker died meanwhile."""
    try:
        with connected(daemon.address) as client:
            Script(client, expected).run(life)
    except (Died, ConnectionError):
        if not daemon.was_reached:
            raise
        daemon.process.wait(30)
        return True
    return False


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="a series, or one point of it: first, restart:17, recovery-torn:4+96")
    parser.add_argument("--every", type=int, default=1, help="only every so manieth point")
    parser.add_argument("--minutes", type=float, default=90.0, help="stop, and fail, after so long")
    args = parser.parse_args()
    reason = tracer.why_not()
    if reason:
        sys.stderr.write(f"{reason}\n")
        return 2
    logging.basicConfig(level=logging.CRITICAL)  # recovery in this process logs much
    started = time.monotonic()
    count = 0
    with tempfile.TemporaryDirectory(prefix="brokerd-sweep-") as scratch:
        sweep = Sweep(Path(scratch))
        for start in sweep.starts(args.only and args.only.partition(":")[0]):
            for point in sweep.points(start):
                count += 1
                if (args.only and ":" in args.only and str(point) != args.only) or count % args.every:
                    continue
                if time.monotonic() - started > args.minutes * 60:
                    sweep.tally.failures.append(f"not done within {args.minutes} minutes")
                    break
                sweep.run(point)
            sys.stdout.write(f"{start.name}: {sweep.tally.points[start.name]} points, {len(sweep.tally.failures)} failed so far\n")
            sys.stdout.flush()
    tally = sweep.tally
    if not tally.points:
        tally.failures.append(f"there is no point {args.only}")
    if not args.only and args.every == 1:
        tally.failures += [f"never killed at a {call}" for call in sorted(_MUST_MEET - set(tally.calls))]
    sys.stdout.write(f"{tally}\n           in {time.monotonic() - started:.0f} s\n")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
