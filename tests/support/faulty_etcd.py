"""The in-memory etcd, with faults on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from brokerd.coordination.v3 import etcd_pb2 as pb
from brokerd.testing.memory_etcd import MemoryEtcd, RefusedError


class FaultyEtcd(MemoryEtcd):
    """A MemoryEtcd whose faults can be set at any time."""

    def __init__(self, *, term: int = MemoryEtcd.term) -> None:
        super().__init__()
        self.term = term
        self.has_leader = True  # False: the member cannot reach the others
        self.refuses = ""  # error with which changes and watches are refused; "" = none
        self.crosses_quota = False  # changes take effect, but return the quota error
        self.loses_answers = False  # calls take effect, but their connection is lost
        self.watches_end_after = 0  # a watch ends after this many revisions; 0 = never
        self.ends_watches = False  # ends watches at once
        self.renews = True  # answers lease renewals
        self.renewed = asyncio.Event()  # set at each answered renewal
        self.interceptors = (_WithoutLeader(self),)
        self.compacted = 0  # compacted up to this revision, even if a watch has not sent it

    def clear(self) -> None:
        super().clear()
        self.compacted = 0

    def go_back(self, revision: int) -> None:
        """Undoes the changes after a revision, as when the members have lost them. Call it between `stop` and `start`."""
        self.keys = self._at(revision)
        self.history = [(at, event) for at, event in self.history if at <= revision]
        self.revision = revision
        self.term += 1

    async def compact(self, revision: int) -> None:
        """Compacts the history up to a revision."""
        self.compacted = revision
        self.history = [(at, event) for at, event in self.history if at > revision]

    def _calls(self) -> dict[str, tuple[Callable[[Any], Any], Any]]:
        return {name: (self._faulty(act, request), request) for name, (act, request) in super()._calls().items()}

    def _faulty(self, act: Callable[[Any], Any], request_type: Any) -> Callable[[Any], Any]:
        async def call(request: Any) -> Any:
            response = await act(request)
            if self.loses_answers and request_type is not pb.StatusRequest:
                raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the connection is lost")
            return response

        return call

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        if request.revision and request.revision < self.compacted:
            raise RefusedError(grpc.StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
        return await super()._range(request)

    async def _txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        if self.refuses:
            raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, self.refuses)
        response = await super()._txn(request)
        if self.crosses_quota:
            raise RefusedError(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded")
        return response

    async def _watch(self, requests: AsyncIterator[pb.WatchRequest]) -> AsyncIterator[pb.WatchResponse]:
        request = await anext(requests)
        if self.refuses:
            yield pb.WatchResponse(header=self.header(), created=True, canceled=True, cancel_reason=self.refuses)
            return
        if self.ends_watches:
            return
        told = 0
        async for response in super()._watch(_one(request)):
            if response.events and response.events[0].kv.mod_revision <= self.compacted:
                yield pb.WatchResponse(header=self.header(), canceled=True, compact_revision=self.compacted)
                return
            yield response
            told += bool(response.events)
            if told and told == self.watches_end_after:
                return

    async def _keep_alive(self, requests: AsyncIterator[pb.LeaseKeepAliveRequest]) -> AsyncIterator[pb.LeaseKeepAliveResponse]:
        async for response in super()._keep_alive(self._answered(requests)):
            if response.TTL:
                self.renewed.set()
            yield response

    async def _answered(self, requests: AsyncIterator[pb.LeaseKeepAliveRequest]) -> AsyncIterator[pb.LeaseKeepAliveRequest]:
        async for request in requests:
            if not self.renews:
                await asyncio.get_running_loop().create_future()  # until the call ends
            yield request


class _WithoutLeader(grpc.aio.ServerInterceptor):
    """Refuses calls that require a leader while there is none. Others wait or get a stale answer, as in etcd."""

    def __init__(self, etcd: FaultyEtcd) -> None:
        self._etcd = etcd

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        if self._etcd.has_leader or ("hasleader", "true") not in (handler_call_details.invocation_metadata or ()):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(_request: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")


async def _one(request: pb.WatchRequest) -> AsyncIterator[pb.WatchRequest]:
    yield request
