"""The requests to the sweep's broker, and the state expected afterwards. sweep.py kills the broker, sweep_check.py checks the
state.

One idempotent producer, one request after another or three in flight, over two partitions whose segments hold three batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import pyarrow as pa

from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import topics_pb2
from tests.support.raw_client import RawClient, RawProducer
from tests.support.records import HEADER_BYTES, key_values, new_batch
from tests.support.wait import wait_until

SETTINGS: dict[str, object] = {
    "log.segment.bytes": 4_096,
    "log.index.interval.bytes": 512,
    "log.checkpoint.interval.ms": 100,
    "log.retention.check.interval.ms": 150,
}
TOPIC = "swept"
_RECORDS = 3
_VALUE_BYTES = 400
_numbers = itertools.count()


@dataclass
class Sent:
    """A batch that was sent. The batches of a partition are consecutive, so its offset is known."""

    data: bytes
    sequence: int
    base_offset: int
    is_acknowledged: bool = False

    @property
    def payload(self) -> bytes:
        """The bytes that the broker must not change."""
        return self.data[HEADER_BYTES:]


@dataclass
class PartitionHistory:
    """One partition. `dropped` holds payloads that were sent and missing after a recovery; they must never come back."""

    tp: TopicIdPartition
    sent: list[Sent] = field(default_factory=list)
    dropped: set[bytes] = field(default_factory=set)
    log_starts: set[int] = field(default_factory=lambda: {0})  # possible log starts: one, unless a response is missing

    @property
    def next_offset(self) -> int:
        """The next batch's offset; also its sequence, since there is one producer."""
        return len(self.sent) * _RECORDS

    def settle(self, high_watermark: int) -> None:
        """Keeps the batches below the high watermark as acknowledged, and drops the others. Raises AssertionError if an
        acknowledged batch is dropped."""
        count, rest = divmod(high_watermark, _RECORDS)
        assert not rest, f"{self.tp.partition}: the high watermark {high_watermark} lies inside a batch"
        assert count <= len(self.sent), f"{self.tp.partition}: {count} batches are there, {len(self.sent)} were sent"
        lost = [sent.base_offset for sent in self.sent[count:] if sent.is_acknowledged]
        assert not lost, f"{self.tp.partition}: acknowledged at {lost} and gone, the high watermark is {high_watermark}"
        self.dropped.update(sent.payload for sent in self.sent[count:])
        del self.sent[count:]
        for sent in self.sent:
            sent.is_acknowledged = True


@dataclass
class Expected:
    """All requests and responses. A topic is in `asked` until its creation or deletion is answered."""

    asked: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    partitions: dict[TopicIdPartition, PartitionHistory] = field(default_factory=dict)  # of TOPIC
    partition_counts: set[int] = field(default_factory=set)  # of TOPIC: one, unless a response is missing
    producer_id: int = -1
    given_ids: set[int] = field(default_factory=set)


class Died(Exception):  # noqa: N818 - what the sweep is for
    """The broker has died."""


class Script:
    """Sends requests to a broker; notes each one before it is sent, and its response. Raises Died."""

    def __init__(self, client: RawClient, expected: Expected) -> None:
        self._client = client
        self._expected = expected
        self._producer: RawProducer = client.producer()

    def run(self, life: Callable[[Script], None]) -> None:
        """Runs one of the two lives, until its end or the broker's death."""
        try:
            life(self)
        except (grpc.RpcError, StopIteration) as error:
            raise Died from error

    def first_life(self) -> None:
        """Everything that changes files, on a new data directory."""
        self._create(TOPIC, 2)
        self._take_producer_id()
        first, *_ = histories = list(self._expected.partitions.values())
        for _ in range(5):
            for history in histories:
                self._produce([history])
        for _ in range(2):
            self._produce(histories * 3)
        segments = self._segment_count()
        self._delete_records(first, first.next_offset - 3 * _RECORDS)
        wait_until(lambda: self._segment_count() < segments, what="retention")
        self._alter()
        self._add_partition()
        self._create("short-lived", 1)
        self._delete("short-lived")
        self._produce(histories * 2)

    def later_life(self) -> None:
        """A part of it, on a used directory."""
        for partition in self._client.describe(TOPIC).partitions:
            for history in self._expected.partitions.values():
                if history.tp.partition == partition.partition:
                    history.settle(partition.high_watermark)
        histories = list(self._expected.partitions.values())
        self._produce(histories * 2)
        self._produce(histories)
        self._take_producer_id()

    def _create(self, name: str, partitions: int) -> None:
        self._expected.asked.add(name)
        tps = self._client.create_topic(name, partitions)
        self._expected.asked.discard(name)
        self._expected.topics.add(name)
        if name == TOPIC:
            self._expected.partitions = {tp: PartitionHistory(tp) for tp in tps}
            self._expected.partition_counts = {partitions}

    def _delete(self, name: str) -> None:
        self._expected.topics.discard(name)
        self._expected.asked.add(name)
        self._client.delete_topic(name)
        self._expected.asked.discard(name)
        self._expected.deleted.add(name)

    def _take_producer_id(self) -> None:
        given = self._client.new_producer_id()
        assert given not in self._expected.given_ids, f"producer id {given} was given twice"
        self._expected.given_ids.add(given)
        if self._expected.producer_id < 0:
            self._expected.producer_id = given

    def _produce(self, histories: list[PartitionHistory]) -> None:
        """Sends one batch for each history, all in flight together."""
        posted = []
        for history in histories:
            sent = new_sent(history, self._expected.producer_id)
            history.sent.append(sent)
            posted.append((history, sent))
            self._producer.post([(history.tp, pa.py_buffer(sent.data))])
        for history, sent in posted:
            answer = self._producer.answer()
            assert not answer.HasField("error"), answer.error
            (result,) = answer.results
            assert not result.HasField("error"), result.error
            assert result.base_offset == sent.base_offset, f"{history.tp}: {result.base_offset}, not {sent.base_offset}"
            sent.is_acknowledged = True

    def _delete_records(self, history: PartitionHistory, before_offset: int) -> None:
        history.log_starts.add(before_offset)
        result = self._client.delete_records(history.tp, before_offset)
        assert not result.HasField("error"), result.error
        history.log_starts = {before_offset}

    def _segment_count(self) -> int:
        return self._client.describe(TOPIC).partitions[0].segment_count

    def _alter(self) -> None:
        request = topics_pb2.AlterTopicConfigsRequest(name=TOPIC, set={"retention.ms": "86400000"})
        result = self._client.call("AlterTopicConfigs", request).result
        assert not result.HasField("error"), result.error

    def _add_partition(self) -> None:
        total = len(self._expected.partitions) + 1
        self._expected.partition_counts.add(total)
        request = topics_pb2.CreatePartitionsRequest(name=TOPIC, total_count=total)
        result = self._client.call("CreatePartitions", request).result
        assert not result.HasField("error"), result.error
        self._expected.partition_counts = {total}


def new_sent(history: PartitionHistory, producer_id: int) -> Sent:
    """The next batch of a partition, with unique content."""
    offset = history.next_offset
    values: list[bytes | None] = [f"{next(_numbers)}:{history.tp.partition}:{offset + n}:".encode() for n in range(_RECORDS)]
    rows = key_values([value.ljust(_VALUE_BYTES, b".") for value in values if value is not None])
    data = new_batch(rows, "none", history.tp, producer_id=producer_id, producer_epoch=0, base_sequence=offset)
    return Sent(data.to_pybytes(), offset, offset)
