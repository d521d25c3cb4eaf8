"""Waiting until partitions have grown: one parked fetch per node, or more if one cannot name all of its partitions. Not a loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from brokerd.client.broker_client import BrokerClient
from brokerd.client.consumer.fetch_messages import FetchRequest, PartitionFetch, encode_request
from brokerd.client.consumer.offsets import isolation_to_proto
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition


async def wait_for_records(client: BrokerClient, ends: Mapping[TopicIdPartition, int], isolation: str, *, timeout_ms: int) -> None:
    """Returns once a partition has a record at its offset of `ends` or above, or after `timeout_ms`, or early if the broker cannot
    be asked: the call that follows says why."""
    if not ends:
        await asyncio.sleep(timeout_ms / 1000)
        return
    try:
        by_leader: dict[int, list[TopicIdPartition]] = {}
        for tp in ends:
            by_leader.setdefault(await client.leader(tp), []).append(tp)
        chunks = [(node_id, chunk) for node_id, tps in by_leader.items() for chunk in await client.chunks(node_id, tps)]
    except BrokerdError:
        return
    waits = [
        asyncio.create_task(_parked_fetch(client, node_id, {tp: ends[tp] for tp in chunk}, isolation, timeout_ms))
        for node_id, chunk in chunks
    ]
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    await asyncio.gather(*done, *pending, return_exceptions=True)


async def _parked_fetch(
    client: BrokerClient, node_id: int, ends: Mapping[TopicIdPartition, int], isolation: str, timeout_ms: int
) -> None:
    stream = await client.open_fetch_stream(node_id)
    try:
        request = FetchRequest(
            correlation_id=0,
            max_wait_ms=timeout_ms,
            min_bytes=1,
            max_bytes=1,
            isolation_level=isolation_to_proto(isolation),
            partitions=[PartitionFetch(tp, offset, 1) for tp, offset in ends.items()],
        )
        await stream.send(encode_request(request))
        await stream.receive(timeout_ms=timeout_ms + client.config.request_timeout_ms)
    finally:
        stream.close()
