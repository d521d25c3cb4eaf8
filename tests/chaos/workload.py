"""Producers and consumers that record what they saw. What is done to the broker meanwhile is in nemesis.py; judging in checker.py.

A record's value is `<producer>:<number>:` and padding, so that a reader knows whose it is.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from functools import partial

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.client.consumer.fetched import FetchedBatch
from brokerd.client.consumer.fetcher import PartitionFetcher
from brokerd.client.consumer.offsets import OffsetSpec
from brokerd.client.consumer.positions import FetchRange
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import BrokerdError, Fate, WireError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.futures import RecordFuture
from tests.chaos.history import History, Outcome, Poll, Seek, Send, Value

logger = logging.getLogger(__name__)

PRODUCER_SETTINGS: dict[str, object] = {
    "linger.ms": 1,
    "request.timeout.ms": 3_000,
    "delivery.timeout.ms": 20_000,
    "max.block.ms": 10_000,
    "retry.backoff.max.ms": 200,
    "reconnect.backoff.max.ms": 100,
}
_BURST_RECORDS = 50
_POLL_MS = 200
PAUSE_SECONDS = 0.02  # the longest between two bursts of a producer
PROGRESS_SECONDS = 60.0


class Workload:
    """Runs `producers` and `consumers` threads against `topic` until `stop()`; `history` is complete after it.

    The history is held in memory: the longer a run, the longer `pause_seconds` should be.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partitions: int,
        producers: int,
        consumers: int,
        seed: int,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self.history = History()
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._clock = SystemClock()
        self._seed = seed
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._next_producer = 0
        self._threads = [
            *(threading.Thread(target=self._guarded, args=(self._produce, i)) for i in range(producers)),
            *(threading.Thread(target=self._guarded, args=(self._consume, i)) for i in range(consumers)),
        ]
        self.acknowledged = 0  # progress, for whoever waits for some
        self.failures: list[BaseException] = []

    def start(self) -> None:
        """Starts all threads."""
        for thread in self._threads:
            thread.start()

    def abandon(self) -> None:
        """Stops all threads, whatever they failed with."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def halt(self) -> None:
        """Stops all threads. Raises what a worker failed with."""
        self.abandon()
        if self.failures:
            raise self.failures[0]

    def stop(self) -> History:
        """Stops all threads, reads each partition from its start with a fresh client, and returns what was seen."""
        self.halt()
        self.history.final = read_all(self._bootstrap, self._topic)
        return self.history

    def goes_on(self) -> bool:
        """Waits until something more is acknowledged; False if nothing is for a minute."""
        before = self.acknowledged
        pause = threading.Event()
        deadline_ms = self._clock.monotonic_ms() + PROGRESS_SECONDS * 1_000
        while self.acknowledged == before:
            if self.failures or self._clock.monotonic_ms() > deadline_ms:
                return False
            pause.wait(0.01)
        return True

    def _guarded(self, work: Callable[[int], None], index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            logger.exception("worker %d failed", index)
            self.failures.append(error)

    def _produce(self, index: int) -> None:
        """Sends bursts with pauses; a producer that failed for good is followed by another, with an identity of its own."""
        dice = random.Random(f"{self._seed}-{index}")
        in_flight = 1 + index % 5
        settings = {
            **PRODUCER_SETTINGS,
            "bootstrap.servers": self._bootstrap,
            "max.in.flight.batches.per.partition": in_flight,
            "batch.size": dice.choice((512, 4_096, 65_536)),
        }
        while not self._stopped.is_set():
            with self._lock:
                identity = self._next_producer
                self._next_producer += 1
            try:
                with Producer(settings) as producer:
                    self._send_bursts(producer, identity, dice)
            except BrokerdError as error:
                logger.info("producer %d ended: %s", identity, error)
                self._stopped.wait(0.1)

    def _send_bursts(self, producer: Producer, identity: int, dice: random.Random) -> None:
        number = 0
        while not self._stopped.is_set():
            for _ in range(dice.randrange(1, _BURST_RECORDS)):
                tp = TopicPartition(self._topic, dice.randrange(self._partitions))
                value = Value(identity, number)
                number += 1
                text = b"%d:%d:" % value + b"." * dice.randrange(200)
                invoked_ms = self._clock.monotonic_ms()
                future = producer.send(self._topic, value=text, partition=tp.partition)
                future.add_done_callback(partial(self._record_send, value, tp, invoked_ms))
            if dice.random() < 0.2:
                producer.flush()
            self._stopped.wait(dice.random() * self._pause_seconds)

    def _record_send(self, value: Value, tp: TopicPartition, invoked_ms: int, future: RecordFuture) -> None:
        now_ms = self._clock.monotonic_ms()
        error = future.exception()
        if error is None:
            metadata = future.result()
            send = Send(value, tp, invoked_ms, now_ms, Outcome.OK, metadata.offset)
            self.acknowledged += 1
        else:
            certain = isinstance(error, WireError) and error.fate is Fate.NOT_APPENDED
            send = Send(value, tp, invoked_ms, now_ms, Outcome.FAILED if certain else Outcome.UNKNOWN)
        self.history.sends.append(send)

    def _consume(self, index: int) -> None:
        """Follows all partitions; begins again where it was after an error, from an older place now and then."""
        dice = random.Random(f"{self._seed}-consumer-{index}")
        positions = dict.fromkeys(range(self._partitions), 0)
        while not self._stopped.is_set():
            try:
                with BlockingClient(_consumer_config(self._bootstrap)) as client:
                    self._follow(client, index, positions)
            except BrokerdError as error:
                logger.info("consumer %d begins again: %s", index, error)
                self._stopped.wait(0.1)
            for partition, offset in positions.items():
                positions[partition] = max(0, offset - dice.choice((0, 0, 0, 100)))

    def _follow(self, client: BlockingClient, index: int, positions: dict[int, int]) -> None:
        topic_id = client.metadata([self._topic]).topics[self._topic].topic_id
        ranges = [FetchRange(TopicIdPartition(topic_id, partition), offset) for partition, offset in positions.items()]
        for partition, offset in positions.items():
            self.history.reads.append(Seek(index, TopicPartition(self._topic, partition), offset))
        with PartitionFetcher(client, ranges, _consumer_config(self._bootstrap)) as fetcher:
            while not self._stopped.is_set() and not fetcher.is_over:
                batch = fetcher.next_batch(timeout_ms=_POLL_MS)
                if batch is not None:
                    records = _records(batch)
                    self.history.reads.append(Poll(index, TopicPartition(self._topic, batch.tp.partition), records))
                    positions[batch.tp.partition] = records[-1][0] + 1


def read_all(bootstrap: str, topic: str) -> dict[TopicPartition, list[tuple[int, Value]]]:
    """Each partition from its start to its end, with a fresh client."""
    config = _consumer_config(bootstrap)
    with BlockingClient(config) as client:
        info = client.metadata([topic]).topics[topic]
        tps = [TopicIdPartition(info.topic_id, partition) for partition in range(info.partition_count)]
        starts = client.list_offsets(dict.fromkeys(tps, OffsetSpec.EARLIEST))
        ends = client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
        final: dict[TopicPartition, list[tuple[int, Value]]] = {TopicPartition(topic, tp.partition): [] for tp in tps}
        ranges = []
        for tp in tps:
            start, end = starts[tp], ends[tp]
            if isinstance(start, WireError):
                raise start
            if isinstance(end, WireError):
                raise end
            ranges.append(FetchRange(tp, start.offset, end.offset))
        with PartitionFetcher(client, ranges, config) as fetcher:
            for batch in fetcher:
                final[TopicPartition(topic, batch.tp.partition)].extend(_records(batch))
    return final


def _records(batch: FetchedBatch) -> tuple[tuple[int, Value], ...]:
    values = batch.arrow_batch.column("value").to_pylist()
    return tuple((offset, _parse(value)) for offset, value in zip(batch.offsets.to_pylist(), values, strict=True))


def _parse(value: bytes) -> Value:
    producer, number, _ = value.split(b":", 2)
    return Value(int(producer), int(number))


def _consumer_config(bootstrap: str) -> ConsumerConfig:
    return from_mapping(
        ConsumerConfig,
        {"bootstrap.servers": bootstrap, "request.timeout.ms": 3_000, "reconnect.backoff.max.ms": 100, "retry.backoff.max.ms": 200},
    )
