"""The service between the nodes of a cluster (proto/brokerd/internode; called from cluster/calls.py): requests to this node as a
leader of partitions, and as the coordinator.

All methods
- Only nodes of the cluster may call.
- A field that violates the contract is answered with INVALID_ARGUMENT; any other failure is in the response's error.
  NOT_COORDINATOR means that the calling coordinator has been replaced, or that this node is not the coordinator.
- Every request may be repeated. Lists are paged, and no request waits for another node.
- VerifyMembers and PreparedHolds are answered once everything in the response is durable.
- FreezeMembers and WriteMarkers wait for a flush, at most half a minute.

Like the broker's own methods, these are registered as request streams, so gRPC does not assemble messages of unauthenticated
callers.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from brokerd.coordinator.transactional_id import NO_VERSION
from brokerd.errors import BrokerdError, NotReadyError
from brokerd.internode.v1 import internode_pb2 as pb
from brokerd.server.admin import STOPPING
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.calls import TOKEN
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.coordinator.members import IDS_MAX, PARTITIONS_MAX, SETTLED_MAX, VERIFIED_MAX
from brokerd.server.failures import fails_with, internal, malformed, status_of
from brokerd.server.replication.serving import ReplicaStream
from brokerd.server.requests import check_count, check_id, check_not_negative, check_text, topic_id_partition
from brokerd.server.security.audit import host_of
from brokerd.server.security.authenticator import UnauthenticatedError, peer_of
from brokerd.server.service import read_request
from brokerd.server.streams import Context
from brokerd.sharing import BROKER, CALLER
from brokerd.wire.v1.coordinator_log_pb2 import HeldBack

logger = logging.getLogger(__name__)
REQUEST_MAX_BYTES = 2_097_152
_ARRIVAL_S = 10.0
_NEWS_MS = 60_000  # this long after a start, a wrong token is most likely the previous registration's: no alarm


class InternodeService:
    """The methods that other nodes may call."""

    def __init__(self, broker: BrokerParts, cluster: ClusterNode) -> None:
        self._broker = broker
        self._cluster = cluster
        self._started_ms = broker.clock.monotonic_ms()

    def method_handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """The handlers to register with a gRPC server."""
        unary: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            name: grpc.stream_unary_rpc_method_handler(self._unary(name, method)) for name, method in METHODS.items()
        }
        return {**unary, "Replicate": grpc.stream_stream_rpc_method_handler(self._replicate)}

    async def _replicate(self, _requests: object, context: Context) -> None:
        async with _ends(context, "Replicate"):
            self._check_token(context)
            CALLER.set(BROKER)
            await ReplicaStream(self._broker, *self._cluster.replica_streams(), context).run()

    def _unary(self, name: str, method: InternodeMethod) -> Callable[[object, Context], Awaitable[bytes]]:
        async def call(_requests: object, context: Context) -> bytes:
            async with _ends(context, name):
                self._check_token(context)
                CALLER.set(BROKER)
                response = await method.handle(self._broker, await _read(method.request, context))
            return response.SerializeToString()

        return call

    def _check_token(self, context: Context) -> None:
        tokens = [value for name, value in context.invocation_metadata() or () if name == TOKEN]
        shown = tokens[0] if len(tokens) == 1 and isinstance(tokens[0], str) else ""
        if not hmac.compare_digest(shown.encode(), self._cluster.token.encode()):
            host = host_of(peer_of(context))
            if shown and self._broker.clock.monotonic_ms() - self._started_ms < _NEWS_MS:
                logger.debug("%s does not know the new registration of this node yet: its call is refused", host)
            else:
                self._broker.audit.refused(host, "a call that only nodes of the cluster may make")
            raise UnauthenticatedError("only nodes of the cluster may call this")


@contextlib.asynccontextmanager
async def _ends(context: Context, name: str) -> AsyncIterator[None]:
    """Ends the call with the error that its body raises."""
    try:
        yield
    except (BrokerdError, DecodeError) as error:
        failure = error if isinstance(error, BrokerdError) else malformed(name, "the bytes cannot be parsed")
        await context.abort(*status_of(failure))
    except grpc.aio.BaseError:
        raise  # the caller has gone
    except Exception as error:
        await context.abort(*status_of(internal(name, error)))


async def _read(request_type: type[Message], context: Context) -> Message:
    what = request_type.DESCRIPTOR.name
    data = await read_request(context, what, _ARRIVAL_S)
    if len(data) > REQUEST_MAX_BYTES:
        raise malformed(what, f"has {len(data)} bytes, more than {REQUEST_MAX_BYTES}")
    return request_type.FromString(data)


_NONE = -1


class InternodeMethod(NamedTuple):
    """A unary method: its messages, the check of its request, and its handler, by default the leader's side (Members.answer)."""

    request: type[Message]
    response: type[Message]
    check: Callable[[Any], None]
    served_by: Callable[[BrokerParts], Callable[[Any], Awaitable[Any]]] = lambda broker: broker.members.answer

    async def handle(self, broker: BrokerParts, request: Message) -> Message:
        """The response, which holds any failure as its error. Raises only MalformedError."""
        self.check(request)
        answered = [self.response()]
        with fails_with(answered[0], self.response.DESCRIPTOR.name):
            if broker.is_stopping:
                raise NotReadyError(STOPPING)
            answered.append(await self.served_by(broker)(request))
        return answered[-1]


