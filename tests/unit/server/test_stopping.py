"""The deadline of a stop: its length, and the message when it passes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from brokerd.config.broker import BrokerConfig
from brokerd.server.daemon import REST_MS, Daemon, overdue, within


async def test_a_stop_has_the_grace_a_moment_and_a_little_for_each_partition() -> None:
    assert Daemon(BrokerConfig(shutdown_grace_ms=5_000)).stop_limit_ms == 5_000 + REST_MS < 7_000
    daemon = Daemon(BrokerConfig(shutdown_grace_ms=0))
    daemon._logs = SimpleNamespace(topics=SimpleNamespace(partition_count=lambda: 1_000))  # type: ignore[assignment]
    assert daemon.stop_limit_ms == REST_MS + 10_000 < 60_000 / 5


def test_what_is_overdue_is_named_with_what_comes_next() -> None:
    told = overdue(6_750, "closing the logs").message
    for part in ("6750 ms", "closing the logs", "exits now", "recovers"):
        assert part in told


async def test_a_step_that_depends_on_others_is_given_up_and_goes_on_by_itself() -> None:
    step = asyncio.create_task(asyncio.Event().wait())
    await within(0.0, step)
    assert not step.cancelled()
    assert not step.cancelling()
