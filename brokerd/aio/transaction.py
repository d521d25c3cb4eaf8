"""`async with producer.transaction()`: commits when the block ends, or aborts if an exception (or cancellation) leaves it.

Shares its decisions with the blocking one (brokerd/producer/transaction.py).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from brokerd.client.broker_client import BrokerClient
from brokerd.client.leases import lease_client
from brokerd.client.metadata import ids_in
from brokerd.client.transactions import NO_VERSION, end_transaction, find_transaction
from brokerd.config.client import ProducerConfig
from brokerd.errors import BrokerdError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import TransactionEnd
from brokerd.producer.transaction import ABORT_TIMEOUT_MS, Expected, Given, InputReader, TransactionBase, partitions_of

if TYPE_CHECKING:
    from brokerd.aio.producer import Producer

T = TypeVar("T")


class Transaction(TransactionBase):
    """One transaction, as an asynchronous context manager."""

    def __init__(self, producer: Producer, coordinator: Callable[[], AsyncCoordinator], version: int | None) -> None:
        super().__init__(producer.config, version)
        self._producer = producer
        self._coordinator = coordinator

    async def __aenter__(self) -> Self:
        """Raises as the blocking one."""
        last = await self._coordinator().last_version(self._transactional_id, timeout_ms=self._config.max_block_ms)
        membership = self._begin_after(last)
        try:
            await self._producer.begin_member(membership)
            self._is_open = True
            return self
        except BrokerdError:
            raise
        except BaseException:  # cancelled; the member may have begun
            await self._producer.abort_member(only=membership)
            raise

    async def send_offsets(self, offsets: Given, group: InputReader | str, *, expected: Expected | None = None) -> None:
        """Commits a group's offsets with the transaction, as the blocking one; `group` is an aio.Consumer or a group id."""
        if not self._sends_read(offsets, group, expected):
            assert isinstance(group, str)
            assert expected is not None
            ids = await self._coordinator().partition_ids(partitions_of(offsets))
            self._offsets.add(offsets, group, expected, lambda _: ids)

    async def __aexit__(self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        """Commits, or aborts after an exception. Raises as the blocking one. If cancelled during the commit, the transaction is
        committed or aborted as a whole; a retry with the same version tells which."""
        self._is_open = False
        try:
            if kind is None:
                report = await self._producer.end_member()
                with self._committing():
                    await self._coordinator().end(self._commit_of(report), timeout_ms=self._config.delivery_timeout_ms)
        except BaseException:
            if not self.is_committed:
                await self._abort()
            raise
        else:
            if kind is not None:
                await self._abort()
        finally:
            self._tell_readers()

    async def _abort(self) -> None:
        end = self._abort_of(await self._producer.abort_member(only=self._membership))
        if end is not None:
            with self._aborting():
                await self._coordinator().end(end, timeout_ms=ABORT_TIMEOUT_MS)


class AsyncCoordinator:
    """The calls that end a producer's transactions, awaited."""

    def __init__(self, config: ProducerConfig) -> None:
        """Does not connect yet."""
        self._config = config

    async def _ask(self, ask: Callable[[BrokerClient], Coroutine[Any, Any, T]]) -> T:
        with lease_client(self._config) as client:
            return await client.loop_thread.awaited(ask(client.broker_client))

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
