"""Periodic jobs that run without a request: retention, expiry of silent producers, the checkpoint, and disconnecting readers that
do not read and senders that do not finish. Small tasks on one loop.

This module only decides when a job runs; what it does is up to the log. A failure is logged, and the next run takes place
regardless.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from brokerd.allocator import give_back_memory
from brokerd.server.broker import Broker
from brokerd.server.failures import internal
from brokerd.server.limits.budgets import PATIENCE_MS
from brokerd.server.limits.callers import BROKER
from brokerd.server.limits.disconnect import Address, address_of, disconnect, disconnect_all, file_count, mute_all, traffic
from brokerd.server.limits.fruitless import MUTED_MS
from brokerd.server.limits.machine_memory import machine_bytes
from brokerd.server.limits.memory_guard import LookTimes, Suspect, UnreadBytes, memory_limit_bytes, resident_bytes, to_end

logger = logging.getLogger(__name__)

_PRODUCER_EXPIRY_INTERVAL_MS = 60_000
_TRANSACTIONS_INTERVAL_MS = 10_000
_GROUPS_INTERVAL_MS = 60_000
_OWN_LOG_INTERVAL_MS = 100  # in which it grows by some hundred entries at most, and a start reads all of it
_MEMORY_INTERVAL_MS = 50  # a local client sends a gigabyte per second; reading the resident set takes 13 us
_COMPLAINT_INTERVAL_MS = 60_000
_FRUITLESS_INTERVAL_MS = 2  # at least, between two looks for connections
_FRUITLESS_PATIENCE_S = 0.5  # until it is looked for those whose time is over
_FILES_AT_ONCE = 1_000  # looking at so many holds the loop for 5 ms; a thread waits for a busy loop at each of them, 0.2 s in all


class Senders(Protocol):
    """Reports what clients have sent, by connection; the service implements it."""

    def take_request_bytes(self) -> Mapping[str, int]:
        """Bytes of requests that arrived over each connection since the last call."""

    def half_open_calls(self) -> Mapping[str, int]:
        """The number of open calls of each connection that have not delivered a message yet."""


class Background:
    """The periodic jobs of one broker."""

    def __init__(self, broker: Broker, senders: Senders) -> None:
        self._broker = broker
        self._senders = senders
        self._memory_limit_bytes = memory_limit_bytes(broker.config, machine_bytes())
        now_ms = broker.clock.monotonic_ms()
        self._unread_bytes = UnreadBytes(now_ms=now_ms)
        self._looks = LookTimes(now_ms=now_ms)
        self._next_complaint_ms = now_ms
        self._next_report_ms = now_ms
        self._unreported_count = 0
        self._overdue = asyncio.Event()
        broker.fruitless.on_overdue = self._overdue.set
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
            ("fruitless calls", _FRUITLESS_INTERVAL_MS, self._fruitless_calls),
        ]
        self._tasks = [asyncio.create_task(_repeat(name, interval_ms, job), name=name) for name, interval_ms, job in jobs]

    async def stop(self) -> None:
        """Stops all jobs; a running one ends at its next await."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _retention(self) -> None:
        broker = self._broker
        for log in broker.logs.roll_expired():
            await broker.replicas.flusher.flush(log, BROKER)
        before = [(log, log.log_start_offset) for log in broker.logs.partitions()]
        try:
            removed = await broker.admin.run(broker.logs.retire())
        finally:
            for log, log_start_offset in before:
                if log.log_start_offset != log_start_offset:
                    broker.replicas.wake(log.tp)  # a parked fetch may wait below the new log start
        if removed:
            logger.info("retention removed %d segments", removed)

    async def _producer_expiry(self) -> None:
        self._broker.logs.expire_producers()

    async def _slow_readers(self) -> None:
        overdue = self._broker.response_budget.overdue(now_ms=self._broker.clock.monotonic_ms())
        for peer in {writer.peer for writer in overdue}:
            if await asyncio.to_thread(disconnect, peer):
                logger.warning("%s does not read its fetch responses: closing its connection", peer)

    async def _fruitless_calls(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FRUITLESS_PATIENCE_S):
                await self._overdue.wait()
        self._overdue.clear()
        clock, fruitless = self._broker.clock, self._broker.fruitless
        overdue = fruitless.take_overdue(now_ms=clock.monotonic_ms())
        await _with_connections(mute_all, _addresses_of(overdue))
        await _with_connections(disconnect_all, _addresses_of(fruitless.take_ended(now_ms=clock.monotonic_ms())))
        if overdue:
            self._report_fruitless(overdue, clock.monotonic_ms())

    def _report_fruitless(self, peers: set[str], now_ms: int) -> None:
        self._unreported_count += len(peers)
        if now_ms >= self._next_report_ms:
            self._next_report_ms = now_ms + _COMPLAINT_INTERVAL_MS
            logger.warning(
                "%d connections are read no more, and closed in %d s: over them or others of their host hundreds of calls came to "
                "nothing (caller or method unknown, taken back, or malformed); the last from %s",
                self._unreported_count,
                MUTED_MS // 1_000,
                peers.pop(),
            )
            self._unreported_count = 0

    async def _checkpoint(self) -> None:
        job = self._broker.logs.checkpoint_job(self._broker.clock.monotonic_ms())
        if job is not None:
            await asyncio.to_thread(job.run)

    async def suspects(self) -> list[Suspect]:
        """Connections, and what they have sent that is not a complete request yet."""
        now_ms = self._broker.clock.monotonic_ms()
        self._looks.looked(now_ms=now_ms)
        requests, half_open = self._senders.take_request_bytes(), self._senders.half_open_calls()
        return await asyncio.to_thread(lambda: self._unread_bytes.look(traffic(), requests, half_open=half_open, now_ms=now_ms))

    async def _memory(self) -> None:
        used_bytes = resident_bytes()
        if used_bytes is None:
            return
        is_short = used_bytes > self._memory_limit_bytes
        if not self._looks.is_due(is_short=is_short, now_ms=self._broker.clock.monotonic_ms()):
            return
        if is_short:
            await asyncio.to_thread(give_back_memory)  # what stays resident is in use, and not only kept for the next request
            used_bytes = resident_bytes() or 0
            if used_bytes <= self._memory_limit_bytes:
                return
            await _with_connections(disconnect_all, _addresses_of(self._broker.fruitless.take_muted()))
        suspects = await self.suspects()
        if is_short:
            await self._end_suspects(used_bytes, suspects)

    async def _end_suspects(self, used_bytes: int, suspects: list[Suspect]) -> None:
        ended = to_end(suspects, excess_bytes=used_bytes - self._memory_limit_bytes * 3 // 4)
        now_ms = self._broker.clock.monotonic_ms()
        if ended:
            await _with_connections(disconnect_all, {suspect.address for suspect in ended})
            logger.warning(
                "memory is short (%d bytes in use, max.memory.bytes is %d): closing %d connections with unfinished requests, "
                "the largest %s:%d with about %d bytes",
                used_bytes,
                self._memory_limit_bytes,
                len(ended),
                *ended[0].address,
                ended[0].unread_bytes,
            )
            return
        self._looks.in_vain(now_ms=now_ms)
        if now_ms >= self._next_complaint_ms:
            self._next_complaint_ms = now_ms + _COMPLAINT_INTERVAL_MS
            logger.warning(
                "%d bytes of memory are in use, more than max.memory.bytes (%d), and no unfinished request accounts for it",
                used_bytes,
                self._memory_limit_bytes,
            )


def _addresses_of(peers: set[str]) -> set[Address]:
    return {address for peer in peers if (address := address_of(peer)) is not None}


async def _with_connections(act: Callable[[set[Address]], object], addresses: set[Address]) -> None:
    if not addresses:
        return
    if file_count() <= _FILES_AT_ONCE:
        act(addresses)
    else:
        await asyncio.to_thread(act, addresses)


async def _repeat(name: str, interval_ms: int, job: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(interval_ms / 1000)
        try:
            await job()
        except OSError as error:
            logger.warning("%s: %s; retrying at the next interval", name, error.strerror or error)
        except Exception as error:
            internal(name, error)
