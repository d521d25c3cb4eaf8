"""The calls that decide the transactions of a producer, awaited; through a client of their own, which is made when it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from brokerd.aio.waiting import outcome_of
from brokerd.client.blocking import BlockingClient
from brokerd.client.coordinator import ids_in
from brokerd.client.transactions import NO_VERSION
from brokerd.config.client import ProducerConfig
from brokerd.errors import ProducerClosedError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import TransactionEnd


class Coordinator(Protocol):
    """The blocking producer's Coordinator, awaited."""

    async def last_version(self, transactional_id: str) -> int:
        """The last committed version; -1 = none. Raises the broker's error, BrokerUnreachableError."""

    async def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """Commits or aborts. Raises the broker's error; BrokerUnreachableError or a retriable error if the outcome is unknown."""

    async def partition_ids(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        """Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""

    def close(self) -> None:
        """Frees what it has; waits for nothing."""


class LoopCoordinator:
    """Coordinator of one producer's settings."""

    def __init__(self, config: ProducerConfig) -> None:
        """Does not connect yet."""
        self._config = config
        self._client: BlockingClient | None = None
        self._is_closed = False

    def _opened(self) -> BlockingClient:
        if self._is_closed:
            raise ProducerClosedError("the producer is closed")
        if self._client is None:
            self._client = BlockingClient(self._config)
        return self._client

    async def last_version(self, transactional_id: str) -> int:
        """The last committed version; -1 = none. Raises the broker's error, BrokerUnreachableError."""
        client = self._opened()
        find = client.broker_client.transactions.find(transactional_id)
        listing = await outcome_of(partial(client.loop_thread.begin, find))
        return listing.last_version if listing is not None else NO_VERSION

    async def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """Commits or aborts. Raises the broker's error; BrokerUnreachableError or a retriable error if the outcome is unknown."""
        client = self._opened()
        decide = client.broker_client.transactions.end(end, timeout_ms=timeout_ms)
        await outcome_of(partial(client.loop_thread.begin, decide))

    async def partition_ids(self, tps: Sequence[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        """Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        client = self._opened()
        find = client.broker_client.metadata(sorted({tp.topic for tp in tps}))
        return ids_in(await outcome_of(partial(client.loop_thread.begin, find)), tps)

    def close(self) -> None:
        """Frees what it has; waits for nothing."""
        self._is_closed = True
        if self._client is not None:
            self._client.loop_thread.end()