def _check_verify(request: pb.VerifyMembersRequest) -> None:
    _check_ids(request.producer_ids, VERIFIED_MAX)


def _check_freeze(request: pb.FreezeMembersRequest) -> None:
    _check_open_data(request)
    _check_places("partitions", request.partitions)


def _check_markers(request: pb.WriteMarkersRequest) -> None:
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


def _check_release(request: pb.ReleaseRequest) -> None:
    _check_epoch(request.coordinator_epoch)
    check_id("transactional_id", request.transactional_id)
    check_not_negative("txn_version", request.txn_version)


def _check_open_members(request: pb.OpenMembersRequest) -> None:
    _check_epoch(request.coordinator_epoch)
    if request.after_producer_id < _NONE:
        raise malformed("after_producer_id", f"is {request.after_producer_id}, but must be an id, or -1 for the first page")


def _check_open_data(request: pb.OpenDataRequest | pb.FreezeMembersRequest) -> None:
    _check_hanging(request)
    _check_ids(request.producer_ids)


def _check_hanging(request: pb.HangingPartitionsRequest | pb.OpenDataRequest | pb.FreezeMembersRequest) -> None:
    _check_epoch(request.coordinator_epoch)
    if request.HasField("after"):
        _check_places("after", [request.after])


def _check_holds(request: pb.PreparedHoldsRequest) -> None:
    _check_places("partitions", request.partitions, SETTLED_MAX)
    check_text("after_transactional_id", request.after_transactional_id)


async def _copy_end(broker: BrokerParts, request: pb.CopyEndRequest) -> pb.CopyEndResponse:
    partition = broker.partitions.replica(topic_id_partition("partition", request.partition.topic_id, request.partition.partition))
    if partition is None:
        raise NotReadyError("this node has no copy of it")
    return pb.CopyEndResponse(
        leader_epoch=partition.epochs.latest,
        log_end_offset=partition.ends.log_end_offset,
        has_stopped=partition.is_stopped,
    )


async def _log_time(broker: BrokerParts, _request: pb.LogTimeRequest) -> pb.LogTimeResponse:
    now_ms, owed = broker.time.now_ms(), broker.time.owed
    return pb.LogTimeResponse(log_time_ms=now_ms, owed_ms=owed.ms, rate=owed.rate)


_METHODS = (
    InternodeMethod(
        pb.VerifyMembersRequest, pb.VerifyMembersResponse, _check_verify, lambda broker: broker.transactions.verify_members
    ),
    InternodeMethod(pb.FreezeMembersRequest, pb.FreezeMembersResponse, _check_freeze),
    InternodeMethod(pb.WriteMarkersRequest, pb.WriteMarkersResponse, _check_markers),
    InternodeMethod(pb.ReleaseRequest, pb.ReleaseResponse, _check_release),
    InternodeMethod(pb.OpenMembersRequest, pb.OpenMembersResponse, _check_open_members),
    InternodeMethod(pb.OpenDataRequest, pb.OpenDataResponse, _check_open_data),
    InternodeMethod(pb.HangingPartitionsRequest, pb.HangingPartitionsResponse, _check_hanging),
    InternodeMethod(
        pb.PreparedHoldsRequest, pb.PreparedHoldsResponse, _check_holds, lambda broker: broker.transactions.prepared_holds
    ),
    InternodeMethod(
        pb.CopyEndRequest,
        pb.CopyEndResponse,
        lambda request: _check_places("partition", [request.partition]),
        lambda broker: partial(_copy_end, broker),
    ),
    InternodeMethod(pb.LogTimeRequest, pb.LogTimeResponse, lambda _request: None, lambda broker: partial(_log_time, broker)),
)
# By name, in the order of internode.proto.
METHODS = {method.request.DESCRIPTOR.name.removesuffix("Request"): method for method in _METHODS}


def _check_epoch(epoch: int) -> None:
    check_not_negative("coordinator_epoch", epoch)


def _check_ids(producer_ids: Collection[int], limit: int = IDS_MAX, *, field: str = "producer_ids") -> None:
    check_count(field, producer_ids, limit)
    for producer_id in producer_ids:
        check_not_negative(field, producer_id)


def _check_places(field: str, places: Collection[pb.Partition] | Collection[HeldBack], limit: int = PARTITIONS_MAX) -> None:
    check_count(field, places, limit)
    for one in places:
        topic_id_partition(field, one.topic_id, one.partition)
