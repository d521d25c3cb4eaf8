"""Python's Kafka producers and consumers against a real Kafka, run by peers.py in a separate interpreter; imports neither brokerd
nor this package. Reads requests as lines of JSON on standard input, and answers each with a line of JSON.

    PYTHON benchmarks/kafka_clients.py HOST:PORT      needs confluent-kafka and kafka-python
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

confluent_kafka: Any = importlib.import_module("confluent_kafka")  # not installed in our environment
confluent_admin: Any = importlib.import_module("confluent_kafka.admin")
kafka: Any = importlib.import_module("kafka")

RECORDS_PER_POLL = 500
LINGER_MS = 5
SETTINGS = {"acks": "all", "enable.idempotence": True, "linger.ms": LINGER_MS}


class ConfluentClient:
    """confluent-kafka: librdkafka in C, one call per record."""

    version = confluent_kafka.__version__

    def __init__(self, servers: str, linger_ms: int) -> None:
        queue = {"queue.buffering.max.messages": 1_000_000}
        self._producer = confluent_kafka.Producer({"bootstrap.servers": servers, **SETTINGS, "linger.ms": linger_ms, **queue})

    def send_all(self, topic: str, records: list[tuple[bytes, bytes]], count: int) -> None:
        """Returns once all are acknowledged."""
        produce, poll = self._producer.produce, self._producer.poll
        size = len(records)
        for number in range(count):
            key, value = records[number % size]
            while True:
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    poll(0.01)
        self._producer.flush()

    def send_one(self, topic: str, value: bytes) -> None:
        """Returns once it is acknowledged."""
        acknowledged: list[Any] = []
        self._producer.produce(topic, value, on_delivery=lambda error, _message: acknowledged.append(error))
        while not acknowledged:
            self._producer.poll(1)
        if acknowledged[0] is not None:
            raise RuntimeError(acknowledged[0])

    @staticmethod
    def receive(servers: str, topic: str, partitions: int, count: int, *, is_each: bool = False) -> float:
        """Seconds to read `count` records, key and value of each; one by one with `poll`, else in lists."""
        settings = {"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(settings)
        consumer.list_topics(topic, timeout=60)
        start = time.perf_counter()
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])
        received = 0
        while received < count:
            messages = [consumer.poll(60)] if is_each else consumer.consume(RECORDS_PER_POLL, 60)
            records = [(message.key(), message.value()) for message in messages]
            received += len(records)
        taken = time.perf_counter() - start
        consumer.close()
        return taken

    def close(self) -> None:
        """Frees the clients."""
        self._producer.flush()


class KafkaPythonClient:
    """kafka-python: pure Python."""

    version = kafka.__version__

    def __init__(self, servers: str, linger_ms: int) -> None:
        self._producer = kafka.KafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True, linger_ms=linger_ms)

    def send_all(self, topic: str, records: list[tuple[bytes, bytes]], count: int) -> None:
        """Returns once all are acknowledged."""
        size = len(records)
        for number in range(count):
            key, value = records[number % size]
            self._producer.send(topic, value, key)
        self._producer.flush()

    def send_one(self, topic: str, value: bytes) -> None:
        """Returns once it is acknowledged."""
        self._producer.send(topic, value).get(60)

    @staticmethod
    def receive(servers: str, topic: str, partitions: int, count: int) -> float:
        """Seconds to read `count` records, key and value of each."""
        consumer = kafka.KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", group_id=None)
        consumer.partitions_for_topic(topic)
        start = time.perf_counter()
        consumer.assign([kafka.TopicPartition(topic, number) for number in range(partitions)])
        received = 0
        while received < count:
            polled = consumer.poll(60_000, RECORDS_PER_POLL)
            records = [(record.key, record.value) for records in polled.values() for record in records]
            received += len(records)
        taken = time.perf_counter() - start
        consumer.close()
        return taken

    def close(self) -> None:
        """Frees the clients."""
        self._producer.close()


CLIENTS: dict[str, Any] = {"confluent-kafka": ConfluentClient, "kafka-python": KafkaPythonClient}


class Topics:
    """Creates and deletes Kafka topics, one at a time."""

    def __init__(self, servers: str) -> None:
        self._admin = confluent_admin.AdminClient({"bootstrap.servers": servers})

    def create(self, partitions: int) -> str:
        """Creates a topic with the brokers' default.replication.factor; returns once each partition has a leader."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        self._admin.create_topics([confluent_admin.NewTopic(name, partitions)])[name].result(60)
        deadline = time.monotonic() + 60
        while True:
            found = self._admin.list_topics(name, timeout=10).topics[name]
            if found.error is None and all(one.leader >= 0 for one in found.partitions.values()) and found.partitions:
                return name
            if time.monotonic() > deadline:
                raise RuntimeError(f"topic {name} has no leaders")

    def delete(self, name: str) -> None:
        """Deletes the topic."""
        self._admin.delete_topics([name])[name].result(60)


def send_seconds(servers: str, topics: Topics, asked: dict[str, Any]) -> float:
    """Seconds to send `count` keyed records until all are acknowledged."""
    records = [(f"k{row % asked['keys']:07d}".encode(), value.encode()) for row, value in enumerate(asked["values"])]
    topic = topics.create(asked["partitions"])
    client = CLIENTS[asked["client"]](servers, LINGER_MS)
    client.send_one(topic, b"first")  # connects before the measurement
    start = time.perf_counter()
    client.send_all(topic, records, asked["count"])
    taken = time.perf_counter() - start
    client.close()
    topics.delete(topic)
    return taken


def receive_seconds(servers: str, topics: Topics, asked: dict[str, Any]) -> float:
    """Seconds to read `count` keyed records that were written before."""
    records = [(f"k{row % asked['keys']:07d}".encode(), value.encode()) for row, value in enumerate(asked["values"])]
    topic = topics.create(asked["partitions"])
    writer = ConfluentClient(servers, LINGER_MS)
    writer.send_all(topic, records, asked["count"])
    writer.close()
    options = {"is_each": True} if asked["work"] == "receive each" else {}
    taken: float = CLIENTS[asked["client"]].receive(servers, topic, asked["partitions"], asked["count"], **options)
    topics.delete(topic)
    return taken


def latencies(servers: str, topics: Topics, asked: dict[str, Any]) -> list[float]:
    """The seconds of each of `count` records, sent and awaited one at a time."""
    topic = topics.create(1)
    client = CLIENTS[asked["client"]](servers, 0)
    value = asked["values"][0].encode()
    client.send_one(topic, value)
    taken = []
    for _ in range(asked["count"]):
        start = time.perf_counter()
        client.send_one(topic, value)
        taken.append(time.perf_counter() - start)
    client.close()
    topics.delete(topic)
    return taken


WORKS: dict[str, Callable[[str, Topics, dict[str, Any]], object]] = {
    "send": send_seconds,
    "receive": receive_seconds,
    "receive each": receive_seconds,
    "latencies": latencies,
}


def main() -> None:
    """Answers requests until the end of standard input."""
    servers = sys.argv[1]
    topics = Topics(servers)
    print(json.dumps(", ".join(f"{name} {client.version}" for name, client in CLIENTS.items())), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(WORKS[asked["work"]](servers, topics, asked)), flush=True)


if __name__ == "__main__":
    main()
