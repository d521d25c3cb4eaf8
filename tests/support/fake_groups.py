"""The group offsets of FakeBroker: committed offsets in memory, and requests that it is told to hold back or to refuse."""

from __future__ import annotations

from abc import ABC, abstractmethod

from google.protobuf.message import Message

from brokerd.errors import OffsetOutOfRangeError, UnknownTopicIdError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.wire.errors import to_proto
from brokerd.wire.v1 import offsets_pb2 as pb

RENEWAL = "CommitGroupOffsets of no offset"  # the method's name, for errors


class FakeGroups(ABC):
    """Base of FakeBroker."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[TopicIdPartition, tuple[int, str]]] = {}
        self.group_epoch_ids: dict[tuple[str, TopicIdPartition], int] = {}  # of their offsets' leader epochs
        self.commits: list[dict[int, int]] = []  # offsets by partition number, of each commit
        self.renewed: list[str] = []  # groups

    @abstractmethod
    def next_error(self, name: str) -> WireError | None:
        """The error that the next response of a method is to carry."""

    @abstractmethod
    def end_of(self, tp: TopicIdPartition) -> int | None:
        """The end of a partition; None = there is none."""

    def _CommitGroupOffsets(self, request: pb.CommitGroupOffsetsRequest) -> Message:  # noqa: N802
        error = self.next_error("CommitGroupOffsets" if request.offsets else RENEWAL)
        if error is not None:
            return pb.CommitGroupOffsetsResponse(error=to_proto(error))
        if not request.offsets:
            self.renewed.append(request.group_id)
            return pb.CommitGroupOffsetsResponse()
        self.commits.append({one.partition: one.offset for one in request.offsets})
        response = pb.CommitGroupOffsetsResponse()
        for one in request.offsets:
            result = response.results.add(topic_id=one.topic_id, partition=one.partition, offset=one.offset)
            tp = TopicIdPartition(one.topic_id, one.partition)
            end = self.end_of(tp)
            if end is None:
                result.error.CopyFrom(to_proto(UnknownTopicIdError("no such topic")))
            elif one.offset > end:
                result.error.CopyFrom(to_proto(OffsetOutOfRangeError(f"offset {one.offset} is beyond {end}")))
            else:
                self.groups.setdefault(request.group_id, {})[tp] = (one.offset, one.metadata)
                self.group_epoch_ids[request.group_id, tp] = one.leader_epoch_id
        return response

    def _FetchGroupOffsets(self, request: pb.FetchGroupOffsetsRequest) -> Message:  # noqa: N802
        error = self.next_error("FetchGroupOffsets")
        if error is not None:
            return pb.FetchGroupOffsetsResponse(error=to_proto(error))
        response = pb.FetchGroupOffsetsResponse()
        group = self.groups.get(request.group_id, {})
        for one in request.partitions:
            tp = TopicIdPartition(one.topic_id, one.partition)
            offset, metadata = group.get(tp, (-1, ""))
            response.results.add(
                topic_id=one.topic_id,
                partition=one.partition,
                offset=offset,
                metadata=metadata,
                commit_timestamp=-1,
                leader_epoch=-1,
                leader_epoch_id=self.group_epoch_ids.get((request.group_id, tp), 0),
            )
        return response
