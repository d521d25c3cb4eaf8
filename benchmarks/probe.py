"""A steady client: one small batch at a fixed rate to one partition, followed by a reader at its end, beside bare round trips
at the same rate. Times count from when a request was due, so that a stall counts for all that it delays; of the bare ones, which go
one at a time, those that a stall keeps from being sent are counted as if they had ended with it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc

from benchmarks.raw import RawProducer, RawTail, raw_client, small_payload
from brokerd.ids import TopicIdPartition
from brokerd.wire.channel import CHANNEL_ARGUMENTS

KINDS = ("produce", "tail", "bare synced", "bare")
_MAX_WAIT_MS = 30_000
_DEADLINE_S = 60.0


class Probe:
    """Goes on until it is closed; what it measures goes into `taken`, by kind, in seconds. Swap `taken` between phases."""

    def __init__(self, address: str, floor_address: str, topic: str, *, rate_hz: float, value_bytes: int) -> None:
        self.taken: dict[str, list[float]] = new_taken()
        self._address = address
        self._floor_address = floor_address
        self._topic = topic
        self._interval_s = 1 / rate_hz
        self._payload = small_payload(value_bytes)
        self._message = b"x" * self._payload.data.size
        self._tasks: list[asyncio.Task[None]] = []
        self._clients = [raw_client(address), raw_client(address)]
        self._channel = grpc.aio.insecure_channel(floor_address, options=CHANNEL_ARGUMENTS)
        self._streams: list[Any] = []
        self._tail: RawTail | None = None
        self._due: asyncio.Queue[float] = asyncio.Queue()  # of batches that the tail has not seen
        self._unanswered: asyncio.Queue[float] = asyncio.Queue()

    async def open(self) -> None:
        """Connects all, and begins."""
        for client in self._clients:
            topic_id = (await client.metadata([self._topic])).topics[self._topic].topic_id
        tp = TopicIdPartition(topic_id, 0)
        producer = await RawProducer.open(self._clients[0], self._payload)
        self._tail = RawTail(await self._clients[1].open_fetch_stream(), tp)
        await self._channel.channel_ready()
        work = [self._produce(producer, tp), self._receive(producer), self._follow(self._tail)]
        for kind, method in (("bare synced", "Sync"), ("bare", "Take")):
            stream: Any = self._channel.stream_stream(f"/bench/{method}")()
            self._streams.append(stream)
            work.append(self._round_trips(kind, stream))
        self._tasks = [asyncio.create_task(one) for one in work]

    def check(self) -> None:
        """Raises what ended a part of it."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def close(self) -> None:
        """Ends all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tail is not None:
            self._tail.close()
        for stream in self._streams:
            stream.cancel()
        await self._channel.close()
        for client in self._clients:
            await client.close()

    async def _produce(self, producer: RawProducer, tp: TopicIdPartition) -> None:
        due_s = time.perf_counter()
        while True:
            due_s += self._interval_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            await producer.send(tp)
            self._due.put_nowait(due_s)
            self._unanswered.put_nowait(due_s)

    async def _receive(self, producer: RawProducer) -> None:
        while True:
            due_s = await self._unanswered.get()
            async with asyncio.timeout(_DEADLINE_S):
                await producer.receive()
            self.taken["produce"].append(time.perf_counter() - due_s)

    async def _follow(self, tail: RawTail) -> None:
        await tail.send(_MAX_WAIT_MS)
        while True:
            count = await tail.receive(2 * _MAX_WAIT_MS)
            now_s = time.perf_counter()
            await tail.send(_MAX_WAIT_MS)
            for _ in range(count):
                self.taken["tail"].append(now_s - await self._due.get())

    async def _round_trips(self, kind: str, stream: Any) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            start_s = time.perf_counter()
            await stream.write(self._message)
            await stream.read()
            taken_s = time.perf_counter() - start_s
            while taken_s > 0:
                self.taken[kind].append(taken_s)
                taken_s -= self._interval_s


def new_taken() -> dict[str, list[float]]:
    """Nothing measured yet."""
    return {kind: [] for kind in KINDS}
