"""Two clients, five requests in flight each, acks=all: group commit against one fdatasync per batch (flush_daemon.py).

All daemons are there at the same time and are measured by turns; only one works at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from benchmarks.environment import Broker
from benchmarks.flush_daemon import EACH, SHARED
from benchmarks.raw import RawProducer, raw_client, run_in_loop, small_payload
from benchmarks.told import Row, quantile_ms, text_table
from brokerd.ids import TopicIdPartition
from brokerd.record.payload import Payload

CLIENTS = 2
IN_FLIGHT = 5
ROWS_PER_BATCH = 10
SLOW_SYNC_MS = 5.0  # a disk without a cache that survives power loss
NAMES = {SHARED: "group commit", EACH: "fsync each"}


class Case(NamedTuple):
    """The parameters of a run: how batches are flushed, how slow the disk is, and how many partitions the clients write to."""

    how: str
    sync_ms: float
    partitions: int


class Taken(NamedTuple):
    """One run: its length, and each request's, in seconds."""

    elapsed_s: float
    latencies: list[float]


def run(data_dir: str | None, *, requests: int, value_bytes: int, repeats: int, say: Callable[[str], None]) -> list[Row]:
    """A row per case. `requests` of each client in a run on this machine's disk; a tenth of them on the slow one."""
    cases = [Case(how, sync_ms, partitions) for sync_ms in (0.0, SLOW_SYNC_MS) for partitions in (1, CLIENTS) for how in NAMES]
    payload = small_payload(value_bytes, ROWS_PER_BATCH)
    taken: dict[Case, list[Taken]] = {case: [] for case in cases}
    with contextlib.ExitStack() as stack:
        brokers = {
            (how, sync_ms): stack.enter_context(Broker(data_dir, {}, ["-m", "benchmarks.flush_daemon", how, str(sync_ms)]))
            for how in NAMES
            for sync_ms in (0.0, SLOW_SYNC_MS)
        }
        for number in range(repeats + 1):
            for case in cases:
                count = requests // 10 if case.sync_ms else requests
                one = run_in_loop(_run_once(brokers[case.how, case.sync_ms], case.partitions, payload, max(count, IN_FLIGHT)))
                say(f"  round {number}: {NAMES[case.how]}, {case.partitions} partitions, +{case.sync_ms} ms: {one.elapsed_s:.2f} s")
                if number:
                    taken[case].append(one)
    rows = [_row(case, taken[case], payload.data.size) for case in cases]
    print(text_table(rows), flush=True)
    return rows


def _row(case: Case, taken: list[Taken], batch_bytes: int) -> Row:
    latencies = [one for run in taken for one in run.latencies]
    rate = statistics.median(len(one.latencies) / one.elapsed_s for one in taken)
    return {
        "flush": NAMES[case.how],
        "disk": f"+{case.sync_ms:g} ms" if case.sync_ms else "as it is",
        "partitions": case.partitions,
        "requests": len(latencies),
        "p50_ms": round(quantile_ms(latencies, 0.5), 3),
        "p99_ms": round(quantile_ms(latencies, 0.99), 3),
        "requests_per_s": round(rate),
        "mb_per_s": round(rate * batch_bytes / 1e6, 2),
    }


async def _run_once(broker: Broker, partitions: int, payload: Payload, count: int) -> Taken:
    """Both clients on a new topic; a partition of their own for each if there are as many."""
    name = await asyncio.to_thread(broker.new_topic, partitions)
    clients = [raw_client(broker.address) for _ in range(CLIENTS)]
    topic_id = (await clients[0].metadata([name])).topics[name].topic_id
    producers = [await RawProducer.open(client, payload) for client in clients]
    tps = [TopicIdPartition(topic_id, number % partitions) for number in range(CLIENTS)]
    for producer, tp in zip(producers, tps, strict=True):
        await pump(producer, tp, IN_FLIGHT)
    start = time.perf_counter()
    latencies = await asyncio.gather(*(pump(producer, tp, count) for producer, tp in zip(producers, tps, strict=True)))
    elapsed_s = time.perf_counter() - start
    for producer, client in zip(producers, clients, strict=True):
        await producer.close()
        await client.close()
    await asyncio.to_thread(broker.delete_topic, name)
    return Taken(elapsed_s, [one for own in latencies for one in own])


async def pump(producer: RawProducer, tp: TopicIdPartition, count: int) -> list[float]:
    """Sends `count` batches, IN_FLIGHT of them unanswered at any time; the seconds of each from send to answer."""
    sent: deque[float] = deque()
    taken: list[float] = []

    async def receive() -> None:
        await producer.receive()
        taken.append(time.perf_counter() - sent.popleft())

    for _ in range(count):
        if len(sent) == IN_FLIGHT:
            await receive()
        sent.append(time.perf_counter())
        await producer.send(tp)
    while sent:
        await receive()
    return taken
