"""Attacks on a broker, one class per kind, listed in ATTACKS at the end. Each call of `step` does a small part.

Loopback only; connections and their memory are limited. A new kind needs a class and an entry in ATTACKS.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import sys
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import h2.exceptions
import hyperframe.frame
import pyarrow as pa

from benchmarks.raw_http2 import RawHttp2
from brokerd.ids import TopicIdPartition
from brokerd.record.header import crc_seed, encode_header, new_header
from brokerd.record.schema import SCHEMA_0, Payload, encode_payload
from brokerd.wire.methods import FETCH, PRODUCE, SERVICE, UNARY, UNARY_REQUEST_MAX_BYTES
from brokerd.wire.v1 import fetch_pb2, metadata_pb2, offsets_pb2, produce_pb2, topics_pb2

_HEALTH = "/grpc.health.v1.Health"


class Aim(NamedTuple):
    """The broker under attack, and the attacker's token and topic."""

    port: int
    token: str | None = None
    topic_id: bytes = bytes(16)
    partitions: int = 1


class Attack(ABC):
    """An attack over up to `connections_max` connections, which are reopened when the broker closes them."""

    connections_max = 10
    calls_max = sys.maxsize  # open calls per connection; more do no harm until one of them ends
    window: int | None = None
    is_public = False  # True if its responses need no authentication

    def __init__(self, aim: Aim) -> None:
        self.aim = aim
        self.connections: list[RawHttp2] = []
        self._read_before_bytes = 0  # on closed connections

    @property
    def read_bytes(self) -> int:
        """Bytes of responses received."""
        return self._read_before_bytes + sum(one.data_bytes for one in self.connections)

    def step(self) -> None:
        """One round over all connections."""
        for ended in [one for one in self.connections if one.is_closed]:
            ended.close()
            self._read_before_bytes += ended.data_bytes
            self.connections.remove(ended)
        if len(self.connections) < self.connections_max:
            with contextlib.suppress(OSError):
                self.connections.append(RawHttp2(self.aim.port, token=self.aim.token, window=self.window))
        for one in self.connections:
            if one.h2.open_outbound_streams < self.calls_max:
                with contextlib.suppress(h2.exceptions.ProtocolError):
                    self.harm(one)
            one.pump()

    @abstractmethod
    def harm(self, connection: RawHttp2) -> None:
        """Attacks over one connection."""

    def partitions(self, first: int = 0, *, max_bytes: int = 0) -> list[fetch_pb2.PartitionFetch]:
        """The partitions from `first` on, to be fetched from their first offsets."""
        one, topic_id = fetch_pb2.PartitionFetch, self.aim.topic_id
        return [
            one(topic_id=topic_id, partition=number, current_leader_epoch=1, partition_max_bytes=max_bytes)
            for number in range(first, self.aim.partitions)
        ]

    def close(self) -> None:
        """Closes all connections."""
        for one in self.connections:
            one.close()


class BigRequests(Attack):
    """Unary requests of 2 MiB of empty entries, each byte of which takes twenty in memory."""

    message = b"\x0a\x00" * (UNARY_REQUEST_MAX_BYTES // 2)
    calls_max = 4

    def harm(self, connection: RawHttp2) -> None:
        for name in ("Metadata", "CreateTopics", "ListOffsets"):
            connection.send_message(connection.call(UNARY[name].path), self.message)


class BigHealth(BigRequests):
    """BigRequests to the health service, which needs no authentication."""

    def harm(self, connection: RawHttp2) -> None:
        connection.send_message(connection.call(f"{_HEALTH}/Check"), self.message)


class Doubles(Attack):
    """Requests that name one topic thousands of times."""

    calls_max = 8

    def harm(self, connection: RawHttp2) -> None:
        many = metadata_pb2.MetadataRequest(topics=["honest"] * 9_000).SerializeToString()
        connection.send_message(connection.call(UNARY["Metadata"].path), many)
        described = topics_pb2.DescribeTopicsRequest(names=["honest"] * 1_000).SerializeToString()
        connection.send_message(connection.call(UNARY["DescribeTopics"].path), described)


class DoubledPartitions(Attack):
    """Fetch and produce requests that name one partition thousands of times."""

    calls_max = 8

    def harm(self, connection: RawHttp2) -> None:
        asked = fetch_pb2.PartitionFetch(topic_id=self.aim.topic_id, current_leader_epoch=1, fetch_offset=2**40)
        fetch = fetch_pb2.FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=1, partitions=[asked] * 2_000)
        connection.send_message(connection.call(FETCH), fetch.SerializeToString())
        hello = produce_pb2.Hello(instance_id=bytes(16), incarnation=1)
        entry = produce_pb2.PartitionProduce(topic_id=self.aim.topic_id, current_leader_epoch=1)
        produce = produce_pb2.ProduceRequest(hello=hello, acks=-1, partitions=[entry] * 2_000, records=[b""] * 2_000)
        connection.send_message(connection.call(PRODUCE), produce.SerializeToString())


