"""All changes below a prefix, without a gap or a repetition, over lost connections, compactions and changes of the endpoint.

A watch begins with all keys at one revision, and goes on with the changes after it. Its stream is opened before the keys are read,
and both begin anew after a lost connection: etcd may have gone back meanwhile, and have passed the revision again at which the
stream would be resumed. They begin anew every ten minutes, too, since a watch has been seen to miss a change at a compaction
(etcd-io/etcd#18089). So the consumer takes a Snapshot for the whole truth at any time, also one of an older revision than the last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import grpc
import grpc.aio

from brokerd.coordination.client import HAS_LEADER, RETRY_MS, CoordinationClient, KeyValue, Snapshot, key_value, prefix_end
from brokerd.coordination.v3.etcd_pb2 import Event, WatchCreateRequest, WatchRequest, WatchResponse
from brokerd.errors import CoordinationError

logger = logging.getLogger(__name__)
RECONCILE_MS = 600_000
_REFUSED_MS = 1_000  # before what has not worked for so long is asked for again


class Changes(NamedTuple):
    """What changed up to `revision`: keys put, and keys deleted, in this order of events."""

    revision: int
    events: list[KeyValue | str]  # a key that was put, or the name of one that was deleted


async def watch(client: CoordinationClient, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
    """Everything below `prefix` now, and each change from then on; see the module docstring. Goes on through outages, for ever."""
    told = ""
    while True:
        begun_ms = None
        try:
            async for found in _watch_once(client, prefix):
                begun_ms = client.clock.monotonic_ms() if begun_ms is None else begun_ms
                yield found
        except CoordinationError as error:
            has_worked = begun_ms is not None and client.clock.monotonic_ms() - begun_ms >= _REFUSED_MS
            if has_worked or error.message != told:  # an outage may last
                told = error.message
                logger.log(logging.INFO if error.is_fate_unknown else logging.WARNING, "%s: all keys are read anew", error)
            await asyncio.sleep((RETRY_MS if has_worked else _REFUSED_MS) / 1000)


async def _watch_once(client: CoordinationClient, prefix: str) -> AsyncGenerator[Snapshot | Changes, None]:
    """A snapshot and the changes after it, for RECONCILE_MS, or until they are compacted. Raises CoordinationError."""
    channel = client.channel()
    call: Any = channel.stream_stream(
        "/etcdserverpb.Watch/Watch",
        request_serializer=WatchRequest.SerializeToString,
        response_deserializer=WatchResponse.FromString,
    )(metadata=HAS_LEADER)
    create = WatchCreateRequest(key=prefix.encode(), range_end=prefix_end(prefix))
    try:
        async with client.using(channel):
            response = await client.first(call, WatchRequest(create_request=create), client.attempt_ms)
            snapshot = await client.read(prefix, is_older_taken=True)
            end_ms = client.clock.monotonic_ms() + RECONCILE_MS
            yield snapshot
            while response is not grpc.aio.EOF:
                client.seen(response)
                if response.compact_revision:
                    return
                if response.canceled:
                    raise CoordinationError(f"etcd at {client.address} refused a watch ({response.cancel_reason[:300]})")
                events = [event for event in response.events if event.kv.mod_revision > snapshot.revision]
                if events:
                    # The header has the store's revision, of which more changes may be on the way.
                    revision = max(event.kv.mod_revision for event in events)
                    client.has_reached(revision)
                    yield Changes(revision, [_event(event) for event in events])
                response = await _read(call, end_ms - client.clock.monotonic_ms())
            raise CoordinationError(f"etcd at {client.address} ended a watch", is_fate_unknown=True)
    except TimeoutError:
        return
    finally:
        call.cancel()


async def _read(call: Any, left_ms: int) -> Any:
    """The next response. Raises TimeoutError."""
    # Not wait_for, which drops a cancellation that meets a response (Python 3.11): a stop would wait for this watch for ever.
    async with asyncio.timeout(left_ms / 1000):
        return await call.read()


def _event(event: Event) -> KeyValue | str:
    found = key_value(event.kv)
    return found.key if event.type == Event.DELETE else found
