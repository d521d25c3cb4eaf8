"""An etcd in memory: the calls that brokerd.coordination uses, over real gRPC, in the caller's event loop. It follows etcd's
documentation of the v3 API; a contract test compares it with a real etcd. It keeps all history in memory and nothing on disk, so it
is only for tests and first trials. `python -m brokerd.testing.memory_etcd PORT` serves until its parent process ends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from brokerd import wire as wire  # before gRPC: see brokerd.wire

# isort: split
import grpc
import grpc.aio

from brokerd.coordination.v3 import etcd_pb2 as pb
from brokerd.testing.processes import end_with_parent

OPERATIONS_MAX = 128


class MemoryEtcd:
    """The store and its server. `stop` and then `start` simulate an outage: the data is kept."""

    term, cluster_id, version = 2, 7, "3.4.23"  # as its responses state them
    interceptors: Sequence[grpc.aio.ServerInterceptor] = ()

    def __init__(self) -> None:
        """`start` starts the server."""
        self.keys: dict[bytes, pb.KeyValue] = {}
        self.history: list[tuple[int, pb.Event]] = []
        self.revision = 1
        self.leases: dict[int, tuple[int, asyncio.TimerHandle]] = {}
        self.port = 0
        self._changed = asyncio.Condition()
        self._lease_ids = itertools.count(1_000)
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of the server, also after `stop`."""
        return f"127.0.0.1:{self.port}"

    async def start(self, credentials: grpc.ServerCredentials | None = None) -> None:
        """Starts the server on `port` (0 = a free one, which is kept). Each lease gets its full TTL again, as after an election in
        etcd. `credentials` None: plaintext."""
        options = [("grpc.so_reuseport", 0), ("grpc.http2.min_ping_interval_without_data_ms", 5_000)]
        self._server = grpc.aio.server(options=options, interceptors=self.interceptors)
        methods = {name: _unary(act, request) for name, (act, request) in self._calls().items()}
        methods["Watch/Watch"] = _stream(self._watch, pb.WatchRequest)
        methods["Lease/LeaseKeepAlive"] = _stream(self._keep_alive, pb.LeaseKeepAliveRequest)
        for service in ("KV", "Lease", "Maintenance", "Watch"):
            found = {name.partition("/")[2]: method for name, method in methods.items() if name.startswith(service + "/")}
            self._server.add_registered_method_handlers(f"etcdserverpb.{service}", found)
        address = f"127.0.0.1:{self.port}"
        if credentials is None:
            self.port = self._server.add_insecure_port(address)
        else:
            self.port = self._server.add_secure_port(address, credentials)
        for lease_id, (ttl_s, _) in self.leases.items():
            self._renew(lease_id, ttl_s)
        await self._server.start()

    def _calls(self) -> dict[str, tuple[Callable[[Any], Any], Any]]:
        """The unary calls by name: handler and type of the request."""
        return {
            "KV/Range": (self._range, pb.RangeRequest),
            "KV/Txn": (self._txn, pb.TxnRequest),
            "Lease/LeaseGrant": (self._grant, pb.LeaseGrantRequest),
            "Lease/LeaseRevoke": (self._revoke, pb.LeaseRevokeRequest),
            "Maintenance/Status": (self._status, pb.StatusRequest),
        }

    async def stop(self) -> None:
        """Ends all connections. No lease ends while the server is stopped, since clients cannot renew it."""
        for _, timer in self.leases.values():
            timer.cancel()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0)

    async def put(self, key: str, value: bytes | None) -> None:
        """Puts a key, or deletes it if `value` is None; the server need not run."""
        name = key.encode()
        if value is None:
            await self._change([pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name))])
        else:
            await self._change([pb.RequestOp(request_put=pb.PutRequest(key=name, value=value))])

    def clear(self) -> None:
        """Drops all data, as if etcd was started again with the same flags and an empty directory. Call it between `stop` and
        `start`."""
        self.keys.clear()
        self.history.clear()
        self.leases.clear()
        self.revision = 1

    def header(self) -> pb.ResponseHeader:
        """A response header with the current revision."""
        return pb.ResponseHeader(cluster_id=self.cluster_id, member_id=1, revision=self.revision, raft_term=self.term)

    # --- keys

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        found = [kv for key, kv in sorted(self._at(request.revision).items()) if _is_in(key, request.key, request.range_end)]
        limit = request.limit or len(found)
        return pb.RangeResponse(header=self.header(), kvs=found[:limit], more=len(found) > limit, count=len(found))

    def _at(self, revision: int) -> dict[bytes, pb.KeyValue]:
        keys = dict(self.keys)
        if revision:
            later = {event.kv.key for at, event in self.history if at > revision}
            before = {event.kv.key: event for at, event in self.history if at <= revision and event.kv.key in later}
            for key in later:
                keys.pop(key, None)
                if key in before and before[key].type == pb.Event.PUT:
                    keys[key] = before[key].kv
        return keys

    async def _txn(self, request: pb.TxnRequest) -> pb.TxnResponse:
        if max(len(request.compare), len(request.success), len(request.failure)) > OPERATIONS_MAX:
            raise RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: too many operations in txn request")
        for operation in request.success:
            if operation.request_put.lease and operation.request_put.lease not in self.leases:
                raise RefusedError(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        succeeded = all(self._holds(compare) for compare in request.compare)
        if succeeded:
            await self._change(request.success)
        return pb.TxnResponse(header=self.header(), succeeded=succeeded)

    def _holds(self, compare: pb.Compare) -> bool:
        assert (compare.result, compare.target) == (pb.Compare.EQUAL, pb.Compare.MOD)
        kv = self.keys.get(compare.key)
        return (kv.mod_revision if kv is not None else 0) == compare.mod_revision

    async def _change(self, operations: Any) -> None:
        revision = self.revision + 1
        events = []
        for operation in operations:
            if operation.HasField("request_put"):
                put = operation.request_put
                old = self.keys.get(put.key)
                created, version = (old.create_revision, old.version) if old is not None else (revision, 0)
                kv = pb.KeyValue(
                    key=put.key,
                    value=put.value,
                    lease=put.lease,
                    create_revision=created,
                    mod_revision=revision,
                    version=version + 1,
                )
                self.keys[put.key] = kv
                events.append(pb.Event(type=pb.Event.PUT, kv=kv))
            else:
                gone = operation.request_delete_range
                for key in [key for key in self.keys if _is_in(key, gone.key, gone.range_end)]:
                    del self.keys[key]
                    events.append(pb.Event(type=pb.Event.DELETE, kv=pb.KeyValue(key=key, mod_revision=revision)))
        if events:
            self.revision = revision
            self.history += [(revision, event) for event in events]
            async with self._changed:
                self._changed.notify_all()

    async def _watch(self, requests: AsyncIterator[pb.WatchRequest]) -> AsyncIterator[pb.WatchResponse]:
        request, sent = (await anext(requests)).create_request, self.revision
        yield pb.WatchResponse(header=self.header(), created=True)
        while True:
            async with self._changed:
                while self.revision <= sent:
                    await self._changed.wait()
            newest = self.revision  # self.revision may advance during the yields
            for revision in sorted({at for at, _ in self.history if at > sent}):
                events = [event for at, event in self.history if at == revision]
                new = [event for event in events if _is_in(event.kv.key, request.key, request.range_end)]
                sent = revision
                if new:
                    yield pb.WatchResponse(header=self.header(), events=new)
            sent = newest

    # --- leases

    async def _grant(self, request: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        lease_id = next(self._lease_ids)
        self._renew(lease_id, request.TTL)
        return pb.LeaseGrantResponse(header=self.header(), ID=lease_id, TTL=request.TTL)

    def _renew(self, lease_id: int, ttl_s: int) -> None:
        if lease_id in self.leases:
            self.leases[lease_id][1].cancel()
        loop = asyncio.get_running_loop()
        self.leases[lease_id] = (ttl_s, loop.call_later(ttl_s, lambda: loop.create_task(self.end_lease(lease_id))))

    async def end_lease(self, lease_id: int) -> None:
        """Ends a lease and deletes its keys."""
        if lease_id in self.leases:
            self.leases.pop(lease_id)[1].cancel()
            gone = [key for key, kv in self.keys.items() if kv.lease == lease_id]
            await self._change([pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key)) for key in gone])

    async def _revoke(self, request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        if request.ID not in self.leases:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        await self.end_lease(request.ID)
        return pb.LeaseRevokeResponse(header=self.header())

    async def _keep_alive(self, requests: AsyncIterator[pb.LeaseKeepAliveRequest]) -> AsyncIterator[pb.LeaseKeepAliveResponse]:
        async for request in requests:
            ttl_s = self.leases[request.ID][0] if request.ID in self.leases else 0
            if ttl_s:
                self._renew(request.ID, ttl_s)
            yield pb.LeaseKeepAliveResponse(header=self.header(), ID=request.ID, TTL=ttl_s)

    async def _status(self, _request: pb.StatusRequest) -> pb.StatusResponse:
        return pb.StatusResponse(header=self.header(), version=self.version, leader=1, raftTerm=self.term)


class RefusedError(Exception):
    """A call that etcd refuses."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


def _is_in(key: bytes, first: bytes, end: bytes) -> bool:
    return first <= key < end if end else key == first


def _unary(act: Callable[[Any], Any], request_type: Any) -> Any:
    async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            response = await act(request)
        except RefusedError as refused:
            await context.abort(refused.code, refused.details)
        return response

    return grpc.unary_unary_rpc_method_handler(handle, request_type.FromString, lambda message: message.SerializeToString())


def _stream(act: Callable[[Any], Any], request_type: Any) -> Any:
    async def handle(requests: Any, _context: Any) -> AsyncIterator[Any]:
        async for response in act(requests):
            yield response

    return grpc.stream_stream_rpc_method_handler(handle, request_type.FromString, lambda message: message.SerializeToString())


async def _serve(port: int) -> None:
    etcd = MemoryEtcd()
    etcd.port = port
    await etcd.start()
    sys.stdout.write(f"etcd in memory ready on {etcd.address}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    end_with_parent(os.getppid())
    asyncio.run(_serve(int(sys.argv[1])))
