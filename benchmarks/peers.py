"""Our producer and consumer beside Python's Kafka clients with a real Kafka: the same records, acks=all, idempotence on, and 500
records per poll.

Kafka acknowledges records in the page cache, brokerd records on the disk. The Kafka clients are not dependencies of ours and run
in an interpreter of their own (kafka_clients.py).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from benchmarks.environment import KEYS, ROWS_PER_BATCH, Child, Server, value_at
from benchmarks.floor import sync_latencies
from benchmarks.measure import CEILING, OURS, Work
from brokerd import Consumer, Producer

PEERS = ("confluent-kafka", "kafka-python")
SYNC_COUNT = 500
# Divides the record count: kafka-python is slow, and needs fewer.
SHARE = {"confluent-kafka": 1, "kafka-python": 10}
VALUES = 2_000


class KafkaClients:
    """The process of the Kafka clients."""

    def __init__(self, python: str, servers: str) -> None:
        script = Path(__file__).with_name("kafka_clients.py")
        self._process = subprocess.Popen([python, str(script), servers], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._answer().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)

    def ask(self, **asked: object) -> Any:
        """Sends a request and returns its response."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Kafka clients ended with status {self._process.wait()}")
        return line


class PeerWorks:
    """The works of one run."""

    def __init__(
        self, broker: Server, floor: Child, kafka: KafkaClients | None, *, records: int, value_bytes: int, partitions: int
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
        """All works, ours and the peers' in turn."""
        count = self._count
        made = [self._work("keyed send", OURS, count, self._send)]
        made += [self._work("keyed send", peer, count // SHARE[peer], self._peer_send(peer)) for peer in self._peers]
        made.append(self._work("keyed send_batch", OURS, 10 * count, self._send_batch))
        made.append(self._work("poll", OURS, count, self._poll))
        made += [self._work("poll", peer, count // SHARE[peer], self._peer_poll(peer)) for peer in self._peers]
        if self._kafka is not None:
            made.append(
                self._work("poll", "confluent-kafka, one by one", count, self._peer_poll("confluent-kafka", "receive each"))
            )
        made.append(self._work("synchronous", OURS, SYNC_COUNT, self._send_synchronously))
        made.append(self._work("synchronous", CEILING, SYNC_COUNT, self._bare_round_trips))
        made += [self._work("synchronous", peer, SYNC_COUNT, self._peer_latencies(peer)) for peer in self._peers]
        return made

    @property
    def _peers(self) -> Sequence[str]:
        return PEERS if self._kafka is not None else ()

    def _work(self, name: str, peer: str, count: int, run: Any) -> Work:
        return Work(name, peer, run, count, count * self._record_bytes)

    # --- ours

    def _send(self, _round: int) -> float:
        topic = self._broker.new_topic(self._partitions)
        with Producer({"bootstrap.servers": self._broker.address}) as producer:
            producer.send(topic, b"first").result()
            size = len(self._records)
            start = time.perf_counter()
            for number in range(self._count):
                key, value = self._records[number % size]
                producer.send(topic, value, key)
            producer.flush()
            taken = time.perf_counter() - start
        self._broker.delete_topic(topic)
        return taken

    def _send_batch(self, _round: int) -> float:
        topic = self._broker.new_topic(self._partitions)
        with Producer({"bootstrap.servers": self._broker.address}) as producer:
            producer.send(topic, b"first").result()
            start = time.perf_counter()
            for _ in range(10 * self._count // self._rows.num_rows):
                producer.send_batch(topic, self._rows)
            producer.flush()
            taken = time.perf_counter() - start
        self._broker.delete_topic(topic)
        return taken

    def _poll(self, _round: int) -> float:
        topic = self._broker.new_topic(self._partitions)
        servers = {"bootstrap.servers": self._broker.address}
        with Producer(servers) as producer:
            for number in range(self._count):
                key, value = self._records[number % len(self._records)]
                producer.send(topic, value, key)
        with Consumer({**servers, "auto.offset.reset": "earliest"}) as consumer:
            consumer.partitions_for(topic)
            start = time.perf_counter()
            consumer.assign([(topic, number) for number in range(self._partitions)])
            received = 0
            while received < self._count:
                records = [(record.key, record.value) for record in consumer.poll()]
                received += len(records)
            taken = time.perf_counter() - start
        self._broker.delete_topic(topic)
        return taken

    def _send_synchronously(self, _round: int) -> list[float]:
        topic = self._broker.new_topic(1)
        taken = []
        with Producer({"bootstrap.servers": self._broker.address, "linger.ms": "0"}) as producer:
            producer.send(topic, self._values[0]).result()
            for _ in range(SYNC_COUNT):
                start = time.perf_counter()
                producer.send(topic, self._values[0]).result()
                taken.append(time.perf_counter() - start)
        self._broker.delete_topic(topic)
        return taken

    def _bare_round_trips(self, _round: int) -> list[float]:
        return sync_latencies(self._floor.address, self._values[0] * 2, SYNC_COUNT)

    # --- theirs

    def _peer_send(self, peer: str) -> Any:
        return lambda _round: self._ask("send", peer, self._count // SHARE[peer])

    def _peer_poll(self, peer: str, work: str = "receive") -> Any:
        return lambda _round: self._ask(work, peer, self._count // SHARE[peer])

    def _peer_latencies(self, peer: str) -> Any:
        return lambda _round: self._ask("latencies", peer, SYNC_COUNT)

    def _ask(self, work: str, peer: str, count: int) -> Any:
        assert self._kafka is not None
        values = [value.decode() for value in self._values]
        return self._kafka.ask(work=work, client=peer, count=count, values=values, keys=KEYS, partitions=self._partitions)
