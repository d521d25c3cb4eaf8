"""brokerd's producer and consumer beside Python's Kafka clients with a real Kafka: the same records, acks=all, idempotence on, and
500 records per poll.

Kafka acknowledges records in the page cache, brokerd records on disk. The Kafka clients are not dependencies of brokerd and run in
a separate interpreter (kafka_clients.py).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.clients import send_latencies
from benchmarks.environment import KEYS, ROWS_PER_BATCH, Answering, Child, Server, value_at
from benchmarks.floor import sync_latencies
from benchmarks.measure import CEILING, OURS, Work
from brokerd import Consumer, Producer

PEERS = ("confluent-kafka", "kafka-python")
SYNC_COUNT = 500
# Divides the record count, since kafka-python is slow.
SHARE = {"confluent-kafka": 1, "kafka-python": 10}
VALUES = 2_000


def kafka_clients(python: str, servers: str) -> Answering:
    """The process of the Kafka clients; it greets with their versions."""
    return Answering([python, str(Path(__file__).with_name("kafka_clients.py")), servers])


class PeerWorks:
    """The works of one run."""

    def __init__(
        self, broker: Server, floor: Child, kafka: Answering | None, *, records: int, value_bytes: int, partitions: int
    ) -> None:
        self._broker = broker
        self._floor = floor
        self._kafka = kafka
        self._count = records
        self._partitions = partitions
        self._values = [value_at(row, value_bytes) for row in range(VALUES)]
        self._records = [(b"k%07d" % (row % KEYS), value) for row, value in enumerate(self._values)]
        keys = [key for key, _ in self._records]
        self._rows = pa.RecordBatch.from_pydict({"key": keys, "value": self._values})
        self._rows = pa.Table.from_batches([self._rows] * (ROWS_PER_BATCH // VALUES)).combine_chunks().to_batches()[0]
        self._record_bytes = len(keys[0]) + value_bytes

    def works(self) -> list[Work]:
        """All works, brokerd's and the peers' in turn."""
        count, peers = self._count, PEERS if self._kafka is not None else ()
        made = [self._work("keyed send", OURS, count, self._send)]
        made += [self._peer_work("keyed send", peer, count // SHARE[peer], "send") for peer in peers]
        made.append(self._work("keyed send_batch", OURS, 10 * count, self._send_batch))
        made.append(self._work("poll", OURS, count, self._poll))
        made += [self._peer_work("poll", peer, count // SHARE[peer], "receive") for peer in peers]
        if self._kafka is not None:
            one_by_one = self._peer_work("poll", "confluent-kafka", count, "receive each")
            made.append(replace(one_by_one, peer="confluent-kafka, one by one"))
        value, floor = self._values[0], self._floor.address
        made.append(self._work("synchronous", OURS, SYNC_COUNT, lambda _: send_latencies(self._broker, value, SYNC_COUNT)))
        made.append(self._work("synchronous", CEILING, SYNC_COUNT, lambda _: sync_latencies(floor, value * 2, SYNC_COUNT)))
        made += [self._peer_work("synchronous", peer, SYNC_COUNT, "latencies") for peer in peers]
        return made

    def _work(self, name: str, peer: str, count: int, run: Any) -> Work:
        return Work(name, peer, run, count, count * self._record_bytes)

    # --- brokerd

    def _send(self, _round: int) -> float:
        with self._broker.topic(self._partitions) as topic, Producer({"bootstrap.servers": self._broker.address}) as producer:
            producer.send(topic, b"first").result()
            start = time.perf_counter()
            self._send_records(producer, topic)
            producer.flush()
            return time.perf_counter() - start

    def _send_records(self, producer: Producer, topic: str) -> None:
        size = len(self._records)
        for number in range(self._count):
            key, value = self._records[number % size]
            producer.send(topic, value, key)

    def _send_batch(self, _round: int) -> float:
        with self._broker.topic(self._partitions) as topic, Producer({"bootstrap.servers": self._broker.address}) as producer:
            producer.send(topic, b"first").result()
            start = time.perf_counter()
            for _ in range(10 * self._count // self._rows.num_rows):
                producer.send_batch(topic, self._rows)
            producer.flush()
            return time.perf_counter() - start

    def _poll(self, _round: int) -> float:
        servers = {"bootstrap.servers": self._broker.address}
        with self._broker.topic(self._partitions) as topic:
            with Producer(servers) as producer:
                self._send_records(producer, topic)
            with Consumer({**servers, "auto.offset.reset": "earliest"}) as consumer:
                consumer.partitions_for(topic)
                start = time.perf_counter()
                consumer.assign([(topic, number) for number in range(self._partitions)])
                received = 0
                while received < self._count:
                    records = [(record.key, record.value) for record in consumer.poll()]
                    received += len(records)
                return time.perf_counter() - start

    # --- Kafka clients

    def _peer_work(self, name: str, client: str, count: int, do: str) -> Work:
        assert self._kafka is not None
        values = [value.decode() for value in self._values]
        asked = {"work": do, "client": client, "count": count, "values": values, "keys": KEYS, "partitions": self._partitions}
        kafka = self._kafka
        return self._work(name, client, count, lambda _: kafka.ask(**asked))
