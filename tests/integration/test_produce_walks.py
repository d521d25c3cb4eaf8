"""Goal: the producer's test double, and the partition model that its simulator also uses, respond as the real daemon does. Method:
random conversations and every refusal, run against both; every response is compared.
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.client.blocking import BlockingClient
from brokerd.client.produce_transport import GrpcProduceTransport
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig, ProducerConfig
from brokerd.errors import BrokerdError
from brokerd.ids import NO_PRODUCER, NO_SEQUENCE, ProducerIdAndEpoch, TopicIdPartition
from brokerd.producer.core.transport import Hello, PartitionResult
from tests.support.broker_double import double_of
from tests.support.daemon import running_daemon
from tests.support.files import MemoryFiles
from tests.support.produce_session import Session, TransportFactory, in_session

MAX_MESSAGE_BYTES = 2_048
PRODUCERS = 3
PARTITIONS = 2
Forget = Callable[[ProducerIdAndEpoch], None]


class Broker(NamedTuple):
    """The daemon or the double. `forget` makes the double do what the daemon's limit of producers does."""

    factory: TransportFactory
    forget: Forget


@contextmanager
def double() -> Iterator[Broker]:
    broker = double_of(PARTITIONS, max_message_bytes=MAX_MESSAGE_BYTES)
    partition = broker.topics["t"].partitions[0]
    yield Broker(lambda: broker.transport(ProducerConfig()), lambda identity: partition.forget(identity.producer_id))


@contextmanager
def daemon(directory: Path, **settings: Any) -> Iterator[Broker]:
    with running_daemon(directory, files=MemoryFiles(), message_max_bytes=MAX_MESSAGE_BYTES, **settings) as running:
        config = ClientConfig(bootstrap_servers=running.address)
        with BlockingClient(config) as client:
            client.create_topic("t", PARTITIONS)
        yield Broker(lambda: GrpcProduceTransport(config, SystemClock()), lambda identity: None)


def answer(result: PartitionResult) -> tuple[object, ...]:
    """The fields that a producer uses."""
    if result.error is None:
        return ("at", result.base_offset)
    error = result.error
    numbers = (error.expected_sequence, error.current_epoch, error.retry_after_ms)
    return (type(error).__name__, error.fate.name, error.retriable, error.refresh_metadata, *numbers)


def answers(broker: Broker, work: Callable[[Session, ProducerIdAndEpoch], Awaitable[list[tuple[object, ...]]]]) -> list[object]:
    """A broker's responses to a conversation."""
    heard: list[object] = []

    async def talk(session: Session, identity: ProducerIdAndEpoch) -> None:
        heard.extend(await work(session, identity))

    in_session(broker.factory, talk)
    return heard


class Step(NamedTuple):
    """A batch of one of the producers. With `raises`, its epoch is raised first."""

    producer: int
    epochs_back: int
    sequence: int
    records: int
    partition: int
    raises: bool


def conversation(rng: random.Random, length: int = 60) -> Iterator[Step]:
    """Mostly valid batches, with retries, gaps, overlaps, old epochs and batches without a producer among them."""
    sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for _ in range(length):
        producer, partition, count = rng.randrange(PRODUCERS), rng.randrange(PARTITIONS), rng.randint(1, 4)
        batches = sent.setdefault((producer, partition), [])
        expected = sum(batches[-1]) if batches else 0
        kind = rng.choices(("next", "repeated", "gap", "overlap", "old epoch", "raised", "nobody"), (50, 20, 6, 10, 4, 5, 5))[0]
        if kind == "repeated" and batches:
            yield Step(producer, 0, *rng.choice(batches[-8:]), partition, False)
        elif kind == "gap":
            yield Step(producer, 0, expected + rng.randint(1, 9), count, partition, False)
        elif kind == "overlap":
            yield Step(producer, 0, max(0, expected - rng.randint(1, 9)), count, partition, False)
        elif kind == "old epoch":
            yield Step(producer, 1, expected, count, partition, False)
        elif kind == "nobody":
            yield Step(-1, 0, NO_SEQUENCE, count, partition, False)
        else:
            if kind == "raised":
                sent |= {key: [] for key in sent if key[0] == producer}
            sent[producer, partition].append((0 if kind == "raised" else expected, count))
            yield Step(producer, 0, *sent[producer, partition][-1], partition, kind == "raised")


async def talk(steps: list[Step], session: Session) -> list[tuple[object, ...]]:
    producers = [await session.transport.init_producer_id(NO_PRODUCER) for _ in range(PRODUCERS)]
    heard: list[tuple[object, ...]] = []
    for step in steps:
        if step.raises:
            raised = await session.transport.init_producer_id(producers[step.producer])
            heard.append(("epoch", raised.epoch, raised.producer_id == producers[step.producer].producer_id))
            producers[step.producer] = raised
        identity = producers[step.producer] if step.producer >= 0 else NO_PRODUCER
        if step.epochs_back and identity.epoch:
            identity = identity._replace(epoch=identity.epoch - 1)
        heard.append(answer(await session.send(identity, step.sequence, step.records, partition=step.partition)))
    return heard


