"""The time limit of a whole shutdown. Clients may use up the grace period; the broker's own work after it gets a fixed time plus a
little for each partition to close.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

from brokerd.errors import BrokerdError

# After the grace period: the metrics endpoint and gRPC stop, threads finish their reads, logs are closed.
REST_MS = 1_750
_PARTITION_MS = 10  # index, snapshot and their syncs, many at a time; 5,000 fit into a minute


class StopOverdueError(BrokerdError):
    """A shutdown that missed its deadline: the process must exit at once, without waiting for any thread."""


def stop_limit_ms(*, grace_ms: int, partition_count: int) -> int:
    """The time a shutdown may take, from its start."""
    return grace_ms + REST_MS + _PARTITION_MS * partition_count


def overdue(limit_ms: int, step: str) -> StopOverdueError:
    """The error for a shutdown that was in `step` at its deadline."""
    return StopOverdueError(
        f"the stop is not done after {limit_ms} ms ({step}): the process exits now, and the next start recovers logs that were "
        "not closed"
    )


async def within(seconds: float, step: Awaitable[object]) -> None:
    """Waits at most this long for a step that depends on others, since later steps matter more. The step itself is not cancelled:
    cancelling gRPC's server in the middle of its stop would cancel everything that waits for its end.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.shield(step)
