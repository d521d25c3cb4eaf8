"""Goal: with a real broker that is killed, restarted and stopped, the asyncio clients write and read each record once, in order,
beside blocking clients, and never block their event loop. Method: `brokerd.testing`, and numbers as values.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import brokerd
from brokerd import TopicPartition
from brokerd.aio import Consumer, Producer
from brokerd.errors import AlreadyCommittedError
from brokerd.testing import Broker
from tests.support.heartbeat import beat, cancelled
from tests.support.wait import DEADLINE_S

LONG_MS = int(DEADLINE_S * 1000)
PARTITIONS = 3
TPS = [TopicPartition("t", number) for number in range(PARTITIONS)]
QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 20, "reconnect.backoff.ms": 1}


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("t", PARTITIONS)
        yield broker


def producer_of(broker: Broker, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap_servers, **QUICK, **settings})


def consumer_of(broker: Broker, **settings: object) -> Consumer:
    return Consumer({"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest", **QUICK, **settings})


async def in_thread(action: Callable[[], object]) -> None:
    """Runs a fault of the broker, which takes a while, in a thread."""
    await asyncio.get_running_loop().run_in_executor(None, action)


async def read(consumer: Consumer, count: int) -> AsyncIterator[tuple[int, int]]:
    """Partition and value of the next records, read by polls that are cancelled repeatedly."""
    while count:
        try:
            async with asyncio.timeout(0.01):
                records = await consumer.poll(LONG_MS, min(count, 250))
        except TimeoutError:
            continue
        for record in records:
            assert record.value is not None
            count -= 1
            yield record.partition, int(record.value)


def test_kills_and_restarts_and_cancelled_calls_lose_and_repeat_nothing(broker: Broker) -> None:
    count = 3_000
    written: list[list[int]] = [[] for _ in range(PARTITIONS)]

    async def write(producer: Producer, partition: int) -> None:
        for number in range(partition, count, PARTITIONS):
            await producer.send_and_wait("t", b"%d" % number, partition=partition) if number % 300 == partition else (
                await producer.send("t", b"%d" % number, partition=partition)
            )
            written[partition].append(number)

    async def trouble() -> None:
        for action in (broker.kill, broker.start, broker.restart, broker.pause, broker.resume, broker.restart):
            await in_thread(action)
            await beat()

    async def scenario() -> list[list[int]]:
        seen: list[list[int]] = [[] for _ in range(PARTITIONS)]
        async with producer_of(broker, **{"linger.ms": 1}) as producer, consumer_of(broker) as consumer:
            consumer.assign(TPS)
            async with asyncio.TaskGroup() as group:
                for partition in range(PARTITIONS):
                    group.create_task(write(producer, partition))
                group.create_task(trouble())
                async for partition, number in read(consumer, count):
                    seen[partition].append(number)
            assert await consumer.poll(0) == []
            assert await consumer.end_offsets(TPS) == {tp: await consumer.position(tp) for tp in TPS}
        return seen

    assert asyncio.run(scenario()) == written


async def test_the_loop_goes_on_while_the_broker_stands_still(broker: Broker) -> None:
    """All calls wait, while a task that counts keeps running."""

    async with (
        producer_of(broker, **{"buffer.memory": 100_000}) as producer,
        consumer_of(broker, **{"group.id": "g"}) as consumer,
    ):
        consumer.assign(TPS)
        await producer.send_and_wait("t", b"0", partition=0)
        assert len(await consumer.poll(LONG_MS)) == 1
        await in_thread(broker.pause)
        sends = [asyncio.create_task(producer.send("t", b"%01000d" % number, partition=0)) for number in range(300)]
        waiting: list[asyncio.Task[Any]] = [asyncio.create_task(consumer.poll()), asyncio.create_task(producer.flush())]
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        await beat()
        assert not any(task.done() for task in waiting)
        assert not all(send.done() for send in sends), "the buffer is full"
        await cancelled(waiting[0])
        commit = asyncio.create_task(consumer.commit())
        await beat()
        await cancelled(commit)
        await in_thread(broker.resume)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*sends)
            await producer.flush()
            assert [value async for _, value in read(consumer, 300)] == list(range(300))


def test_what_one_face_writes_and_commits_the_other_reads(broker: Broker) -> None:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}

    async def first() -> None:
        async with producer_of(broker) as producer, consumer_of(broker, **{"group.id": "g"}) as consumer:
            consumer.assign(TPS)
            for number in range(10):
                await producer.send("t", b"%d" % number, partition=0, headers={"h": b"x"})
            await producer.flush()
            assert [value async for _, value in read(consumer, 4)] == [0, 1, 2, 3]
            await consumer.commit()

    asyncio.run(first())
    with brokerd.Consumer(settings) as consumer, brokerd.Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        consumer.assign(TPS)
        assert [record.value for record in consumer.poll(LONG_MS, 3)] == [b"4", b"5", b"6"]
        producer.send("t", b"10", partition=0).result(DEADLINE_S)
        consumer.commit()

    async def second() -> None:
        async with consumer_of(broker, **{"group.id": "g"}) as consumer:
            consumer.assign(TPS)
            rows = await consumer.poll_arrow(LONG_MS)
            assert rows.column("value").to_pylist() == [b"7", b"8", b"9"]
            assert (await consumer.__anext__()).value == b"10"

    asyncio.run(second())


def test_transactions_cancelled_and_killed_are_whole_and_once(broker: Broker) -> None:
    """Each version is retried until it is committed, as a restarted program would do."""
    versions, size = 12, 30

    async def write(version: int, turns: int) -> None:
        async with producer_of(broker, **{"transactional.id": "x", "linger.ms": 0}) as producer:

            async def attempt() -> None:
                async with producer.transaction(version):
                    for number in range(size):
                        await producer.send("t", b"%d" % (version * size + number), partition=0)

            trying = asyncio.create_task(attempt())
            await beat(turns)
            trying.cancel()
            await asyncio.wait([trying])
            if turns % 2:
                await in_thread(functools.partial(broker.restart))
            try:
                await attempt()
            except AlreadyCommittedError:
                assert await producer.last_committed_version() == version

    async def scenario() -> list[int]:
        for version in range(versions):
            await write(version, version * 17)
        async with consumer_of(broker) as consumer:
            consumer.assign(TPS)
            ends = await consumer.end_offsets(TPS)
            values = []
            while await consumer.position(TPS[0]) < ends[TPS[0]]:
                values += [int(record.value or b"") for record in await consumer.poll(100)]
            return values

    assert asyncio.run(scenario()) == list(range(versions * size))


def test_reading_working_and_writing_is_exactly_once_whatever_is_cancelled(broker: Broker) -> None:
    count = 200
    broker.create_topic("out", 1)
    broker.topic("t").append([{"value": b"%d" % number, "partition": 0} for number in range(count)])

    async def copy_some(producer: Producer, consumer: Consumer) -> None:
        async with producer.transaction() as transaction:
            for record in await consumer.poll(LONG_MS, 15):
                await producer.send("out", record.value)
            await transaction.send_offsets({TPS[0]: await consumer.position(TPS[0])}, consumer)

    async def scenario() -> list[bytes | None]:
        settings = {"group.id": "g", "enable.auto.commit": False}
        async with producer_of(broker, **{"transactional.id": "x"}) as producer, consumer_of(broker, **settings) as consumer:
            consumer.assign(TPS[:1])
            turns = 0
            while await consumer.position(TPS[0]) < count:
                copying = asyncio.create_task(copy_some(producer, consumer))
                if turns % 3:
                    await beat(turns * 7)
                    copying.cancel()
                await asyncio.wait([copying])
                turns += 1
        async with consumer_of(broker) as consumer:
            consumer.assign([("out", 0)])
            ends = await consumer.end_offsets([("out", 0)])
            values: list[bytes | None] = []
            while await consumer.position(("out", 0)) < ends[TopicPartition("out", 0)]:
                values += [record.value for record in await consumer.poll(100)]
            return values

    assert asyncio.run(scenario()) == [b"%d" % number for number in range(count)]