class ParkedFetches(Attack):
    """Fetches that park on all partitions except the honest client's."""

    calls_max = 50
    first = 1
    min_bytes = 1

    def harm(self, connection: RawHttp2) -> None:
        partitions = self.partitions(self.first, max_bytes=2**20)
        fetch = fetch_pb2.FetchRequest(max_wait_ms=60_000, min_bytes=self.min_bytes, max_bytes=2**20, partitions=partitions)
        connection.send_message(connection.call(FETCH), fetch.SerializeToString())


class WokenFetches(ParkedFetches):
    """Fetches parked on all partitions; the honest client's batches wake them, but are too small to complete them."""

    first = 0
    min_bytes = 2**20


class WideFetches(Attack):
    """Repeated fetches of all partitions, answered at once."""

    calls_max = 20

    def harm(self, connection: RawHttp2) -> None:
        fetch = fetch_pb2.FetchRequest(partitions=self.partitions())
        connection.send_message(connection.call(FETCH), fetch.SerializeToString(), end=True)


class ManyResponses(Attack):
    """Tiny requests with large responses: descriptions of all topics, as many calls as a connection allows."""

    def harm(self, connection: RawHttp2) -> None:
        for _ in range(4):
            connection.send_message(connection.call(UNARY["DescribeTopics"].path), b"", end=True)


class HalfOpen(Attack):
    """Calls that begin and never continue, as many as a connection allows."""

    connections_max = 50

    def harm(self, connection: RawHttp2) -> None:
        for _ in range(20):
            for path in (UNARY["Metadata"].path, PRODUCE, f"{_HEALTH}/Check"):
                connection.call(path, flush=False)
        connection.flush()


class Unfinished(Attack):
    """Requests that announce 17 MB and stop after 16."""

    calls_max = 4

    def harm(self, connection: RawHttp2) -> None:
        connection.send_message(connection.call(PRODUCE), bytes(16_000_000), announced_bytes=17_000_000)


class RapidReset(Attack):
    """Calls that are reset at once (CVE-2023-44487)."""

    def harm(self, connection: RawHttp2) -> None:
        for _ in range(50):
            connection.reset(connection.call(UNARY["Metadata"].path, flush=False))
        connection.flush()


class UnknownMethods(Attack):
    """Calls of unknown methods."""

    def harm(self, connection: RawHttp2) -> None:
        for _ in range(50):
            connection.call(f"/{SERVICE}/Nothing", flush=False)
        connection.flush()


class EndlessHeaders(Attack):
    """Headers that never end: one CONTINUATION frame after another."""

    def harm(self, connection: RawHttp2) -> None:
        if not connection.received_bytes:
            return
        stream = 1
        block = b"\0\x01x\x7f\x21" + b"v" * 160
        if not getattr(connection, "has_begun_headers", False):
            connection.has_begun_headers = True  # type: ignore[attr-defined]
            connection.send_bytes(hyperframe.frame.HeadersFrame(stream, block).serialize())
        connection.send_bytes(hyperframe.frame.ContinuationFrame(stream, block * 90).serialize() * 4)


class Pings(Attack):
    """HTTP/2 pings, each of which the broker must answer."""

    def harm(self, connection: RawHttp2) -> None:
        for _ in range(200):
            connection.h2.ping(bytes(8))
        connection.flush()


class Compressed(Attack):
    """Compressed messages, which the broker does not accept; they would decompress to a thousand times their size."""

    calls_max = 4
    message = zlib.compress(bytes(100_000_000), 9)

    def harm(self, connection: RawHttp2) -> None:
        for path in (UNARY["Metadata"].path, PRODUCE, f"{_HEALTH}/Check"):
            stream = connection.call(path, headers=[("grpc-encoding", "deflate")])
            connection.send_message(stream, self.message, is_compressed=True)


