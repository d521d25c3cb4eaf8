"""How long a stop may take, all its steps together. What clients do may cost the grace; what is left is the broker's own work, for
which it has a moment, and a little for each partition that it closes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable

from brokerd.errors import BrokerdError

# After the grace: the metrics and gRPC end, threads finish what they read, logs are closed.
REST_MS = 1_750
_PARTITION_MS = 10  # index, snapshot and their syncs, many of them at a time; 5,000 fit into a minute


class StopOverdueError(BrokerdError):
    """A stop that is not done in time: the process has to end as it is, without waiting for any thread."""


def stop_limit_ms(*, grace_ms: int, partition_count: int) -> int:
    """The deadline of a stop, from its beginning."""
    return grace_ms + REST_MS + _PARTITION_MS * partition_count


def overdue(limit_ms: int, step: str) -> StopOverdueError:
    """The error for a stop that was in the middle of `step` at its deadline."""
    return StopOverdueError(
        f"the stop is not done after {limit_ms} ms ({step}): the process ends now, and the next start recovers what was not closed"
    )


async def within(seconds: float, step: Awaitable[None]) -> None:
    """A step that depends on others: waited for no longer than this, since what comes after it matters more. It goes on by itself:
    gRPC's server, cancelled in the middle of its stop, would tell all who wait for its end that they are cancelled.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.shield(step)
