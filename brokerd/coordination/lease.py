"""Leases: the keys that go when a node goes. A lease is kept alive in the background until it is lost, which is said once."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import grpc.aio

from brokerd.coordination.client import HAS_LEADER, RETRY_MS, CoordinationClient
from brokerd.coordination.v3.etcd_pb2 import (
    LeaseGrantRequest,
    LeaseGrantResponse,
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseRevokeRequest,
    LeaseRevokeResponse,
)
from brokerd.errors import CoordinationError

logger = logging.getLogger(__name__)
_PER_TTL = 3  # renewals
_ATTEMPTS_PER_TTL = 5  # at least: a member that hangs costs one of them


class Lease:
    """A lease that is kept alive. It counts as lost when etcd says so, or when no renewal begun within its time to live was
    answered, time asleep included: etcd may then have ended it."""

    def __init__(self, client: CoordinationClient, lease_id: int, ttl_ms: int, granted_ms: int) -> None:
        self.id = lease_id
        self.lost = asyncio.Event()
        self._client = client
        self._ttl_ms = ttl_ms
        self._good_until_ms = granted_ms + ttl_ms
        self._is_late = False  # the last renewal failed
        self._task = asyncio.create_task(self._keep(), name="lease")

    @property
    def is_over(self) -> bool:
        """True if etcd may have ended it, also if this process was suspended and has not noticed yet."""
        return self.lost.is_set() or self._client.clock.boot_ms() >= self._good_until_ms

    async def revoke(self) -> None:
        """Ends the lease and its keys at once. Raises CoordinationError; the lease then ends by itself."""
        await self._stop()
        await self._client.repeated("/etcdserverpb.Lease/LeaseRevoke", LeaseRevokeRequest(ID=self.id), LeaseRevokeResponse)

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        clock = self._client.clock
        try:
            while (left_ms := self._good_until_ms - clock.boot_ms()) > 0:
                due_ms = left_ms - self._ttl_ms + self._ttl_ms // _PER_TTL  # past if the last attempt failed
                await asyncio.sleep(min(left_ms, max(due_ms, RETRY_MS)) / 1000)
                if not await self._renew():
                    return
        finally:
            self.lost.set()

    async def _renew(self) -> bool:
        """Renews the lease once; False if it is gone."""
        client = self._client
        channel, begun_ms = client.channel(), client.clock.boot_ms()
        timeout_ms = min(self._ttl_ms // _ATTEMPTS_PER_TTL, self._good_until_ms - begun_ms)
        call: Any = channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            request_serializer=LeaseKeepAliveRequest.SerializeToString,
            response_deserializer=LeaseKeepAliveResponse.FromString,
        )(metadata=HAS_LEADER)
        try:
            async with client.using(channel):
                response = await client.first(call, LeaseKeepAliveRequest(ID=self.id), timeout_ms)
                if response is grpc.aio.EOF:
                    raise CoordinationError(f"etcd at {client.address} ended the renewal of a lease", is_fate_unknown=True)
                client.seen(response)
        except CoordinationError as error:
            if not self._is_late:  # an outage is told once
                logger.info("%s: the lease is renewed at the next endpoint", error)
            self._is_late = True
            return True
        finally:
            call.cancel()
        self._is_late = False
        if response.TTL > 0:
            self._good_until_ms = begun_ms + response.TTL * 1000
        return bool(response.TTL > 0)


async def grant(client: CoordinationClient, ttl_s: int) -> Lease:
    """A new lease of `ttl_s` seconds. Raises CoordinationError."""
    begun_ms = client.clock.boot_ms()
    response = await client.repeated("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest(TTL=ttl_s), LeaseGrantResponse)
    return Lease(client, response.ID, response.TTL * 1000, begun_ms)
