"""Periodic jobs: retention, expiry of idle producers, transactions and groups, compaction of the coordinator's log, the checkpoint,
and closing connections of slow readers or when memory is short. Each is a task on the event loop.

This module decides only when a job runs; the job itself is implemented elsewhere. A failure is logged, and the job runs again at
its next interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from brokerd.errors import counted
from brokerd.server.broker import BrokerParts
from brokerd.server.failures import internal
from brokerd.server.limits.disconnect import INTERVAL_MS, MemoryGuard, available_bytes, disconnect_unread, memory_limit_bytes
from brokerd.server.limits.response_budget import PATIENCE_MS
from brokerd.sharing import BROKER
from brokerd.steps import Job

logger = logging.getLogger(__name__)

_PRODUCER_EXPIRY_INTERVAL_MS = 60_000
_TRANSACTIONS_INTERVAL_MS = 10_000
_GROUPS_INTERVAL_MS = 60_000
_SAID_AGAIN_S = 60.0  # interval of log lines about a lasting problem
_COORDINATOR_LOG_INTERVAL_MS = 100  # the log grows by at most some hundred entries in between; each start reads all of it


class Background:
    """The periodic jobs of one broker."""

    def __init__(
        self, broker: BrokerParts, expire_producers: Callable[[], object], checkpoint_job: Callable[[int], Job | None]
    ) -> None:
        """The last two are LogManager's."""
        self._broker = broker
        self._expire_producers = expire_producers
        self._checkpoint_job = checkpoint_job
        self._memory_guard = MemoryGuard(memory_limit_bytes(broker.config, available_bytes()), broker.port)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the jobs; call once, inside the event loop."""
        config = self._broker.config
        jobs: list[tuple[str, int, Callable[[], Awaitable[None]]]] = [
            ("retention", config.log_retention_check_interval_ms, self._retention),
            ("producer expiry", min(_PRODUCER_EXPIRY_INTERVAL_MS, config.producer_id_expiration_ms), self._producer_expiry),
            ("slow readers", min(PATIENCE_MS, config.fetch_write_timeout_ms) // 2, self._slow_readers),
            ("transactions", _TRANSACTIONS_INTERVAL_MS, self._broker.coordinator.sweep),
            ("groups", _GROUPS_INTERVAL_MS, self._broker.coordinator.sweep_groups),
            ("coordinator log", _COORDINATOR_LOG_INTERVAL_MS, self._broker.coordinator.compact),
            ("checkpoint", config.log_checkpoint_interval_ms, self._checkpoint),
            ("memory", INTERVAL_MS, self._memory),
        ]
        self._tasks = [
            asyncio.create_task(_repeat(name, config.data_dir, interval_ms, job), name=name) for name, interval_ms, job in jobs
        ]

    async def stop(self) -> None:
        """Stops all jobs; a running one ends at its next await."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _retention(self) -> None:
        broker = self._broker
        for log in broker.retention.roll_expired():
            await broker.flusher.flush(log, BROKER)
        removed = await broker.admin.run(broker.retention.retire())
        if removed:
            logger.info("retention removed %s", counted(removed, "segment"))

    async def _producer_expiry(self) -> None:
        self._expire_producers()

    async def _slow_readers(self) -> None:
        overdue = self._broker.response_budget.overdue(now_ms=self._broker.clock.monotonic_ms())
        await disconnect_unread({caller.peer for caller in overdue})

    async def _checkpoint(self) -> None:
        job = self._checkpoint_job(self._broker.clock.monotonic_ms())
        if job is not None:
            await asyncio.to_thread(job)

    async def _memory(self) -> None:
        await self._memory_guard.look(now_ms=self._broker.clock.monotonic_ms())


async def _repeat(name: str, directory: str, interval_ms: int, job: Callable[[], Awaitable[None]]) -> None:
    now_s, problem, logged_s = asyncio.get_running_loop().time, "", 0.0
    while True:
        await asyncio.sleep(interval_ms / 1000)
        try:
            await job()
        except OSError as error:
            text = str(error.strerror or error)
            if text != problem or now_s() - logged_s >= _SAID_AGAIN_S:
                problem, logged_s = text, now_s()
                logger.warning("%s: %s, in data.dir %s; retrying at each interval", name, text, directory)
        except Exception as error:
            internal(name, error)
