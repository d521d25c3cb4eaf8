"""Ten thousand parked fetches on one broker: what they cost while they wait, and how fast one is woken.

All are sent in one burst. The bare server of floor.py holds as many streams in the same run, for comparison: the memory of an idle
stream with that of a parked fetch, and a round trip, with and without an fdatasync, with a wake-up.
"""

from __future__ import annotations

import asyncio
import gc
import time
import urllib.request
from typing import Any, NamedTuple

import grpc

from benchmarks.environment import Broker, Child, bare_server, free_port
from benchmarks.measure import Row, quantiles, text_table
from benchmarks.raw import RawProducer, RawTail, raw_client, run_in_loop, small_payload
from brokerd.client.broker_client import BrokerClient
from brokerd.ids import TopicIdPartition
from brokerd.wire.channel import CHANNEL_ARGUMENTS

CONNECTIONS = 10
LONE = 100  # partitions with one parked fetch each; the other fetches share as many partitions
CROWD_EVERY = 20  # rounds; one of them wakes all fetches of a shared partition
MAX_WAIT_MS = 600_000
IDLE_GOAL_PERCENT = 2.0
VALUE_BYTES = 100
_DEADLINE_S = 120.0
_POLL_S = 0.05


class Latencies(NamedTuple):
    """Seconds of each kind of operation."""

    bare: list[float]
    bare_synced: list[float]
    acknowledged: list[float]
    woken: list[float]
    crowd_first: list[float]
    crowd_last: list[float]


