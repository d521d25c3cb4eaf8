"""The bare wire protocol: a gRPC channel, generated messages and the codec of the two streams, without retries or client code. For
tests of the broker's answers to exact bytes. Blocking; every wait has a deadline."""

from __future__ import annotations

import itertools
import queue
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import pyarrow as pa
from google.protobuf.message import Message

from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.wire.channel import CHANNEL_ARGUMENTS
from brokerd.wire.methods import FETCH, PRODUCE, UNARY
from brokerd.wire.records import join_records, split_records
from brokerd.wire.v1 import fetch_pb2, metadata_pb2, offsets_pb2, produce_pb2, topics_pb2, transaction_pb2
from tests.support.records import key_values, new_batch
from tests.support.wait import DEADLINE_S

LONG_MS = 3_600_000  # beyond every deadline, so that a wait of this length shows as a hang
_END = object()


def code_of(message: Any) -> ErrorCode:
    """The error code of a response or result; NONE if it has none."""
    return ErrorCode(message.error.code) if message.HasField("error") else ErrorCode.NONE


class RawStream:
    """A bidirectional byte stream."""

    def __init__(self, channel: grpc.Channel, path: str) -> None:
        self._requests: queue.Queue[object] = queue.Queue()
        method: Any = channel.stream_stream(path)
        self.call: Any = method(self._iterate(), timeout=DEADLINE_S)

    def _iterate(self) -> Iterator[bytes]:
        while (request := self._requests.get()) is not _END:
            assert isinstance(request, bytes)
            yield request

    def send(self, data: bytes) -> None:
        """Sends one message."""
        self._requests.put(data)

    def receive(self) -> bytes:
        """The next message. Raises grpc.RpcError when the stream has ended with an error, StopIteration at its end."""
        data = next(self.call)
        assert isinstance(data, bytes)
        return data

    def half_close(self) -> None:
        """Ends the requests."""
        self._requests.put(_END)

    def cancel(self) -> None:
        """Cancels the stream."""
        self.half_close()
        self.call.cancel()

    def status(self) -> tuple[grpc.StatusCode, str]:
        """The stream's final status; discards the messages before it."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        finally:
            self.half_close()
        return self.call.code(), self.call.details()


class RawProducer(RawStream):
    """A produce stream; its first request carries the Hello."""

    def __init__(
        self,
        channel: grpc.Channel,
        epoch_of: Callable[[TopicIdPartition], int],
        *,
        instance_id: bytes | None = None,
        incarnation: int = 1,
    ) -> None:
        super().__init__(channel, PRODUCE)
        self.hello: produce_pb2.Hello | None = produce_pb2.Hello(
            instance_id=instance_id or secrets.token_bytes(16), incarnation=incarnation
        )
        self.epoch_of = epoch_of
        self._correlation_ids = itertools.count(1)

    def request(self, batches: Sequence[tuple[TopicIdPartition, pa.Buffer]], *, acks: int = -1, **fields: Any) -> bytes:
        """The bytes of the next request."""
        head = produce_pb2.ProduceRequest(correlation_id=next(self._correlation_ids), acks=acks, hello=self.hello, **fields)
        self.hello = None
        for tp, _ in batches:
            head.partitions.add(topic_id=tp.topic_id, partition=tp.partition, current_leader_epoch=self.epoch_of(tp))
        return join_records(head, [[data] for _, data in batches])

    def post(self, batches: Sequence[tuple[TopicIdPartition, pa.Buffer]], *, acks: int = -1, **fields: Any) -> None:
        """Sends a request without waiting."""
        self.send(self.request(batches, acks=acks, **fields))

    def answer(self) -> produce_pb2.ProduceResponse:
        """The next response."""
        return produce_pb2.ProduceResponse.FromString(self.receive())

    def produce(self, tp: TopicIdPartition, data: pa.Buffer, *, acks: int = -1) -> produce_pb2.PartitionProduceResult:
        """Sends one batch; returns its result."""
        self.post([(tp, data)], acks=acks)
        answer = self.answer()
        assert not answer.HasField("error"), answer.error
        return answer.results[0]


class RawFetcher(RawStream):
    """A fetch stream."""

    def __init__(self, channel: grpc.Channel, epoch_of: Callable[[TopicIdPartition], int]) -> None:
        super().__init__(channel, FETCH)
        self.epoch_of = epoch_of
        self._correlation_ids = itertools.count(1)

    def post(self, offsets: Mapping[TopicIdPartition, int], **limits: int) -> None:
        """Sends a fetch. Limits are max_wait_ms (0), min_bytes (1), max_bytes, partition_max_bytes, until_offset,
        isolation_level, check_first_batch."""
        partition_max_bytes, until_offset = limits.pop("partition_max_bytes", 2**24), limits.pop("until_offset", 0)
        check_first_batch = bool(limits.pop("check_first_batch", False))
        values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 2**24} | limits
        head = fetch_pb2.FetchRequest(correlation_id=next(self._correlation_ids), **values)
        for tp, offset in offsets.items():
            head.partitions.add(
                topic_id=tp.topic_id,
                partition=tp.partition,
                current_leader_epoch=self.epoch_of(tp),
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
                until_offset=until_offset,
                check_first_batch=check_first_batch,
            )
        self.send(head.SerializeToString())

    def answer(self) -> tuple[fetch_pb2.FetchResponse, list[list[RecordBatch]]]:
        """The next response: its head and the batches of each partition."""
        head, records = split_records(fetch_pb2.FetchResponse, self.receive())
        chunks = iter(records)
        batches = [[batch for _ in range(result.record_chunks) for batch in walk_batches(next(chunks))] for result in head.results]
        assert next(chunks, None) is None, "more chunks than the results name"
        return head, batches

    def fetch(
        self, offsets: Mapping[TopicIdPartition, int], **limits: int
    ) -> tuple[fetch_pb2.FetchResponse, list[list[RecordBatch]]]:
        """Sends a fetch; returns its response."""
        self.post(offsets, **limits)
        return self.answer()


class RawClient:
    """A channel to one broker."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=CHANNEL_ARGUMENTS)
        self._streams: list[RawStream] = []
        self._epochs: dict[TopicIdPartition, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for stream in self._streams:
            stream.cancel()
        self.channel.close()

    def call(self, name: str, request: Message) -> Any:
        """A unary call. Raises grpc.RpcError."""
        method = UNARY[name]
        call: Any = self.channel.unary_unary(method.path, response_deserializer=method.response.FromString)
        return call(request.SerializeToString(), timeout=DEADLINE_S)

    def status(self, name: str = "GetServerInfo", request: Message | None = None) -> tuple[grpc.StatusCode, str]:
        """The final status of a unary call."""
        try:
            self.call(name, request if request is not None else UNARY[name].request())
        except grpc.RpcError as error:
            return error.code(), error.details() or ""
        return grpc.StatusCode.OK, ""

    def producer(self, **hello: Any) -> RawProducer:
        """A new produce stream."""
        stream = RawProducer(self.channel, self.leader_epoch, **hello)
        self._streams.append(stream)
        return stream

    def fetcher(self) -> RawFetcher:
        """A new fetch stream."""
        stream = RawFetcher(self.channel, self.leader_epoch)
        self._streams.append(stream)
        return stream

    def create_topic(self, name: str = "t", partitions: int = 1, **configs: str) -> list[TopicIdPartition]:
        """Creates a topic; returns its partitions. `configs` have underscores for dots."""
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        new = topics_pb2.NewTopic(name=name, partitions=partitions, configs=dotted)
        result = self.call("CreateTopics", topics_pb2.CreateTopicsRequest(topics=[new])).results[0]
        assert not result.HasField("error"), result.error
        tps = [TopicIdPartition(result.topic_id, partition) for partition in range(partitions)]
        if tps:
            self.leader_epoch(tps[0])
        return tps

    def delete_topic(self, name: str = "t") -> None:
        """Deletes a topic."""
        result = self.call("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=[name])).results[0]
        assert not result.HasField("error"), result.error

    def describe(self, name: str = "t") -> topics_pb2.TopicDescription:
        """A topic's description."""
        description: topics_pb2.TopicDescription = self.call(
            "DescribeTopics", topics_pb2.DescribeTopicsRequest(names=[name])
        ).topics[0]
        return description

    def metadata(self, *names: str) -> metadata_pb2.MetadataResponse:
        """Metadata of some topics."""
        response: metadata_pb2.MetadataResponse = self.call("Metadata", metadata_pb2.MetadataRequest(topics=names))
        return response

    def leader_epoch(self, tp: TopicIdPartition) -> int:
        """The leader epoch of a partition when first used here; 1 if it may not be seen."""
        if tp not in self._epochs:
            (topic,) = self.call("Metadata", metadata_pb2.MetadataRequest(topic_ids=[tp.topic_id])).topics
            found = {TopicIdPartition(tp.topic_id, one.partition): one.leader_epoch for one in topic.partitions}
            self._epochs = {tp: 1} | self._epochs | found
        return self._epochs[tp]

    def latest(self, tp: TopicIdPartition, *, is_committed: bool = False) -> int:
        """The high watermark, or the last stable offset, by ListOffsets."""
        isolation = fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED if is_committed else fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED
        result = self.list_offset(tp, offsets_pb2.OFFSET_SPEC_LATEST, isolation_level=isolation)
        assert not result.HasField("error"), result.error
        return int(result.offset)

    def list_offset(
        self, tp: TopicIdPartition, spec: int, *, isolation_level: int = 0, **fields: Any
    ) -> offsets_pb2.PartitionListOffsetsResult:
        """ListOffsets' result for one partition."""
        entry: dict[str, Any] = {**tp._asdict(), "spec": spec, **fields}
        values: dict[str, Any] = {"isolation_level": isolation_level, "partitions": [entry]}
        result: offsets_pb2.PartitionListOffsetsResult
        (result,) = self.call("ListOffsets", offsets_pb2.ListOffsetsRequest(**values)).results
        return result

    def delete_records(self, tp: TopicIdPartition, before_offset: int) -> topics_pb2.PartitionDeleteRecordsResult:
        """DeleteRecords' result for one partition."""
        asked = topics_pb2.PartitionDeleteRecords(**tp._asdict(), before_offset=before_offset)
        result: topics_pb2.PartitionDeleteRecordsResult
        (result,) = self.call("DeleteRecords", topics_pb2.DeleteRecordsRequest(partitions=[asked])).results
        return result

    def new_producer_id(self) -> int:
        """A new producer id."""
        request = transaction_pb2.InitProducerIdRequest(producer_id=-1, producer_epoch=-1)
        return int(self.call("InitProducerId", request).producer_id)


def values_batch(tp: TopicIdPartition, count: int = 1, *, size: int = 10, **fields: int) -> pa.Buffer:
    """A batch of `count` records for this partition, with values of `size` bytes; `fields` are header fields."""
    return new_batch(key_values([b"v" * size] * count), "none", tp, **fields)


def idempotent_batch(tp: TopicIdPartition, producer_id: int, sequence: int, count: int = 1, *, epoch: int = 0) -> pa.Buffer:
    """A batch of an idempotent producer."""
    return values_batch(tp, count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
