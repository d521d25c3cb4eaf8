"""The cost of asyncio: alternates the clients of brokerd.aio with the blocking ones in one run; medians. Both run in this process,
against one broker, with records of 100 bytes.

    python -m benchmarks.faces
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import brokerd
import brokerd.aio
from brokerd.testing import Broker

ROUNDS = 3
RECORDS = 50_000  # sent, and iterated over
READ = 200_000  # polled
ACKNOWLEDGED = 100  # one after the other
TASKS = 200
VALUE = b"x" * 100
Rates = dict[str, float]


class _Watch:
    """Measures records per second."""

    def __init__(self) -> None:
        self.rates: Rates = {}

    def start(self) -> None:
        """Starts the clock."""
        self._since = time.perf_counter()

    def stop(self, name: str, count: int) -> None:
        """Notes the rate of the records since `start`."""
        self.rates[name] = count / (time.perf_counter() - self._since)


def _key(number: int) -> bytes:
    return b"k%d" % (number % 50)


def blocking(servers: str) -> Rates:
    """Measures the blocking clients."""
    watch = _Watch()
    with brokerd.Producer(bootstrap_servers=servers) as producer:
        producer.send("sent", VALUE).result()
        watch.start()
        for number in range(RECORDS):
            producer.send("sent", VALUE, key=_key(number))
        producer.flush()
        watch.stop("send and flush", RECORDS)
        watch.start()
        for _ in range(ACKNOWLEDGED):
            producer.send("sent", VALUE).result()
        watch.stop("send and wait, one after the other", ACKNOWLEDGED)
    with brokerd.Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("read", 0), ("read", 1)])
        calls: list[tuple[str, int, Callable[[], int]]] = [
            ("poll", READ, lambda: len(consumer.poll())),
            ("poll_arrow", READ, lambda: int(consumer.poll_arrow().num_rows)),
            ("iteration", RECORDS, lambda: len([next(consumer)])),
        ]
        for name, count, call in calls:
            consumer.seek_to_beginning()
            watch.start()
            left = count
            while left > 0:
                left -= call()
            watch.stop(name, count)
    return watch.rates


async def awaiting(servers: str) -> Rates:
    """Measures the asyncio clients."""
    watch = _Watch()
    async with brokerd.aio.Producer(bootstrap_servers=servers) as producer:
        await producer.send_and_wait("sent", VALUE)
        watch.start()
        for number in range(RECORDS):
            await producer.send("sent", VALUE, key=_key(number))
        await producer.flush()
        watch.stop("send and flush", RECORDS)
        watch.start()
        for _ in range(ACKNOWLEDGED):
            await producer.send_and_wait("sent", VALUE)
        watch.stop("send and wait, one after the other", ACKNOWLEDGED)
        watch.start()
        await asyncio.gather(*(producer.send_and_wait("sent", VALUE) for _ in range(TASKS * 20)))
        watch.stop("send and wait, many tasks", TASKS * 20)
    async with brokerd.aio.Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([("read", 0), ("read", 1)])

        async def polled() -> int:
            return len(await consumer.poll())

        async def columns() -> int:
            return int((await consumer.poll_arrow()).num_rows)

        async def one() -> int:
            await consumer.__anext__()
            return 1

        calls: list[tuple[str, int, Callable[[], Awaitable[int]]]] = [
            ("poll", READ, polled),
            ("poll_arrow", READ, columns),
            ("iteration", RECORDS, one),
        ]
        for name, count, call in calls:
            consumer.seek_to_beginning()
            watch.start()
            left = count
            while left > 0:
                left -= await call()
            watch.stop(name, count)
    return watch.rates


def main() -> None:
    """Measures and prints."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with Broker() as broker:
        for topic in ("sent", "read"):
            broker.create_topic(topic, 2)
        with brokerd.Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for number in range(READ):
                producer.send("read", VALUE, key=_key(number))
        servers = broker.bootstrap_servers
        rounds = [(blocking(servers), asyncio.run(awaiting(servers))) for _ in range(ROUNDS)]
    for name in rounds[0][1]:
        medians = [
            statistics.median(one[name] for one in column) if name in column[0] else 0 for column in zip(*rounds, strict=True)
        ]
        print(f"{name:36} blocking {medians[0] or float('nan'):12,.0f}   asyncio {medians[1]:12,.0f} records/s")


if __name__ == "__main__":
    main()
