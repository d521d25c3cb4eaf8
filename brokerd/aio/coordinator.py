"""The calls that end a producer's transactions, awaited; through a client of their own, created on first use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from brokerd.aio.waiting import outcome_of
from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import BrokerClient
from brokerd.client.coordinator import ids_in
from brokerd.client.transactions import NO_VERSION, end_transaction, find_transaction
from brokerd.config.client import ProducerConfig
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import TransactionEnd

T = TypeVar("T")


class AsyncCoordinator(Protocol):
    """The blocking producer's Coordinator (brokerd/producer/transaction.py), awaited."""

    async def last_version(self, transactional_id: str, *, timeout_ms: int | None = None) -> int:
        """The last committed version; -1 = none. Retries until `timeout_ms` (default.api.timeout.ms). Raises the broker's error,
        BrokerUnreachableError."""

    async def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """Commits or aborts. Raises the broker's error; BrokerUnreachableError or a retriable error if the outcome is unknown."""

    async def partition_ids(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        """Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""

    def close(self) -> None:
        """Frees its resources without waiting."""


class LoopCoordinator:
    """Coordinator for a producer with these settings. Calls outlive `close`, as in the blocking one, to complete a decision."""

    def __init__(self, config: ProducerConfig) -> None:
        """Does not connect yet."""
        self._config = config
        self._client: BlockingClient | None = None
        self._calls = 0  # in flight
        self._is_closed = False

    async def _ask(self, ask: Callable[[BrokerClient], Coroutine[Any, Any, T]]) -> T:
        if self._client is None:
            self._client = BlockingClient(self._config)
        client = self._client
        self._calls += 1
        try:
            return await outcome_of(partial(client.loop_thread.submit, ask(client.broker_client)))
        finally:
            self._calls -= 1
            self._free()

    async def last_version(self, transactional_id: str, *, timeout_ms: int | None = None) -> int:
        """The last committed version; -1 = none. Retries until `timeout_ms` (default.api.timeout.ms). Raises the broker's error,
        BrokerUnreachableError."""
        listing = await self._ask(lambda client: find_transaction(client, transactional_id, timeout_ms=timeout_ms))
        return listing.last_version if listing is not None else NO_VERSION

    async def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """Commits or aborts. Raises the broker's error; BrokerUnreachableError or a retriable error if the outcome is unknown."""
        await self._ask(lambda client: end_transaction(client, end, timeout_ms=timeout_ms))

    async def partition_ids(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        """Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        return ids_in(await self._ask(lambda client: client.metadata(sorted({tp.topic for tp in tps}))), tps)

    def close(self) -> None:
        """Frees the client once no call is in flight, without waiting."""
        self._is_closed = True
        self._free()

    def _free(self) -> None:
        if self._is_closed and not self._calls and self._client is not None:
            self._client.loop_thread.end()
            self._client = None
