"""Goal: a faulty or hostile broker causes one error that names the fault: no other exception, no wait of weeks, no unbounded
memory, and no text that a terminal would obey.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import read_response
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.client.produce_transport import decode_response as decode_produced
from brokerd.client.response_checks import TIMESTAMP_MAX_MS, timestamp_or_none
from brokerd.errors import MessageTooLargeError, NotLeaderError, UnknownServerError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.wire.errors import RETRY_AFTER_MAX_MS
from brokerd.wire.v1 import error_pb2, fetch_pb2, metadata_pb2, offsets_pb2, produce_pb2, topics_pb2, transaction_pb2
from tests.support.fake_broker import FakeBroker
from tests.unit.client.test_connection import translated

ID = b"1" * 16
TP = TopicIdPartition(ID, 0)
INT64_MAX = 2**63 - 1
ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\n\u202e"


def answer_with(broker: FakeBroker, method: str, answer: Message) -> None:
    """Makes the broker respond to every call of `method` with `answer`."""
    setattr(broker, f"_{method}", lambda _: answer)


def topic(**fields: Any) -> metadata_pb2.MetadataResponse:
    partitions = fields.pop("partitions", [metadata_pb2.PartitionMetadata(partition=0, leader=0)])
    given: dict[str, Any] = {"name": "t", "topic_id": ID, "partitions": partitions} | fields
    return metadata_pb2.MetadataResponse(topics=[metadata_pb2.TopicMetadata(**given)])


def node(host: str, port: int) -> metadata_pb2.MetadataResponse:
    return metadata_pb2.MetadataResponse(nodes=[metadata_pb2.Node(node_id=0, host=host, port=port)])


def metadata(client: BlockingClient) -> object:
    return client.metadata(["t"])


def new_id(client: BlockingClient) -> object:
    return client.init_producer_id()


def latest(client: BlockingClient) -> object:
    return client.list_offsets({TP: OffsetSpec.LATEST})


def offsets(*results: offsets_pb2.PartitionListOffsetsResult) -> Message:
    return offsets_pb2.ListOffsetsResponse(results=results)


def _raise(result: object) -> None:
    assert isinstance(result, WireError), result
    raise result


SENSELESS: list[tuple[str, Message, Callable[[BlockingClient], object], str]] = [
    ("Metadata", topic(name=ESCAPES), metadata, r"a topic named '\\x1b"),
    ("Metadata", topic(name=""), metadata, "it is empty"),
    ("Metadata", topic(topic_id=b"short"), metadata, "an id of 5 bytes"),
    ("Metadata", topic(partitions=[metadata_pb2.PartitionMetadata(partition=7)]), metadata, "not numbered from 0"),
    ("Metadata", node("host\n\x1b[2J", 1), metadata, r"a node at 'host\\n\\x1b"),
    ("Metadata", node("unix:/run/other.sock", 1), metadata, "a node at"),
    ("Metadata", node("127.0.0.1", 0), metadata, "port 0"),
    ("Metadata", node("127.0.0.1", 2**31 - 1), metadata, "port 2147483647"),
    ("InitProducerId", transaction_pb2.InitProducerIdResponse(producer_epoch=70_000), new_id, "producer_epoch 70000"),
    ("InitProducerId", transaction_pb2.InitProducerIdResponse(producer_epoch=-1), new_id, "producer_epoch -1"),
    ("InitProducerId", transaction_pb2.InitProducerIdResponse(producer_id=-7), new_id, "producer_id -7"),
    ("ListOffsets", offsets(), latest, "0 results, 1 were requested"),
    ("ListOffsets", offsets(*[offsets_pb2.PartitionListOffsetsResult()] * 2), latest, "2 results, 1 were requested"),
    ("ListOffsets", offsets(offsets_pb2.PartitionListOffsetsResult(offset=-9)), latest, "offset -9"),
    (
        "DeleteRecords",
        topics_pb2.DeleteRecordsResponse(),
        lambda client: _raise(client.delete_records({TP: 0})[TP]),
        "its leader did not answer: .*0 results, 1 were requested",
    ),
    ("CreateTopics", topics_pb2.CreateTopicsResponse(), lambda client: client.create_topic("t"), "results for 0 topics"),
    (
        "DeleteTopics",
        topics_pb2.DeleteTopicsResponse(results=[topics_pb2.TopicResult(name="other")]),
        lambda client: client.delete_topics(["t"]),
        "results for 1 topics, not for those",
    ),
    (
        "DescribeTopics",
        topics_pb2.DescribeTopicsResponse(topics=[topics_pb2.TopicDescription(name=ESCAPES, topic_id=ID)]),
        lambda client: client.describe_topics(["t"]),
        r"a topic named '\\x1b",
    ),
]


@pytest.mark.parametrize(
    ("method", "answer", "call", "text"), SENSELESS, ids=[f"{one[0]}-{at}" for at, one in enumerate(SENSELESS)]
)
def test_an_answer_that_makes_no_sense_is_one_error(
    broker: FakeBroker, client: BlockingClient, method: str, answer: Message, call: Callable[[BlockingClient], object], text: str
) -> None:
    broker.create("t")
    client.metadata(["t"])
    if method in ("ListOffsets", "DeleteRecords"):
        answer_with(broker, "Metadata", topic())
    answer_with(broker, method, answer)
    with pytest.raises((UnknownServerError, NotLeaderError), match=text) as raised:
        call(client)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 500


def test_times_and_epochs_out_of_range_are_none(broker: FakeBroker, client: BlockingClient) -> None:
    answer_with(broker, "Metadata", topic())
    wrong = offsets_pb2.PartitionListOffsetsResult(offset=5, timestamp=INT64_MAX, leader_epoch=-5, lag_ms=-9)
    answer_with(broker, "ListOffsets", offsets(wrong))
    assert latest(client) == {TP: OffsetAndTimestamp(5, -1, -1)}


def test_an_answer_beyond_its_limit_is_not_read(broker: FakeBroker, client: BlockingClient) -> None:
    many = topic(partitions=[metadata_pb2.PartitionMetadata(partition=number) for number in range(2_000)])
    for _ in range(11):
        many.topics.extend(list(many.topics))
    assert many.ByteSize() > 8_388_608
    answer_with(broker, "Metadata", many)
    with pytest.raises(MessageTooLargeError, match=r"larger than max.*ask for less at once") as caught:
        client.metadata(["t"])
    assert "max.request.size" not in caught.value.message, "the request was small"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT])
def test_texts_of_a_status_do_nothing_to_a_terminal(code: grpc.StatusCode) -> None:
    error = translated(code, ESCAPES + "x" * 10_000_000)
    assert str(error).isprintable()
    assert len(str(error)) <= 1_000


def test_texts_in_answers_do_nothing_to_a_terminal(broker: FakeBroker, client: BlockingClient) -> None:
    refusal = error_pb2.Error(code=error_pb2.ERROR_CODE_POLICY_VIOLATION, message=ESCAPES + "x" * 1_000_000)
    answer_with(broker, "CreateTopics", topics_pb2.CreateTopicsResponse(results=[topics_pb2.TopicResult(name="t", error=refusal)]))
    with pytest.raises(WireError) as raised:
        client.create_topic("t")
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) <= 1_000
    config = topics_pb2.ConfigEntry(name="n", value=ESCAPES, documentation=ESCAPES)
    described = topics_pb2.TopicDescription(name="t", topic_id=ID, configs=[config])
    answer = topics_pb2.DescribeTopicsResponse(topics=[described])
    answer_with(broker, "DescribeTopics", answer)
    (entry,) = client.describe_topics(["t"])["t"].configs  # type: ignore[union-attr]
    assert entry.value.isprintable()
    assert entry.documentation.isprintable()


def test_no_broker_holds_a_client_up_for_weeks() -> None:
    produced = produce_pb2.ProduceResponse(error=error_pb2.Error(code=102, retry_after_ms=2**31 - 1))  # type: ignore[arg-type]
    answer = decode_produced(produced.SerializeToString())
    assert answer.error is not None
    assert answer.error.retry_after_ms == RETRY_AFTER_MAX_MS


def test_offsets_and_times_of_a_produce_answer_are_checked() -> None:
    result = produce_pb2.PartitionProduceResult(base_offset=-7, append_timestamp=INT64_MAX, is_log_append_time=True)
    (read,) = decode_produced(produce_pb2.ProduceResponse(results=[result]).SerializeToString()).results
    assert (read.base_offset, read.append_timestamp) == (-1, -1)
    assert timestamp_or_none(TIMESTAMP_MAX_MS) == TIMESTAMP_MAX_MS


def test_a_fetch_answer_that_counts_below_nothing_is_refused() -> None:
    results = [fetch_pb2.PartitionFetchResult(record_chunks=count) for count in (-1, 1)]
    with pytest.raises(UnknownServerError, match="not as many as it declares"):
        read_response(fetch_pb2.FetchResponse(results=results).SerializeToString())
