"""The calls about groups: how far readers have got. Values are in group_offsets.py; connections and retries are BrokerClient's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from brokerd.client import group_offsets
from brokerd.client.consumer.offsets import READ_COMMITTED
from brokerd.client.group_offsets import GroupDescription, GroupListing, GroupPartition, OffsetAndMetadata
from brokerd.client.io.response_checks import error_in, page_after
from brokerd.errors import BrokerdError, UnknownGroupError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.wire.methods import UNARY_REQUEST_MAX_BYTES
from brokerd.wire.v1 import offsets_pb2

if TYPE_CHECKING:
    from brokerd.client.broker_client import BrokerClient

_PER_REQUEST_MAX = 1_000  # partitions asked at once: their metadata must fit into a response
_HEAD_BYTES = 2_048  # of a request besides its offsets


class GroupCalls:
    """Of one BrokerClient; retried as its other calls are: the same request again does no harm."""

    def __init__(self, client: BrokerClient) -> None:
        self._client = client

    async def commit(
        self, group_id: str, offsets: Mapping[TopicIdPartition, OffsetAndMetadata]
    ) -> dict[TopicIdPartition, WireError]:
        """Records how far a group has read, durably on return; returns the errors of those that were refused. Offsets of one
        request (max.partitions.per.request) are recorded in one step. Raises GroupAuthorizationFailedError, PolicyViolationError
        and the broker's other errors.
        """
        refused: dict[TopicIdPartition, WireError] = {}
        entries_max = await self._client.retried(lambda _: self._client.partitions_per_request())
        bytes_max = UNARY_REQUEST_MAX_BYTES - _HEAD_BYTES
        requests = group_offsets.commit_requests(group_id, offsets, entries_max=entries_max, request_bytes_max=bytes_max)
        for tps, request in requests:
            response = await self._client.call(
                "CommitGroupOffsets", request, offsets_pb2.CommitGroupOffsetsResponse, error_of=error_in
            )
            refused |= group_offsets.read_refused(tps, response)
        return refused

    async def renew(self, group_id: str) -> None:
        """Says that somebody reads for a group: it is kept as if it had just committed. A group that does not exist is
        not made. Raises GroupAuthorizationFailedError and the broker's other errors."""
        request = offsets_pb2.CommitGroupOffsetsRequest(group_id=group_id, generation=group_offsets.NO_GENERATION)
        await self._client.call("CommitGroupOffsets", request, offsets_pb2.CommitGroupOffsetsResponse, error_of=error_in)

    async def offsets(
        self, group_id: str, partitions: Sequence[TopicIdPartition] | None = None
    ) -> dict[TopicIdPartition, OffsetAndMetadata | WireError]:
        """How far a group has read these partitions, or all that it has an offset of. Partitions without one are left out; those
        that do not exist have the broker's error. Raises GroupAuthorizationFailedError and the broker's other errors.
        """
        found: dict[TopicIdPartition, OffsetAndMetadata | WireError] = {}
        if partitions is None:
            found.update(await self._all(group_id))
            return found
        size = min(_PER_REQUEST_MAX, await self._client.retried(lambda _: self._client.partitions_per_request()))
        for at in range(0, len(partitions), size):
            tps = partitions[at : at + size]
            found |= group_offsets.read_asked(tps, await self._fetched(group_offsets.fetch_request(group_id, tps)))
        return found

    async def _all(self, group_id: str) -> dict[TopicIdPartition, OffsetAndMetadata]:
        offsets: dict[TopicIdPartition, OffsetAndMetadata] = {}
        after: TopicIdPartition | None = None
        while True:
            response = await self._fetched(group_offsets.page_request(group_id, after))
            page = group_offsets.read_page(response)
            offsets |= page
            if not response.more or not page:
                return offsets
            after = page_after("FetchGroupOffsets", after, max(page))

    async def _fetched(self, request: offsets_pb2.FetchGroupOffsetsRequest) -> offsets_pb2.FetchGroupOffsetsResponse:
        return await self._client.call("FetchGroupOffsets", request, offsets_pb2.FetchGroupOffsetsResponse, error_of=error_in)

    async def listed(self, prefix: str = "") -> list[GroupListing]:
        """Groups whose ids begin with `prefix`, in the order of their ids."""
        groups: list[GroupListing] = []
        after = ""
        while True:
            request = offsets_pb2.ListGroupsRequest(prefix=prefix, after=after)
            response = await self._client.call("ListGroups", request, offsets_pb2.ListGroupsResponse, error_of=error_in)
            groups += [group_offsets.read_listing(listing) for listing in response.groups]
            if not response.more or not response.groups:
                return groups
            after = page_after("ListGroups", after, groups[-1].group_id)

    async def describe(self, group_id: str, isolation: str = READ_COMMITTED) -> GroupDescription:
        """How far a group has read, and what it has left to read. Raises UnknownGroupError, GroupAuthorizationFailedError."""
        partitions: list[GroupPartition] = []
        after: TopicIdPartition | None = None
        while True:
            request = group_offsets.describe_request(group_id, isolation, after)
            response = await self._client.call("DescribeGroup", request, offsets_pb2.DescribeGroupResponse, error_of=error_in)
            found = [group_offsets.read_partition(one) for one in response.partitions]
            partitions += [one for one in found if one is not None]
            if not response.more or not response.partitions:
                listing = group_offsets.read_listing(response.group)
                return GroupDescription(listing, tuple(sorted(partitions, key=lambda one: (one.topic, one.tp))))
            last = response.partitions[-1].committed
            after = page_after("DescribeGroup", after, TopicIdPartition(last.topic_id, last.partition))

    async def delete(self, group_id: str, partitions: Sequence[TopicIdPartition] = ()) -> int:
        """Forgets a group, or its offsets of some partitions; returns how many, without those that a response would have told of
        that was lost. Raises UnknownGroupError and the broker's other errors.
        """
        deleted = 0
        lost: list[BrokerdError] = []
        size = await self._client.retried(lambda _: self._client.partitions_per_request())
        for at in range(0, max(1, len(partitions)), size):
            request = group_offsets.delete_request(group_id, partitions[at : at + size])
            try:
                response = await self._client.call(
                    "DeleteGroup", request, offsets_pb2.DeleteGroupResponse, error_of=error_in, failures=lost
                )
            except UnknownGroupError:
                if not lost and at == 0:
                    raise
                break  # it has gone with its last offset, by this call
            deleted += response.deleted_offsets
        return deleted
