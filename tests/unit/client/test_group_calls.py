"""Group calls: split requests, pages and lost responses, and invalid responses of a faulty broker."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.client.groups import commit_requests
from brokerd.errors import ConfigError, NotReadyError, UnknownGroupError, UnknownServerError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import offsets_pb2 as pb
from tests.support.fake_broker import FakeBroker

TPS = [TopicIdPartition(b"t" * 16, number) for number in range(10)]


def answer_with(broker: FakeBroker, method: str, *answers: Message | WireError) -> list[Any]:
    """Makes the broker return `answers` in order, the last one repeatedly. Returns the list that its requests are appended to."""
    left = list(answers)
    asked: list[Any] = []
    response_type: Any = type(answers[-1])

    def answer(request: Message) -> Message:
        asked.append(request)
        one = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(one, Message):
            return one
        failed: Any = response_type()
        failed.error.CopyFrom(to_proto(one))
        message: Message = failed
        return message

    setattr(broker, f"_{method}", answer)
    return asked


def result(tp: TopicIdPartition, offset: int = 0) -> pb.PartitionGroupOffset:
    return pb.PartitionGroupOffset(topic_id=tp.topic_id, partition=tp.partition, offset=offset)


def commit_one(client: BlockingClient) -> object:
    return client.commit_group_offsets("g", {TPS[0]: OffsetAndMetadata(0)})


def test_a_commit_is_split_by_entries_and_by_bytes() -> None:
    offsets = {tp: OffsetAndMetadata(tp.partition, "x" * 1_000, 7) for tp in TPS}
    by_count = list(commit_requests("g", offsets, entries_max=4, request_bytes_max=10**6))
    assert [tps for tps, _ in by_count] == [TPS[:4], TPS[4:8], TPS[8:]]
    by_bytes = list(commit_requests("g", offsets, entries_max=100, request_bytes_max=3_500))
    assert [len(tps) for tps, _ in by_bytes] == [3, 3, 3, 1]
    for tps, request in by_count + by_bytes:
        assert request.group_id == "g"
        assert [(one.partition, one.offset, one.leader_epoch) for one in request.offsets] == [
            (tp.partition, tp.partition, 7) for tp in tps
        ]
        assert request.ByteSize() < 5_000
    assert list(commit_requests("g", {}, entries_max=4, request_bytes_max=100)) == []


def test_a_commit_is_sent_again_while_that_may_help(broker: FakeBroker, client: BlockingClient) -> None:
    asked = answer_with(
        broker, "CommitGroupOffsets", NotReadyError("starting"), pb.CommitGroupOffsetsResponse(results=[result(TPS[0])])
    )
    assert client.commit_group_offsets("g", {TPS[0]: OffsetAndMetadata(5)}) == {}
    assert len(asked) == 2


def test_a_deletion_whose_response_was_lost_is_done(broker: FakeBroker, client: BlockingClient) -> None:
    client.server_info()
    broker.fail_calls = [grpc.StatusCode.UNAVAILABLE]
    answer_with(broker, "DeleteGroup", UnknownGroupError("gone"), pb.DeleteGroupResponse())
    assert client.delete_group("g") == 0


def test_a_group_that_goes_with_its_last_offset_is_deleted(broker: FakeBroker, client: BlockingClient) -> None:
    broker.limits["max.partitions.per.request"] = 4
    asked = answer_with(
        broker, "DeleteGroup", pb.DeleteGroupResponse(deleted_offsets=4), UnknownGroupError("gone"), pb.DeleteGroupResponse()
    )
    assert client.delete_group("g", TPS) == 4
    assert len(asked) == 2


def test_pages_follow_one_another(broker: FakeBroker, client: BlockingClient) -> None:
    asked = answer_with(
        broker,
        "FetchGroupOffsets",
        pb.FetchGroupOffsetsResponse(results=[result(TPS[0]), result(TPS[1])], more=True),
        pb.FetchGroupOffsetsResponse(results=[result(TPS[2])]),
    )
    assert list(client.group_offsets("g")) == TPS[:3]
    assert [(one.after_topic_id, one.after_partition) for one in asked] == [(b"", 0), TPS[1]]


@pytest.mark.parametrize(
    ("method", "answer", "call"),
    [
        (
            "CommitGroupOffsets",
            pb.CommitGroupOffsetsResponse(),
            lambda c: c.commit_group_offsets("g", {TPS[0]: OffsetAndMetadata(0)}),
        ),
        ("FetchGroupOffsets", pb.FetchGroupOffsetsResponse(), lambda c: c.group_offsets("g", TPS)),
        ("FetchGroupOffsets", pb.FetchGroupOffsetsResponse(results=[result(TPS[0], -2)]), lambda c: c.group_offsets("g", TPS[:1])),
        ("FetchGroupOffsets", pb.FetchGroupOffsetsResponse(results=[pb.PartitionGroupOffset()]), lambda c: c.group_offsets("g")),
        ("FetchGroupOffsets", pb.FetchGroupOffsetsResponse(results=[result(TPS[0])], more=True), lambda c: c.group_offsets("g")),
        ("ListGroups", pb.ListGroupsResponse(groups=[pb.GroupListing(group_id="g")], more=True), lambda c: c.list_groups()),
        (
            "DescribeGroup",
            pb.DescribeGroupResponse(partitions=[pb.GroupPartitionDescription(committed=result(TPS[0]))], more=True),
            lambda c: c.describe_group("g"),
        ),
        (
            "DescribeGroup",
            pb.DescribeGroupResponse(partitions=[pb.GroupPartitionDescription(committed=result(TPS[0]), end_offset=-9)]),
            lambda c: c.describe_group("g"),
        ),
    ],
)
def test_an_answer_that_makes_no_sense_is_one_error(
    broker: FakeBroker, client: BlockingClient, method: str, answer: Message, call: Any
) -> None:
    answer_with(broker, method, answer)
    with pytest.raises(UnknownServerError, match=f"the broker's response to {method} is invalid"):
        call(client)


def test_texts_in_a_description_do_nothing_to_a_terminal(broker: FakeBroker, client: BlockingClient) -> None:
    committed = result(TPS[0])
    committed.metadata = "\x1b[31m"
    listing = pb.GroupListing(group_id="g\x07", principal="p\n")
    described = pb.GroupPartitionDescription(committed=committed, topic="t\x1b")
    answer_with(broker, "DescribeGroup", pb.DescribeGroupResponse(group=listing, partitions=[described]))
    found = client.describe_group("g")
    shown = (found.group.group_id, found.group.principal, found.partitions[0].topic, found.partitions[0].committed.metadata)
    assert "".join(shown).isprintable()


def test_an_unknown_isolation_level_is_refused(client: BlockingClient) -> None:
    with pytest.raises(ConfigError, match=r"isolation\.level"):
        client.describe_group("g", "read_everything")