class Waiters:
    """Parked fetches, each on its own stream; each is sent again once it is answered."""

    def __init__(self, tps: list[TopicIdPartition]) -> None:
        self._tps = tps
        self._by_tp: dict[TopicIdPartition, int] = {}
        self._responses: asyncio.Queue[tuple[TopicIdPartition, float]] = asyncio.Queue()
        self._tails: list[RawTail] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.response_count = 0
        self.empty_count = 0

    async def open(self, clients: list[BrokerClient], count: int) -> None:
        """Sends all first fetches at once."""
        crowds = self._tps[LONE:] or self._tps
        for number in range(count):
            tp = self._tps[number] if number < LONE else crowds[number % len(crowds)]
            self._by_tp[tp] = self._by_tp.get(tp, 0) + 1
            self._tails.append(await RawTail.open(clients[number % len(clients)], tp))
        await asyncio.gather(*(tail.send(MAX_WAIT_MS) for tail in self._tails))
        self._tasks = [asyncio.create_task(self._wait(tail)) for tail in self._tails]

    async def _wait(self, tail: RawTail) -> None:
        while True:
            count = await tail.receive(2 * MAX_WAIT_MS)
            now_s = time.perf_counter()
            self.response_count += 1
            self.empty_count += count == 0
            self._responses.put_nowait((tail.tp, now_s))
            await tail.send(MAX_WAIT_MS)

    def of(self, tp: TopicIdPartition) -> int:
        """The number of fetches of a partition."""
        return self._by_tp.get(tp, 0)

    async def woken(self, tp: TopicIdPartition) -> list[float]:
        """The times at which the fetches of a partition were answered. Raises RuntimeError if a fetch of another one was."""
        times = []
        for _ in range(self.of(tp)):
            async with asyncio.timeout(_DEADLINE_S):
                answered, at_s = await self._responses.get()
            if answered != tp:
                raise RuntimeError(f"a fetch of {answered} was woken by an append to {tp}")
            times.append(at_s)
        return times

    def check(self) -> None:
        """Raises the error that ended a fetch, if any."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        """Ends all fetches."""
        for tail in self._tails:
            tail.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class BareStreams:
    """As many streams to a bare server, each of which has carried one message."""

    def __init__(self, address: str) -> None:
        self._channels = [
            grpc.aio.insecure_channel(address, options=(*CHANNEL_ARGUMENTS, ("bench.connection", number)))
            for number in range(CONNECTIONS)
        ]
        self._streams: list[Any] = []
        self._synced: Any = None

    async def open(self, count: int) -> None:
        """Opens all at once, on existing connections."""
        for channel in self._channels:
            await channel.channel_ready()
        self._streams = [self._channels[number % CONNECTIONS].stream_stream("/bench/Take")() for number in range(count)]
        await asyncio.gather(*(_round_trip(stream) for stream in self._streams))
        self._synced = self._channels[0].stream_stream("/bench/Sync")()
        await _round_trip(self._synced)

    async def round_trip(self) -> float:
        """The seconds of one small message and its response."""
        return await _round_trip(self._streams[0])

    async def synced_round_trip(self) -> float:
        """The same with a write and an fdatasync."""
        return await _round_trip(self._synced)

    async def close(self) -> None:
        """Ends all streams."""
        for stream in [*self._streams, self._synced]:
            stream.cancel()
        for channel in self._channels:
            await channel.close()


async def _round_trip(stream: Any) -> float:
    start = time.perf_counter()
    await stream.write(b"x" * VALUE_BYTES)
    await stream.read()
    return time.perf_counter() - start


def run(data_dir: str | None, *, waiters: int, rounds: int, idle_s: float) -> dict[str, object]:
    """All figures, by name."""
    metrics_port = free_port()
    settings = {"fetch.max.wait.ms": str(MAX_WAIT_MS), "metrics.port": str(metrics_port)}
    with bare_server(data_dir) as floor, Broker(data_dir, settings) as broker:
        name = broker.new_topic(2 * LONE)
        told, latencies = run_in_loop(_measure(broker, floor, name, metrics_port, waiters=waiters, rounds=rounds, idle_s=idle_s))
    print(text_table([{"parked fetches": name, "value": value} for name, value in told.items()]), flush=True)
    print(text_table(latencies), flush=True)
    return {**told, "latencies": latencies}


async def _measure(
    broker: Broker, floor: Child, name: str, metrics_port: int, *, waiters: int, rounds: int, idle_s: float
) -> tuple[Row, list[Row]]:
    """The figures by name, and a row for each kind of latency."""
    clients = [raw_client(broker.address) for _ in range(CONNECTIONS)]
    topic = (await clients[0].metadata([name])).topics[name]
    for client in clients:
        await client.metadata([name])
        await client.server_info()
    tps = [TopicIdPartition(topic.topic_id, number) for number in range(topic.partition_count)]
    producer = await RawProducer.open(clients[0], small_payload(VALUE_BYTES))
    waiting, bare = Waiters(tps), BareStreams(floor.address)
    before_bytes, bare_before_bytes = broker.child.resident_bytes(), floor.resident_bytes()
    start = time.perf_counter()
    await waiting.open(clients, waiters)
    await _until_parked(metrics_port, waiters)
    burst_s = time.perf_counter() - start
    waiting.check()
    parked_bytes = broker.child.resident_bytes() - before_bytes
    cpu_s = broker.child.cpu_seconds()
    await asyncio.sleep(idle_s)
    idle_percent = (broker.child.cpu_seconds() - cpu_s) / idle_s * 100
    await bare.open(waiters)
    bare_bytes = floor.resident_bytes() - bare_before_bytes
    gc.collect()
    gc.freeze()  # keeps collections of this process, which has twice the broker's streams, out of the figures
    latencies, expected = await _wake(producer, waiting, bare, tps, rounds)
    gc.unfreeze()
    await _until_parked(metrics_port, waiters)
    waiting.check()
    told = {
        "waiting": waiters,
        "accepted": await _parked_count(metrics_port),
        "burst_s": round(burst_s, 2),
        "idle_cpu_percent_of_a_core": round(idle_percent, 2),
        "idle_goal_percent": IDLE_GOAL_PERCENT,
        "kib_per_parked_fetch": round(parked_bytes / waiters / 1_024, 1),
        "kib_per_bare_stream": round(bare_bytes / waiters / 1_024, 1),
        "appends": rounds,
        "responses_expected": expected,
        "responses": waiting.response_count,
        "of_them_empty": waiting.empty_count,
    }
    await waiting.close()
    await producer.close()
    await bare.close()
    for client in clients:
        await client.close()
    return told, [{"what": what, **quantiles(seconds)} for what, seconds in latencies._asdict().items() if seconds]


async def _wake(
    producer: RawProducer, waiting: Waiters, bare: BareStreams, tps: list[TopicIdPartition], rounds: int
) -> tuple[Latencies, int]:
    """Appends a batch per round, with round trips in between; returns the seconds of each, and the expected number of
    responses."""
    taken = Latencies([], [], [], [], [], [])
    expected = 0
    for number in range(rounds):
        taken.bare.append(await bare.round_trip())
        taken.bare_synced.append(await bare.synced_round_trip())
        is_crowd = number % CROWD_EVERY == CROWD_EVERY - 1
        tp = tps[(LONE if is_crowd else 0) + number % LONE]
        if not waiting.of(tp):
            continue
        start = time.perf_counter()
        await producer.send(tp)
        acknowledged = asyncio.create_task(_acknowledged(producer))
        answered = [at_s - start for at_s in await waiting.woken(tp)]
        taken.acknowledged.append(await acknowledged - start)
        expected += len(answered)
        if is_crowd:
            taken.crowd_first.append(min(answered))
            taken.crowd_last.append(max(answered))
        else:
            taken.woken.append(answered[0])
    return taken, expected


async def _acknowledged(producer: RawProducer) -> float:
    await producer.receive()
    return time.perf_counter()


async def _until_parked(metrics_port: int, count: int) -> None:
    for _ in range(int(_DEADLINE_S / _POLL_S)):
        if await _parked_count(metrics_port) == count:
            return
        await asyncio.sleep(_POLL_S)
    raise TimeoutError(f"{await _parked_count(metrics_port)} fetches wait, not {count}")


async def _parked_count(metrics_port: int) -> int:
    """The number of parked fetches, from the broker's metrics."""

    def read() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=_DEADLINE_S) as response:
            for line in response.read().decode().splitlines():
                if "purgatory_size" in line and '"Fetch"' in line:
                    return int(float(line.split()[-1]))
        raise RuntimeError("the broker's metrics do not say how many fetches wait")

    return await asyncio.to_thread(read)
