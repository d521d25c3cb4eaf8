"""Measures what a consumer that scans a large cold log costs others: a steady producer, and a reader at the log end.

Each round takes another slice of the log: nothing is read; a consumer scans it from the disk; it scans it from the page cache;
a bare process reads as many cold bytes of the same files as fast as the consumer did. So what a busy consumer costs on the same
cores, and what any reader of that disk costs, are told apart from the broker's part. The bare server's round trips of probe.py
are measured all the while.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.environment import Broker, Child
from benchmarks.group_commit import pump
from benchmarks.probe import KINDS, Probe, new_taken
from benchmarks.raw import RawProducer, raw_client, run_in_loop, small_payload
from benchmarks.told import Row, quantile_ms, text_table
from brokerd.ids import TopicIdPartition

QUIET, COLD, WARM, PLAIN = "quiet", "cold scan", "warm scan", "plain read"
SETTLE_S = 1.0
GOAL = 2.0
RATE_HZ = 100.0
VALUE_BYTES = 1_000
ROWS_PER_BATCH = 1_000  # a megabyte
PARTITIONS = 4
_PLAIN_READER = """
import os, pathlib, sys, time
directory, from_share, to_share, mb_per_s = sys.argv[1], *map(float, sys.argv[2:])
start_s, taken = time.perf_counter(), 0
for path in pathlib.Path(directory).rglob("*.log"):
    fd = os.open(path, os.O_RDONLY)
    at, end = (int(os.fstat(fd).st_size * share) for share in (from_share, to_share))
    while at < end:
        size = len(os.pread(fd, min(4_194_304, end - at), at))
        at, taken = at + size, taken + size
        time.sleep(max(0.0, start_s + taken / mb_per_s / 1e6 - time.perf_counter()))
    os.close(fd)
"""


class Scanner:
    """The consumer's process."""

    def __init__(self, address: str, topic: str) -> None:
        command = [sys.executable, "-m", "benchmarks.scanner", address, topic]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read_line()

    def scan(self, ranges: list[tuple[int, int, int]]) -> dict[str, Any]:
        """Reads (partition, start offset, end offset) each; what it told."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(ranges) + "\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._read_line())
        return told

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the scanner ended with status {self._process.wait()}")
        return line


def run(data_dir: str | None, *, gigabytes: float, rounds: int, quiet_s: float, say: Callable[[str], None]) -> dict[str, object]:
    """Latencies by kind and phase, and how fast the scans were."""
    directory = tempfile.mkdtemp(dir=data_dir)
    floor = Child([sys.executable, "-m", "benchmarks.floor", directory], "floor ready on")
    try:
        with Broker(data_dir, {}) as broker:
            told = run_in_loop(_measure(broker, floor, gigabytes=gigabytes, rounds=rounds, quiet_s=quiet_s, say=say))
    finally:
        floor.stop()
        shutil.rmtree(directory, ignore_errors=True)
    print(text_table(told["scans"]), flush=True)
    print(text_table(told["latencies"]), flush=True)
    return dict(told)


async def _measure(
    broker: Broker, floor: Child, *, gigabytes: float, rounds: int, quiet_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    cold, live = [await asyncio.to_thread(broker.new_topic, count) for count in (PARTITIONS, 1)]
    rows = await _fill(broker, cold, gigabytes)
    say(f"  {gigabytes} GB written")
    scanner = await asyncio.to_thread(Scanner, broker.address, cold)
    probe = Probe(broker.address, floor.address, live, rate_hz=RATE_HZ, value_bytes=100)
    await probe.open()
    taken = {phase: new_taken() for phase in (QUIET, COLD, WARM, PLAIN)}
    scans: list[Row] = []
    for number in range(rounds):
        slice_ = [(tp, rows * number // rounds, rows * (number + 1) // rounds) for tp in range(PARTITIONS)]
        cold_mb_per_s = 0.0
        for phase, figures in taken.items():
            if phase != WARM:
                _forget_cached(broker.directory)
            await asyncio.sleep(SETTLE_S)
            probe.taken = figures
            if phase == QUIET:
                await asyncio.sleep(quiet_s)
            elif phase == PLAIN:
                await asyncio.to_thread(_read_plainly, broker.directory, number / rounds, (number + 1) / rounds, cold_mb_per_s)
            else:
                scans.append(await _scan(broker, scanner, slice_, phase))
                say(f"  round {number}: {scans[-1]}")
                cold_mb_per_s = cold_mb_per_s or float(str(scans[-1]["mb_per_s"]))
            probe.taken = new_taken()
            probe.check()
    await probe.close()
    await asyncio.to_thread(scanner.close)
    return {"gigabytes": gigabytes, "goal": GOAL, "scans": scans, "latencies": _rows(taken)}


async def _scan(broker: Broker, scanner: Scanner, ranges: list[tuple[int, int, int]], phase: str) -> Row:
    read_bytes, cpu_s = broker.child.disk_read_bytes(), broker.child.cpu_seconds()
    told = await asyncio.to_thread(scanner.scan, ranges)
    return {
        "scan": phase,
        "mb_per_s": round(told["bytes"] / told["seconds"] / 1e6),
        "seconds": round(told["seconds"], 2),
        "from_disk": f"{(broker.child.disk_read_bytes() - read_bytes) / told['bytes']:.0%}",
        "daemon_cpu": f"{(broker.child.cpu_seconds() - cpu_s) / told['seconds']:.0%}",
    }


def _rows(taken: dict[str, dict[str, list[float]]]) -> list[Row]:
    made: list[Row] = []
    for kind in KINDS:
        quiet_ms = quantile_ms(taken[QUIET][kind], 0.99)
        for phase, figures in taken.items():
            p99_ms = quantile_ms(figures[kind], 0.99)
            made.append(
                {
                    "what": kind,
                    "while": phase,
                    "count": len(figures[kind]),
                    "p50_ms": round(quantile_ms(figures[kind], 0.5), 2),
                    "p99_ms": round(p99_ms, 2),
                    "p99_to_quiet": round(p99_ms / quiet_ms, 2),
                }
            )
    return made


async def _fill(broker: Broker, topic: str, gigabytes: float) -> int:
    """Writes about so much, evenly; the rows of each partition."""
    client = raw_client(broker.address)
    topic_id = (await client.metadata([topic])).topics[topic].topic_id
    payload = small_payload(VALUE_BYTES, ROWS_PER_BATCH)
    producer = await RawProducer.open(client, payload)
    batches: int = max(1, round(gigabytes * 1e9 / payload.data.size / PARTITIONS))
    for number in range(PARTITIONS):
        await pump(producer, TopicIdPartition(topic_id, number), batches)
    await producer.close()
    await client.close()
    return batches * ROWS_PER_BATCH


def _read_plainly(directory: str, from_share: float, to_share: float, mb_per_s: float) -> None:
    """Reads that part of every segment, in a process of its own, at no more than so many megabytes a second."""
    subprocess.run([sys.executable, "-c", _PLAIN_READER, directory, str(from_share), str(to_share), str(mb_per_s)], check=True)


def _forget_cached(directory: str) -> None:
    """Has the kernel drop what it holds of the files in `directory`; what is not on disk yet stays."""
    for path in Path(directory).rglob("*.log"):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