def test_conversations_drawn_by_lot_are_answered_alike(tmp_path: Path) -> None:
    names: set[object] = set()
    for seed in range(12):
        steps = list(conversation(random.Random(seed)))
        with double() as one, daemon(tmp_path / str(seed)) as other:
            expected = answers(other, lambda session, _identity, steps=steps: talk(steps, session))  # type: ignore[misc]
            assert answers(one, lambda session, _identity, steps=steps: talk(steps, session)) == expected, seed  # type: ignore[misc]
        names |= {heard[0] for heard in expected}  # type: ignore[index]
    assert names == {
        "at",
        "epoch",
        "UnknownProducerIdError",
        "OutOfOrderSequenceError",
        "DuplicateSequenceError",
        "InvalidProducerEpochError",
    }


async def refusals(session: Session, identity: ProducerIdAndEpoch) -> list[tuple[object, ...]]:
    here = TopicIdPartition(session.topic_id, 0)
    header, payload = session.encoded(identity, 0, 2, here)
    flipped = payload.to_pybytes()[:-1] + b"\xff"
    return [
        answer(await session.send_bytes(here, header, pa.py_buffer(flipped))),
        answer(await session.send_bytes(here, header[:-1] + b"\xff", payload)),
        answer(await session.send_bytes(here, *session.encoded(identity, 0, 2, here._replace(partition=1)))),
        answer(await session.send_bytes(here, *session.encoded(identity, 0, MAX_MESSAGE_BYTES, here))),
        answer(await session.send(identity, 0, 1, partition=PARTITIONS)),
        answer(await session.send(identity, 0, 1, topic_id=os.urandom(16))),
        answer(await session.send_bytes(here, header, payload)),
    ]


def test_what_is_refused_is_refused_alike_and_leaves_nothing(tmp_path: Path) -> None:
    with double() as one, daemon(tmp_path / "data") as other:
        expected = answers(other, refusals)
        assert answers(one, refusals) == expected
    assert [heard[0] for heard in expected] == [  # type: ignore[index]
        "CorruptMessageError",
        "CorruptMessageError",
        "CorruptMessageError",
        "MessageTooLargeError",
        "UnknownTopicOrPartitionError",
        "UnknownTopicIdError",
        "at",
    ]


def test_a_producer_pushed_out_by_a_newer_one_is_answered_alike(tmp_path: Path) -> None:
    async def pushed_out(forget: Forget, session: Session, first: ProducerIdAndEpoch) -> list[tuple[object, ...]]:
        second = await session.transport.init_producer_id(NO_PRODUCER)
        heard = [answer(await session.send(first, 0, 2)), answer(await session.send(second, 0, 1))]
        forget(first)
        heard += [answer(await session.send(first, sequence, 2)) for sequence in (0, 2)]
        third = await session.transport.init_producer_id(NO_PRODUCER)
        heard.append(answer(await session.send(third, 0, 1)))
        return heard

    def of(broker: Broker) -> list[object]:
        return answers(broker, lambda session, identity: pushed_out(broker.forget, session, identity))

    with double() as one, daemon(tmp_path / "data", max_producer_ids_per_partition=1) as other:
        expected = of(other)
        assert of(one) == expected
    assert [heard[0] for heard in expected] == ["at", "at", "UnknownProducerIdError", "UnknownProducerIdError", "at"]  # type: ignore[index]


def test_streams_of_one_instance_replace_each_other_alike(tmp_path: Path) -> None:
    """An older stream of an instance can append nothing after a newer one has said hello."""
    instance = os.urandom(16)

    async def replaced(session: Session, identity: ProducerIdAndEpoch) -> list[tuple[object, ...]]:
        heard: list[tuple[object, ...]] = []
        for incarnation in (5, 6, 5):
            try:
                stream = await session.transport.open_stream(0, Hello(instance, incarnation))
                again = Session(session.transport, session.topic_id, stream)
                heard.append(answer(await again.send(identity, len(heard), 1)))
            except BrokerdError as error:
                heard.append((type(error).__name__,))
        return heard

    with double() as one, daemon(tmp_path / "data") as other:
        expected = answers(other, replaced)
        assert answers(one, replaced) == expected
    assert expected[:2] == [("at", 0), ("at", 1)]


def test_epochs_are_raised_alike(tmp_path: Path) -> None:
    async def raised(session: Session, identity: ProducerIdAndEpoch) -> list[tuple[object, ...]]:
        heard: list[tuple[object, ...]] = []
        current = identity
        for _ in range(3):
            current = await session.transport.init_producer_id(current)
            heard.append((current.epoch, current.producer_id == identity.producer_id))
        again = await session.transport.init_producer_id(identity)  # its response was lost
        return [*heard, (again.epoch, again.producer_id == identity.producer_id)]

    with double() as one, daemon(tmp_path / "data") as other:
        assert answers(one, raised) == answers(other, raised)
