"""Waits until batches are durable, as a produce request with acks=all does, from code that awaits it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brokerd.clock import Clock
from brokerd.errors import WireError
from brokerd.server.replica_manager import Replica, ReplicaManager
from brokerd.server.waiting.delayed_produce import Awaited, DelayedProduce

WAIT_MAX_MS = 30_000


async def wait_durable(replicas: ReplicaManager, clock: Clock, batches: Sequence[tuple[Replica, int]]) -> dict[int, WireError]:
    """Returns once the fate of all batches (their last offsets) is known, or after 30 s: the errors of those that are not durable,
    by their places. All are retriable but UnknownTopicIdError, whose topic was deleted.
    """
    if not batches:
        return {}
    awaited = [Awaited(place, replica, last_offset) for place, (replica, last_offset) in enumerate(batches)]
    settled = asyncio.get_running_loop().create_future()
    operation = DelayedProduce(clock.monotonic_ms() + WAIT_MAX_MS, awaited, settled)
    replicas.produce_driver.watch(operation)
    await settled
    return operation.errors