class Writer(Attack):
    """Writes batches, each on a new stream, to all partitions but the first in turn."""

    writes_max = 1
    rows = 1
    value = b""
    codec = "none"

    def __init__(self, aim: Aim) -> None:
        super().__init__(aim)
        self.now_ms = int(time.time() * 1_000)
        self.written = 0

    def write(self, connection: RawHttp2) -> None:
        """Writes the next batch."""
        partition = 1 + self.written % (self.aim.partitions - 1)
        self.written += 1
        hello = produce_pb2.Hello(instance_id=secrets.token_bytes(16), incarnation=1)
        produce = produce_pb2.ProduceRequest(
            hello=hello,
            acks=-1,
            timeout_ms=30_000,
            partitions=[produce_pb2.PartitionProduce(topic_id=self.aim.topic_id, partition=partition, current_leader_epoch=1)],
            records=[self._batch(partition)],
        )
        connection.send_message(connection.call(PRODUCE), produce.SerializeToString(), end=True)

    @functools.cached_property
    def _payload(self) -> Payload:
        row = {"value": self.value, "timestamp": 0}
        return encode_payload(pa.RecordBatch.from_pylist([row] * self.rows, schema=SCHEMA_0.arrow), self.codec)

    def _batch(self, partition: int) -> bytes:
        """A batch whose header claims now as its maximum timestamp; its records are of 1970."""
        header = new_header(
            batch_length=self._payload.data.size,
            payload_crc=self._payload.crc,
            record_count=self._payload.record_count,
            base_timestamp=0,
            max_timestamp=self.now_ms,
            uncompressed_bytes=self._payload.uncompressed_bytes,
        )
        seed = crc_seed(TopicIdPartition(self.aim.topic_id, partition))
        payload: bytes = self._payload.data.to_pybytes()
        return encode_header(header, seed) + payload


class TimeLookUps(Writer):
    """Look-ups by time over batches whose headers claim a time that no record has, so that each is decompressed in vain."""

    writes_max = 40
    rows = 100_000
    codec = "zstd"

    def harm(self, connection: RawHttp2) -> None:
        if self.written < self.writes_max:
            self.write(connection)
        elif connection.h2.open_outbound_streams < 4:
            asked = [
                offsets_pb2.PartitionListOffsets(
                    topic_id=self.aim.topic_id,
                    partition=number,
                    current_leader_epoch=1,
                    spec=offsets_pb2.OFFSET_SPEC_TIMESTAMP,
                    timestamp=self.now_ms,
                )
                for number in range(1, self.aim.partitions)
            ]
            request = offsets_pb2.ListOffsetsRequest(partitions=asked).SerializeToString()
            connection.send_message(connection.call(UNARY["ListOffsets"].path), request, end=True)


class LargeBatches(Writer):
    """Writes and reads batches of 15 MB, near the largest allowed."""

    connections_max = 4
    calls_max = 4
    writes_max = 4
    rows = 15
    value = bytes(1_000_000)

    def harm(self, connection: RawHttp2) -> None:
        if connection.is_sending:
            return
        if self.written < self.writes_max:
            self.write(connection)
            return
        asked = self.partitions(1, max_bytes=2**25)[: self.writes_max]
        fetch = fetch_pb2.FetchRequest(max_bytes=2**25, partitions=asked)
        connection.send_message(connection.call(FETCH), fetch.SerializeToString(), end=True)


class SmallWrites(Writer):
    """Batches of one small record, to all partitions but the first in turn: each partition needs its own sync."""

    connections_max = 4
    value = bytes(100)
    calls_max = 60

    def harm(self, connection: RawHttp2) -> None:
        while connection.h2.open_outbound_streams < self.calls_max and not connection.is_sending and not connection.is_closed:
            self.write(connection)


class TopicChanges(Attack):
    """Requests that create a hundred topics each."""

    calls_max = 10

    def harm(self, connection: RawHttp2) -> None:
        topics = [topics_pb2.NewTopic(name=f"attack-{secrets.token_hex(8)}", partitions=1) for _ in range(100)]
        request = topics_pb2.CreateTopicsRequest(topics=topics).SerializeToString()
        connection.send_message(connection.call(UNARY["CreateTopics"].path), request, end=True)


class Watchers(Attack):
    """Health watches that never read."""

    calls_max = 50
    window = 0
    is_public = True

    def harm(self, connection: RawHttp2) -> None:
        connection.send_message(connection.call(f"{_HEALTH}/Watch"), b"")


ATTACKS: dict[str, Callable[[Aim], Attack]] = {
    "big requests": BigRequests,
    "big health checks": BigHealth,
    "doubles": Doubles,
    "doubled partitions": DoubledPartitions,
    "parked fetches": ParkedFetches,
    "woken fetches": WokenFetches,
    "wide fetches": WideFetches,
    "many responses": ManyResponses,
    "half-open calls": HalfOpen,
    "unfinished requests": Unfinished,
    "rapid reset": RapidReset,
    "unknown methods": UnknownMethods,
    "endless headers": EndlessHeaders,
    "pings": Pings,
    "watchers": Watchers,
    "compressed requests": Compressed,
    "topic changes": TopicChanges,
    "look-ups by time": TimeLookUps,
    "large batches": LargeBatches,
    "small writes": SmallWrites,
}
