"""Periodic jobs that run without a request: retention, expiry of silent producers, the checkpoint, and closing connections of
readers that do not read, or when memory is short. Small tasks on one loop.

This module only decides when a job runs; what it does is up to the log. A failure is logged, and the next run takes place
regardless.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from brokerd.allocator import give_back_memory
from brokerd.server.broker import Broker
from brokerd.server.failures import internal
from brokerd.server.limits.budgets import PATIENCE_MS
from brokerd.server.limits.callers import BROKER
from brokerd.server.limits.disconnect import address_of, connected, disconnect
from brokerd.server.limits.machine_memory import machine_bytes
from brokerd.server.limits.memory_guard import Rounds, memory_limit_bytes, resident_bytes

logger = logging.getLogger(__name__)

_PRODUCER_EXPIRY_INTERVAL_MS = 60_000
_TRANSACTIONS_INTERVAL_MS = 10_000
_GROUPS_INTERVAL_MS = 60_000
_OWN_LOG_INTERVAL_MS = 100  # in which it grows by some hundred entries at most, and a start reads all of it
_MEMORY_INTERVAL_MS = 50  # a local client sends a gigabyte per second; reading the resident set takes 13 us
_REPORT_INTERVAL_MS = 60_000


class Background:
    """The periodic jobs of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._memory_limit_bytes = memory_limit_bytes(broker.config, machine_bytes())
        self._rounds = Rounds()
        self._next_report_ms = broker.clock.monotonic_ms()
        self._closed_count = 0  # not reported yet
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts the jobs; call once, inside the event loop."""
        config = self._broker.config
        jobs: list[tuple[str, int, Callable[[], Awaitable[None]]]] = [
            ("retention", config.log_retention_check_interval_ms, self._retention),
            ("producer expiry", min(_PRODUCER_EXPIRY_INTERVAL_MS, config.producer_id_expiration_ms), self._producer_expiry),
            ("slow readers", min(PATIENCE_MS, config.fetch_write_timeout_ms) // 2, self._slow_readers),
            ("transactions", _TRANSACTIONS_INTERVAL_MS, self._broker.transactions.sweep),
            ("groups", _GROUPS_INTERVAL_MS, self._broker.groups.sweep),
            ("group log", _OWN_LOG_INTERVAL_MS, self._broker.groups.compact),
            ("transaction log", _OWN_LOG_INTERVAL_MS, self._broker.transactions.compact),
            ("checkpoint", config.log_checkpoint_interval_ms, self._checkpoint),
            ("memory", _MEMORY_INTERVAL_MS, self._memory),
        ]
        self._tasks = [asyncio.create_task(_repeat(name, interval_ms, job), name=name) for name, interval_ms, job in jobs]

    async def stop(self) -> None:
        """Stops all jobs; a running one ends at its next await."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _retention(self) -> None:
        broker = self._broker
        for log in broker.logs.retention.roll_expired():
            await broker.flusher.flush(log, BROKER)
        removed = await broker.admin.run(broker.logs.retention.retire())
        if removed:
            logger.info("retention removed %d segments", removed)

    async def _producer_expiry(self) -> None:
        self._broker.logs.expire_producers()

    async def _slow_readers(self) -> None:
        overdue = self._broker.response_budget.overdue(now_ms=self._broker.clock.monotonic_ms())
        for peer in {writer.peer for writer in overdue}:
            address = address_of(peer)
            count = await asyncio.to_thread(disconnect, {address}) if address is not None else 0
            if count:
                logger.warning("%s does not read its fetch responses: closing its connection", peer)

    async def _checkpoint(self) -> None:
        job = self._broker.logs.checkpoint_job(self._broker.clock.monotonic_ms())
        if job is not None:
            await asyncio.to_thread(job)

    async def _memory(self) -> None:
        used_bytes, now_ms = resident_bytes(), self._broker.clock.monotonic_ms()
        if used_bytes is None or used_bytes <= self._memory_limit_bytes:
            self._rounds.enough()
            return
        if self._rounds.is_resting(now_ms=now_ms):
            return
        await asyncio.to_thread(give_back_memory)  # what stays resident is in use, and not only kept for the next request
        used_bytes = resident_bytes() or 0
        if used_bytes <= self._memory_limit_bytes:
            self._rounds.enough()
        elif self._rounds.begin(now_ms=now_ms):
            await self._close_half(used_bytes, now_ms)
        else:
            logger.warning(
                "%d bytes of memory are in use, more than max.memory.bytes (%d), and closing connections did not help: raise it, "
                "or lower other limits",
                used_bytes,
                self._memory_limit_bytes,
            )

    async def _close_half(self, used_bytes: int, now_ms: int) -> None:
        everybody = await asyncio.to_thread(connected)
        count = await asyncio.to_thread(disconnect, self._broker.last_requests.longest_silent(everybody))
        self._closed_count += count
        if count and now_ms >= self._next_report_ms:
            self._next_report_ms = now_ms + _REPORT_INTERVAL_MS
            logger.warning(
                "memory is short (%d bytes in use, max.memory.bytes is %d): %d connections were closed, those first whose last "
                "complete request is longest ago; their clients connect again",
                used_bytes,
                self._memory_limit_bytes,
                self._closed_count,
            )
            self._closed_count = 0


async def _repeat(name: str, interval_ms: int, job: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval_ms / 1000)
        try:
            await job()
        except OSError as error:
            logger.warning("%s: %s; retrying at the next interval", name, error.strerror or error)
        except Exception as error:
            internal(name, error)
