"""Producers and consumers that record what they saw. nemesis.py injects the faults, and checker.py judges the history.

A record's value is `<producer>:<number>:` and padding, which identifies it to readers.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.client.columns import FetchedBatch
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import READ_COMMITTED, READ_UNCOMMITTED, OffsetSpec
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import BrokerdError, WireError
from brokerd.ids import TopicIdPartition, TopicPartition
from tests.chaos.history import History, Poll, Seek, Snapshot, Value
from tests.chaos.recorder import PRODUCER_SETTINGS, Recorder
from tests.chaos.transactors import TIMEOUT_MS, Transactor

logger = logging.getLogger(__name__)

_BURST_RECORDS = 50
_POLL_MS = 200
PAUSE_SECONDS = 0.02  # the longest pause between two bursts of a producer
PROGRESS_SECONDS = 60.0
TRANSACTORS = 3
SETTLE_MS = 45_000  # the broker looks for expired executions every ten seconds, and may just have started


class Workload:
    """Runs `producers` and `consumers` threads against `topic` until `stop()`, after which `history` is complete.

    The history is held in memory: choose a longer `pause_seconds` for a longer run.
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
        transactional: Sequence[str] = (),
    ) -> None:
        """`transactional`: further topics with as many partitions, for transactions. Producers without transactions also write to
        the first of them.
        """
        self._recorder = Recorder()
        self.history = self._recorder.history
        self.history.marked_topics.update(transactional)
        self._bootstrap = bootstrap
        self._topics = (topic, *transactional)
        self._transactional = transactional
        self._plain = [TopicPartition(name, partition) for name in (topic, *transactional[:1]) for partition in range(partitions)]
        self._tps = [TopicPartition(name, partition) for name in self._topics for partition in range(partitions)]
        self._clock = self._recorder.clock
        self._seed = seed
        self._pause_seconds = pause_seconds
        self._stopped = threading.Event()
        self._threads = [
            *(threading.Thread(target=self._guarded, args=(self._produce, i)) for i in range(producers)),
            *(threading.Thread(target=self._guarded, args=(self._consume, i)) for i in range(consumers)),
            *(threading.Thread(target=self._guarded, args=(self._transact, i)) for i in range(TRANSACTORS if transactional else 0)),
            *(threading.Thread(target=self._guarded, args=(self._look, i)) for i in range(1 if transactional else 0)),
        ]
        self.failures: list[BaseException] = []

    @property
    def acknowledged(self) -> int:
        """The number of records and commits so far; shows progress."""
        return self._recorder.acknowledged

    def start(self) -> None:
        """Starts all threads."""
        for thread in self._threads:
            thread.start()

    def abandon(self) -> None:
        """Stops all threads, and ignores their failures."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def halt(self) -> None:
        """Stops all threads. Raises the first failure of a thread."""
        self.abandon()
        if self.failures:
            raise self.failures[0]

    def stop(self) -> History:
        """Stops all threads, reads each partition from its start with a fresh client, and returns the history."""
        self.halt()
        if self._transactional:
            self.history.hanging = wait_until_stable(self._bootstrap, self._topics)
        for topic in self._topics:
            self.history.final |= read_all(self._bootstrap, topic, READ_UNCOMMITTED)
            self.history.committed |= read_all(self._bootstrap, topic, READ_COMMITTED)
        return self.history

    def goes_on(self) -> bool:
        """Waits for another acknowledgement; False if none comes for a minute."""
        return self._rises(lambda: self._recorder.acknowledged)

    def commits_go_on(self) -> bool:
        """Waits for another committed transaction; False if none comes for a minute."""
        return self._rises(lambda: self._recorder.committed)

    def is_reached_anew(self) -> bool:
        """True if a new client of each node is answered by the leaders of all partitions within a minute. Old clients may still use
        a leader that has been deposed.
        """
        for address in self._bootstrap.split(","):
            try:
                with BlockingClient(_consumer_config(address)) as client:
                    end_offsets(client, self._topics, READ_UNCOMMITTED)
            except BrokerdError as error:
                logger.info("a new client of %s fails: %s", address, error)
                return False
        return True

    def _rises(self, count: Callable[[], int]) -> bool:
        before = count()
        pause = threading.Event()
        deadline_ms = self._clock.monotonic_ms() + PROGRESS_SECONDS * 1_000
        while count() == before:
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
        """Sends bursts with pauses. A producer that fails fatally is replaced by one with its own identity."""
        dice = random.Random(f"{self._seed}-{index}")
        in_flight = 1 + index % 5
        settings = {
            **PRODUCER_SETTINGS,
            "bootstrap.servers": self._bootstrap,
            "max.in.flight.batches.per.partition": in_flight,
            "batch.size": dice.choice((512, 4_096, 65_536)),
        }
        while not self._stopped.is_set():
            identity = self._recorder.identity()
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
                tp = dice.choice(self._plain)
                self._recorder.send(producer, Value(identity, number), tp, dice.randrange(200))
                number += 1
            if dice.random() < 0.2:
                producer.flush()
            self._stopped.wait(dice.random() * self._pause_seconds)

    def _transact(self, index: int) -> None:
        """Writes transactions. The last two transactors share a transactional id, so that they conflict."""
        name = f"chaos-{min(index, TRANSACTORS - 2)}"
        config = _consumer_config(self._bootstrap)
        seed = f"{self._seed}-transactor-{index}"
        Transactor(self._recorder, config, self._transactional, name, seed, self._stopped).run(self._pause_seconds * 10)

    def _look(self, _index: int) -> None:
        """Requests all last stable offsets repeatedly."""
        while not self._stopped.is_set():
            try:
                with BlockingClient(_consumer_config(self._bootstrap)) as client:
                    while not self._stopped.is_set():
                        begun_ms = self._clock.monotonic_ms()
                        stable = end_offsets(client, self._topics, READ_COMMITTED)
                        self.history.snapshots.append(Snapshot(begun_ms, self._clock.monotonic_ms(), stable))
                        self._stopped.wait(self._pause_seconds)
            except BrokerdError as error:
                logger.info("the looker begins again: %s", error)
                self._stopped.wait(0.1)

    def _consume(self, index: int) -> None:
        """Reads all partitions. After an error it resumes at its position, or sometimes at an earlier one."""
        dice = random.Random(f"{self._seed}-consumer-{index}")
        isolation = READ_UNCOMMITTED if index % 2 else READ_COMMITTED
        if isolation == READ_COMMITTED:
            self.history.committed_readers.add(index)
        config = _consumer_config(self._bootstrap, isolation)
        positions = dict.fromkeys(self._tps, 0)
        while not self._stopped.is_set():
            try:
                with BlockingClient(config) as client:
                    self._follow(client, config, index, positions)
            except BrokerdError as error:
                logger.info("consumer %d begins again: %s", index, error)
                self._stopped.wait(0.1)
            for tp, offset in positions.items():
                positions[tp] = max(0, offset - dice.choice((0, 0, 0, 100)))

    def _follow(self, client: BlockingClient, config: ConsumerConfig, index: int, positions: dict[TopicPartition, int]) -> None:
        found = client.metadata(list(self._topics)).topics
        names = {TopicIdPartition(found[tp.topic].topic_id, tp.partition): tp for tp in positions}
        for tp, offset in positions.items():
            self.history.reads.append(Seek(index, tp, offset))
        with PartitionFetcher(client, [FetchRange(tp, positions[name]) for tp, name in names.items()], config) as fetcher:
            while not self._stopped.is_set() and not fetcher.is_over:
                batch = fetcher.next_batch(timeout_ms=_POLL_MS)
                if batch is not None:
                    records, name = _records(batch), names[batch.tp]
                    self.history.reads.append(Poll(index, name, records, self._clock.monotonic_ms()))
                    positions[name] = records[-1][0] + 1


def wait_until_stable(bootstrap: str, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, int]]:
    """Waits until no partition holds back records, at most until the last execution must have expired. Returns the partitions that
    still do, with their last stable offsets and high watermarks.
    """
    pause, clock = threading.Event(), SystemClock()
    deadline_ms = clock.monotonic_ms() + TIMEOUT_MS + SETTLE_MS
    with BlockingClient(_consumer_config(bootstrap)) as client:
        while True:
            stable = end_offsets(client, topics, READ_COMMITTED)
            ends = end_offsets(client, topics, READ_UNCOMMITTED)
            hanging = {tp: (offset, ends[tp]) for tp, offset in stable.items() if offset < ends[tp]}
            if not hanging or clock.monotonic_ms() > deadline_ms:
                return hanging
            pause.wait(0.2)


def end_offsets(client: BlockingClient, topics: Sequence[str], isolation: str) -> dict[TopicPartition, int]:
    """The ends of all partitions of these topics, from one request. Raises WireError."""
    found = client.metadata(list(topics)).topics
    names = {
        TopicIdPartition(found[topic].topic_id, partition): TopicPartition(topic, partition)
        for topic in topics
        for partition in range(found[topic].partition_count)
    }
    ends = {}
    for tp, end in client.list_offsets(dict.fromkeys(names, OffsetSpec.LATEST), isolation).items():
        if isinstance(end, WireError):
            raise end
        ends[names[tp]] = end.offset
    return ends


def read_all(bootstrap: str, topic: str, isolation: str) -> dict[TopicPartition, list[tuple[int, Value]]]:
    """Each partition from its start to its end, read with a fresh client."""
    config = _consumer_config(bootstrap, isolation)
    with BlockingClient(config) as client:
        topic_id = client.metadata([topic]).topics[topic].topic_id
        ends = end_offsets(client, [topic], isolation)
        final: dict[TopicPartition, list[tuple[int, Value]]] = {tp: [] for tp in ends}
        ranges = [FetchRange(TopicIdPartition(topic_id, tp.partition), 0, end) for tp, end in ends.items()]
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


def _consumer_config(bootstrap: str, isolation: str = READ_COMMITTED) -> ConsumerConfig:
    return from_mapping(
        ConsumerConfig,
        {
            "bootstrap.servers": bootstrap,
            "isolation.level": isolation,
            "request.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.max.ms": 200,
        },
    )
