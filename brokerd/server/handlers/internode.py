"""What other nodes of the cluster ask (proto/brokerd/internode): of this node as a leader of partitions, and as the coordinator.

Behaviour of all
- Only nodes of the cluster may call; the transport sees to that.
- A field that violates the contract is INVALID_ARGUMENT; any other failure is the response's error. NOT_COORDINATOR is for a
  coordinator that has been replaced, and for whoever takes this node for the coordinator.
- All may be repeated. Lists are paged, and no request waits for another node.
- VerifyMembers and PreparedHolds are answered once everything that they tell is durable.
- FreezeMembers and WriteMarkers wait for a flush, for half a minute at most.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sized
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message

from brokerd.coordinator.transactional_id import NO_VERSION
from brokerd.errors import NotReadyError
from brokerd.internode.v1.internode_pb2 import (
    FreezeMembersRequest,
    FreezeMembersResponse,
    HangingPartitionsRequest,
    HangingPartitionsResponse,
    OpenDataRequest,
    OpenDataResponse,
    OpenMembersRequest,
    OpenMembersResponse,
    Partition,
    PreparedHoldsRequest,
    PreparedHoldsResponse,
    ReleaseRequest,
    ReleaseResponse,
    VerifyMembersRequest,
    VerifyMembersResponse,
    WriteMarkersRequest,
    WriteMarkersResponse,
)
from brokerd.server.admin import STOPPING
from brokerd.server.broker import BrokerParts
from brokerd.server.coordinator.members import IDS_MAX, PARTITIONS_MAX, SETTLED_MAX, VERIFIED_MAX
from brokerd.server.failures import fails_with, malformed
from brokerd.server.requests import check_count, check_id, check_not_negative, check_text, topic_id_partition
from brokerd.wire.v1.coordinator_log_pb2 import HeldBack

R = TypeVar("R", bound=Message)
_NONE = -1


class InternodeMethod(NamedTuple):
    """A unary method: its messages, and what serves it. It raises MalformedError alone."""

    request: type[Message]
    response: type[Message]
    handle: Callable[[BrokerParts, Any], Awaitable[Message]]


async def verify_members(broker: BrokerParts, request: VerifyMembersRequest) -> VerifyMembersResponse:
    """Which members are open; of the coordinator."""
    _check_ids(request.producer_ids, VERIFIED_MAX)
    return await _answered(broker, VerifyMembersResponse, lambda: broker.transactions.verify_members(request))


async def freeze_members(broker: BrokerParts, request: FreezeMembersRequest) -> FreezeMembersResponse:
    """Takes nothing more of these members, and returns what this leader holds of them."""
    _check_epoch(request.coordinator_epoch)
    _check_ids(request.producer_ids)
    _check_places("partitions", request.partitions)
    if request.HasField("after"):
        _check_places("after", [request.after])
    return await _answered(broker, FreezeMembersResponse, lambda: broker.members.freeze(request))


async def write_markers(broker: BrokerParts, request: WriteMarkersRequest) -> WriteMarkersResponse:
    """Writes markers, durable when answered."""
    _check_epoch(request.coordinator_epoch)
    check_text("transactional_id", request.transactional_id)
    if request.txn_version < NO_VERSION:
        raise malformed("txn_version", f"is {request.txn_version}, but must be a version, or -1 for an abort")
    _check_ids(request.committed_producer_ids, field="committed_producer_ids")
    _check_ids(request.aborted_producer_ids, field="aborted_producer_ids")
    _check_places("partitions", request.partitions)
    for one in request.partitions:
        if one.first_offset < _NONE:
            raise malformed("partitions.first_offset", f"is {one.first_offset}, but must be an offset, or -1 to hold back nothing")
    if request.committed_producer_ids and not request.partitions:
        raise malformed("partitions", "must name where a commit's markers go")
    return await _answered(broker, WriteMarkersResponse, lambda: broker.members.write_markers(request))


async def release(broker: BrokerParts, request: ReleaseRequest) -> ReleaseResponse:
    """Lets a commit's markers take effect."""
    _check_epoch(request.coordinator_epoch)
    check_id("transactional_id", request.transactional_id)
    check_not_negative("txn_version", request.txn_version)
    return await _answered(broker, ReleaseResponse, lambda: broker.members.release(request))


