"""Producer and consumer without Spark, each beside a bare gRPC stream that moves the same bytes in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from benchmarks.environment import KEYS, Child, Server, arrow_batches, value_at
from benchmarks.floor import MESSAGE_BYTES, give_seconds, sync_latencies, take_seconds
from benchmarks.measure import CEILING, OURS, Work
from brokerd import Consumer, Producer
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetSpec
from brokerd.config.client import ConsumerConfig
from brokerd.ids import TopicIdPartition
from brokerd.record.schema import encode_payload

PRODUCER_GOAL = 0.40
CONSUMER_GOAL = 0.60
SYNC_COUNT = 300
RECORDS_SHARE = 20  # divides the row count for works that send record by record


class ClientWorks:
    """The works of one run, on one broker and one bare server."""

    def __init__(self, broker: Server, floor: Child, *, rows: int, value_bytes: int, partitions: int) -> None:
        self._broker = broker
        self._floor = floor
        self._partitions = partitions
        self._value_bytes = value_bytes
        self._batches = list(arrow_batches(rows, value_bytes))
        self._rows = rows
        self._topic = ""  # written by the last producer round, read by the consumer
        self._messages = _messages(self._batches)
        self._size_bytes = sum(map(len, self._messages))
        few = rows // RECORDS_SHARE
        self._records = [(b"k%07d" % (row % KEYS), value_at(row, value_bytes)) for row in range(min(few, 20_000))]
        self._record_count = few

    def works(self) -> list[Work]:
        """All works; the consumer reads what the producer of the same round wrote."""
        size, few = self._size_bytes, self._record_count
        few_bytes, few_messages = size * few // self._rows, self._messages[: max(1, len(self._messages) * few // self._rows)]

        def give(_round: int) -> float:
            return give_seconds(self._floor.address, size)

        return [
            Work("producer send_batch", OURS, self._produce_batches, self._rows, size, PRODUCER_GOAL),
            Work("producer send_batch", CEILING, lambda _: take_seconds(self._floor.address, self._messages), self._rows, size),
            Work("consumer", OURS, self._consume, self._rows, size, CONSUMER_GOAL),
            Work("consumer", CEILING, give, self._rows, size),
            Work("consumer poll_arrow", OURS, lambda _: self._poll(Consumer.poll_arrow), self._rows, size, CONSUMER_GOAL),
            Work("consumer poll_arrow", CEILING, give, self._rows, size),
            Work("consumer poll", OURS, lambda _: self._poll(Consumer.poll), self._rows, size),
            Work("consumer poll", CEILING, give, self._rows, size),
            Work("producer send", OURS, self._produce_records, few, few_bytes),
            Work("producer send", CEILING, lambda _: take_seconds(self._floor.address, few_messages), few, few_bytes),
        ]

    def latency_works(self) -> list[Work]:
        """The works that send one record at a time and wait for each."""
        value, size = value_at(0, self._value_bytes), SYNC_COUNT * self._value_bytes
        runs: dict[str, Callable[[int], list[float]]] = {
            OURS: lambda _: send_latencies(self._broker, value, SYNC_COUNT),
            CEILING: lambda _: sync_latencies(self._floor.address, value * 2, SYNC_COUNT),
        }
        return [Work("synchronous send", peer, run, SYNC_COUNT, size) for peer, run in runs.items()]

    def _produce_batches(self, _round: int) -> float:
        if self._topic:
            self._broker.delete_topic(self._topic)
        self._topic = self._broker.new_topic(self._partitions)
        with Producer({"bootstrap.servers": self._broker.address}) as producer:
            start = time.perf_counter()
            for arrow_batch in self._batches:
                producer.send_batch(self._topic, arrow_batch)
            producer.flush()
            return time.perf_counter() - start

    def _produce_records(self, _round: int) -> float:
        with self._broker.topic(self._partitions) as topic, Producer({"bootstrap.servers": self._broker.address}) as producer:
            start = time.perf_counter()
            for number in range(self._record_count):
                key, value = self._records[number % len(self._records)]
                producer.send(topic, key=key, value=value)
            producer.flush()
            return time.perf_counter() - start

    def _consume(self, _round: int) -> float:
        config = ConsumerConfig(bootstrap_servers=self._broker.address)
        with self._broker.client() as client:
            topic_id = client.metadata([self._topic]).topics[self._topic].topic_id
            tps = [TopicIdPartition(topic_id, number) for number in range(self._partitions)]
            ends = client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
            starts = client.list_offsets(dict.fromkeys(tps, OffsetSpec.EARLIEST))
            ranges = [FetchRange(tp, starts[tp].offset, ends[tp].offset) for tp in tps]  # type: ignore[union-attr]
            start = time.perf_counter()
            rows = 0
            with PartitionFetcher(client, ranges, config) as fetcher:
                for fetched in fetcher:
                    rows += len(fetched.offsets)
            taken = time.perf_counter() - start
        if rows != self._rows:
            raise RuntimeError(f"{self._rows} rows were written, {rows} were read")
        return taken

    def _poll(self, poll: Callable[[Consumer], Sequence[object] | pa.RecordBatch]) -> float:
        """Reads the topic with the plain Python Consumer."""
        with Consumer({"bootstrap.servers": self._broker.address, "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([(self._topic, number) for number in range(self._partitions)])
            consumer.end_offsets(consumer.assignment())  # connects before the measurement
            start = time.perf_counter()
            rows = 0
            while rows < self._rows:
                rows += len(poll(consumer))
            return time.perf_counter() - start


def send_latencies(broker: Server, value: bytes, count: int) -> list[float]:
    """The seconds of each of `count` records, sent and awaited one at a time."""
    with broker.topic(1) as topic, Producer({"bootstrap.servers": broker.address, "linger.ms": "0"}) as producer:
        producer.send(topic, value=value).result()
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            producer.send(topic, value=value).result()
            taken.append(time.perf_counter() - start)
        return taken


def _messages(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    """The batches as the producer encodes them, in messages of MESSAGE_BYTES."""
    whole = b"".join(encode_payload(arrow_batch).data.to_pybytes() for arrow_batch in batches)
    return [whole[at : at + MESSAGE_BYTES] for at in range(0, len(whole), MESSAGE_BYTES)]
