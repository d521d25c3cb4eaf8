"""The client of a test's topics. It runs in its own process to keep gRPC, which does not survive a fork, out of the test's process:
PySpark forks to start its JVM, and multiprocessing to start its workers.

Each command is a method; a reply holds a result or an error, and for `rows` an Arrow stream.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from brokerd.client.blocking import BlockingClient
from brokerd.client.bounds import ranges_of
from brokerd.client.columns import FetchedBatch
from brokerd.client.fetching import PartitionFetcher
from brokerd.client.offsets import OffsetSpec
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig, ConsumerConfig, ProducerConfig
from brokerd.config.settings import from_mapping
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition
from brokerd.producer.producer import Producer
from brokerd.testing.channel import Channel, Message, error_head

_NODES_WITHIN_MS = 30_000
_LOOK_S = 0.01
Reply = tuple[dict[str, Any], pa.Buffer | bytes]


def serve_client(caller: Channel, settings: dict[str, Any]) -> None:
    """Serves commands until the caller's EOF. `settings`: of a ClientConfig, by name."""
    client = _Client(settings)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            message = caller.receive()
            try:
                head, body = client.commands[message.head["do"]](message)
            except Exception as error:
                head, body = error_head(error), b""
            caller.send(head, body)


class _Client:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._client = BlockingClient(from_mapping(ClientConfig, settings))
        self._producer: Producer | None = None
        self.commands: dict[str, Callable[[Message], Reply]] = {
            "wait_for_nodes": self._wait_for_nodes,
            "create_topic": self._create_topic,
            "look_up": self._look_up,
            "append": self._append,
            "rows": self._rows,
        }

    def _wait_for_nodes(self, message: Message) -> Reply:
        """Waits until every node knows all nodes: until then a node may place a new topic without the others."""
        addresses, clock = message.head["nodes"], SystemClock()
        for address in addresses:
            with BlockingClient(from_mapping(ClientConfig, {**self._settings, "bootstrap.servers": address})) as client:
                end_ms = clock.monotonic_ms() + _NODES_WITHIN_MS
                while len(client.describe_cluster([]).nodes) < len(addresses):
                    if clock.monotonic_ms() > end_ms:
                        raise BrokerdError(f"the node at {address} does not know all others after {_NODES_WITHIN_MS} ms")
                    time.sleep(_LOOK_S)
        return {}, b""

    def _create_topic(self, message: Message) -> Reply:
        head = message.head
        self._client.create_topic(head["topic"], head["partitions"], head["configs"], head["replication_factor"])
        return {}, b""

    def _look_up(self, message: Message) -> Reply:
        name = message.head["topic"]
        leaders = self._client.metadata([name]).topic(name).leaders
        partitions = self._client.describe_cluster([name]).topics[0].partitions
        return {"leaders": leaders, "in_sync": [list(one.isr) for one in partitions]}, b""

    def _append(self, message: Message) -> Reply:
        """Appends rows; returns once they are durable."""
        table = pa.ipc.open_stream(pa.py_buffer(message.body)).read_all().combine_chunks()
        partitions = None
        if "partition" in table.column_names:
            partitions = table.column("partition").combine_chunks()
            table = table.drop_columns(["partition"])
        if self._producer is None:
            self._producer = Producer(from_mapping(ProducerConfig, {**self._settings, "linger.ms": 0}))
        try:
            self._producer.send_batch(message.head["topic"], table, partitions).result()
        except BrokerdError:
            failed, self._producer = self._producer, None  # a new producer is not affected by this failure
            failed.close(0)
            raise
        return {}, b""

    def _rows(self, message: Message) -> Reply:
        """All records between the current log start and log end, by partition and offset."""
        name, isolation = message.head["topic"], message.head["isolation_level"]
        config = from_mapping(ConsumerConfig, {**self._settings, "isolation.level": isolation})
        topic = self._client.metadata([name]).topic(name)
        named = {TopicIdPartition(topic.topic_id, number): name for number in range(topic.partition_count)}
        ranges = ranges_of(self._client, named, OffsetSpec.EARLIEST, OffsetSpec.LATEST, isolation)
        with PartitionFetcher(self._client, ranges, config) as fetcher:
            batches = list(fetcher)
        sink = pa.BufferOutputStream()
        batches.sort(key=lambda batch: (batch.tp.partition, batch.offsets[0].as_py()))
        tables = [_with_place(batch) for batch in batches]
        if tables:
            with pa.ipc.new_stream(sink, tables[0].schema) as stream:
                for table in tables:
                    stream.write(table)
        return {}, sink.getvalue()


def _with_place(batch: FetchedBatch) -> pa.RecordBatch:
    """The records, with the columns partition, offset and timestampType added."""
    count = batch.record_count
    placed = batch.arrow_batch.append_column("partition", pa.repeat(pa.scalar(batch.tp.partition, pa.int32()), count))
    placed = placed.append_column("offset", batch.offsets)
    return placed.append_column("timestampType", pa.repeat(pa.scalar(batch.timestamp_type, pa.int32()), count))
