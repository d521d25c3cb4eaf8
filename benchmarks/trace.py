"""How much code one record passes. For one write and one read (not the first), `python -m benchmarks.trace` counts this project's
functions and files that run, in the client's process and in the broker's, and how often a call is in another file than the thread's
previous call. Fewer is easier to follow; speed is measured elsewhere. The broker's periodic jobs are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import pyarrow as pa

import brokerd
from benchmarks.environment import Broker
from brokerd import Producer
from brokerd.cli import main as brokerd_main
from brokerd.clock import SystemClock
from brokerd.datasource.batch_reader import BrokerdBatchReader
from brokerd.datasource.options import parse_source_options
from brokerd.datasource.schema import arrow_schema
from brokerd.sink.options import parse_sink_options
from brokerd.sink.task import write_at_least_once

_ROOT = str(Path(brokerd.__file__).parent)
_BROKER = "broker"
_PERIODIC = (str(Path(_ROOT) / "server" / "background.py"), "_repeat")  # the function that runs every periodic job
_ROUNDS = 5
_SETTLED_S = 0.3  # after this time, the broker has finished the work of a request


class Counted(NamedTuple):
    """The counts of one action in one process, and its path: the consecutive stays in a file, by thread."""

    counts: dict[str, int]
    way: list[str]


class Hands:
    """Counts calls into this project by all threads that start after it."""

    def __init__(self) -> None:
        self._is_on = False
        self._functions: set[CodeType] = set()
        self._stays: dict[int, list[tuple[str, list[str]]]] = {}  # by thread: a file, and the functions called while in it
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def begin(self, *_signal: object) -> None:
        """Starts counting."""
        self._functions, self._stays = set(), {}
        self._is_on = True

    def end(self) -> Counted:
        """Returns the functions, files and changes of file since `begin`."""
        self._is_on = False
        files = {code.co_filename for code in self._functions}
        changes = sum(len(stays) - 1 for stays in self._stays.values())
        counts = {"functions": len(self._functions), "files": len(files), "changes of file": changes}
        return Counted(counts, [f"{file}: {', '.join(names)}" for stays in self._stays.values() for file, names in stays])

    def _on_event(self, frame: FrameType, event: str, _arg: object) -> None:
        if not self._is_on or event != "call" or not frame.f_code.co_filename.startswith(_ROOT) or _is_periodic(frame):
            return
        file = frame.f_code.co_filename.removeprefix(f"{_ROOT}/")
        self._functions.add(frame.f_code)
        stays = self._stays.setdefault(threading.get_ident(), [])
        if not stays or stays[-1][0] != file:
            stays.append((file, []))
        stays[-1][1].append(frame.f_code.co_qualname)


def _is_periodic(frame: FrameType | None) -> bool:
    while frame is not None:
        if (frame.f_code.co_filename, frame.f_code.co_name) == _PERIODIC:
            return True
        frame = frame.f_back
    return False


def run_broker(out: Path, arguments: list[str]) -> int:
    """Runs `brokerd start`, counts between SIGUSR1 and SIGUSR2, then writes the counts."""
    hands = Hands()
    signal.signal(signal.SIGUSR1, hands.begin)

    def end(*_signal: object) -> None:
        partial = out.with_suffix(".part")
        partial.write_text(json.dumps(hands.end()))
        partial.rename(out)  # the reader sees the whole file or none

    signal.signal(signal.SIGUSR2, end)
    return brokerd_main(arguments)


def traced(hands: Hands, broker: Broker, out: Path, action: Callable[[], object]) -> dict[str, Counted]:
    """The counts of the action in both processes: the lowest of several rounds, since timers run meanwhile."""
    found: list[dict[str, Counted]] = []
    for _ in range(_ROUNDS):
        action()
        out.unlink(missing_ok=True)
        os.kill(broker.child.pid, signal.SIGUSR1)
        time.sleep(_SETTLED_S)
        hands.begin()
        action()
        client = hands.end()
        time.sleep(_SETTLED_S)
        os.kill(broker.child.pid, signal.SIGUSR2)
        while not out.exists():
            time.sleep(0.01)
        found.append({"client": client, "broker": Counted(*json.loads(out.read_text()))})
    return {side: min((one[side] for one in found), key=lambda one: one.counts["changes of file"]) for side in ("client", "broker")}


def main() -> int:
    """Counts and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    parser.add_argument("--list", action="store_true", help="also print the path: one line per stay in a file")
    is_listed = parser.parse_args().list
    hands = Hands()
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "broker.json"
        with Broker(None, {}, ("-m", "benchmarks.trace", _BROKER, str(out))) as broker:
            topic, one = broker.new_topic(1), broker.new_topic(1)
            row = pa.RecordBatch.from_pydict({"key": [b"k"], "value": [b"v"]})
            servers = {"bootstrap.servers": broker.address}
            sink = parse_sink_options({**servers, "topic": topic, "linger.ms": "0"})
            source = parse_source_options({**servers, "subscribe": one}, is_streaming=False)
            schema = arrow_schema([("key", "binary", True), ("value", "binary", True)])

            def read() -> None:
                reader = BrokerdBatchReader(source, schema, SystemClock())
                for part in reader.partitions():
                    for _ in reader.read(part):
                        pass

            with Producer(servers, linger_ms=0) as producer:
                producer.send(one, b"v", key=b"k").result()
                actions: dict[str, Callable[[], object]] = {
                    "write by the sink": lambda: write_at_least_once(sink, iter([row])),
                    "send": lambda: producer.send(topic, b"v", key=b"k").result(),
                    "read by the source": read,
                }
                for name, action in actions.items():
                    for side, (counts, way) in traced(hands, broker, out, action).items():
                        print(f"{name:20} {side:8}" + "".join(f"{count:6} {what}" for what, count in counts.items()), flush=True)
                        if is_listed:
                            print("\n".join(f"    {stay}" for stay in way))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [_BROKER]:
        sys.exit(run_broker(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main())