async def open_members(broker: BrokerParts, request: OpenMembersRequest) -> OpenMembersResponse:
    """Members with data here."""
    _check_epoch(request.coordinator_epoch)
    if request.after_producer_id < _NONE:
        raise malformed("after_producer_id", f"is {request.after_producer_id}, but must be an id, or -1 for the first page")
    return await _answered(broker, OpenMembersResponse, lambda: broker.members.open_members(request))


async def open_data(broker: BrokerParts, request: OpenDataRequest) -> OpenDataResponse:
    """What is here of some members."""
    _check_epoch(request.coordinator_epoch)
    _check_ids(request.producer_ids)
    if request.HasField("after"):
        _check_places("after", [request.after])
    return await _answered(broker, OpenDataResponse, lambda: broker.members.open_data(request))


async def hanging_partitions(broker: BrokerParts, request: HangingPartitionsRequest) -> HangingPartitionsResponse:
    """Partitions here whose last stable offset is held back."""
    _check_epoch(request.coordinator_epoch)
    if request.HasField("after"):
        _check_places("after", [request.after])
    return await _answered(broker, HangingPartitionsResponse, lambda: broker.members.hanging_partitions(request))


async def prepared_holds(broker: BrokerParts, request: PreparedHoldsRequest) -> PreparedHoldsResponse:
    """What prepared commits hold back; of the coordinator."""
    _check_places("partitions", request.partitions, SETTLED_MAX)
    check_text("after_transactional_id", request.after_transactional_id)
    return await _answered(broker, PreparedHoldsResponse, lambda: broker.transactions.prepared_holds(request))


# By name, in the order of internode.proto.
METHODS: dict[str, InternodeMethod] = {
    "VerifyMembers": InternodeMethod(VerifyMembersRequest, VerifyMembersResponse, verify_members),
    "FreezeMembers": InternodeMethod(FreezeMembersRequest, FreezeMembersResponse, freeze_members),
    "WriteMarkers": InternodeMethod(WriteMarkersRequest, WriteMarkersResponse, write_markers),
    "Release": InternodeMethod(ReleaseRequest, ReleaseResponse, release),
    "OpenMembers": InternodeMethod(OpenMembersRequest, OpenMembersResponse, open_members),
    "OpenData": InternodeMethod(OpenDataRequest, OpenDataResponse, open_data),
    "HangingPartitions": InternodeMethod(HangingPartitionsRequest, HangingPartitionsResponse, hanging_partitions),
    "PreparedHolds": InternodeMethod(PreparedHoldsRequest, PreparedHoldsResponse, prepared_holds),
}


async def _answered(broker: BrokerParts, response_type: type[R], work: Callable[[], Awaitable[R]]) -> R:
    """What `work` gives, or a response with its error."""
    answered = [response_type()]
    with fails_with(answered[0], response_type.DESCRIPTOR.name):
        if broker.is_stopping:
            raise NotReadyError(STOPPING)
        answered.append(await work())
    return answered[-1]


def _check_epoch(epoch: int) -> None:
    check_not_negative("coordinator_epoch", epoch)


def _check_ids(producer_ids: Iterable[int], limit: int = IDS_MAX, *, field: str = "producer_ids") -> None:
    assert isinstance(producer_ids, Sized)
    check_count(field, producer_ids, limit)
    for producer_id in producer_ids:
        check_not_negative(field, producer_id)


def _check_places(field: str, places: Iterable[Partition] | Iterable[HeldBack], limit: int = PARTITIONS_MAX) -> None:
    assert isinstance(places, Sized)
    check_count(field, places, limit)
    for one in places:
        topic_id_partition(field, one.topic_id, one.partition)
