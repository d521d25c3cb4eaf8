"""The calls that end a producer's transactions (brokerd/producer/transaction.py), through a leased client with its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from brokerd.client.leases import lease_client
from brokerd.client.metadata import Metadata
from brokerd.client.transactions import NO_VERSION
from brokerd.config.client import ProducerConfig
from brokerd.errors import UnknownTopicOrPartitionError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.producer.core.membership import TransactionEnd


class ClientCoordinator:
    """Coordinator for a producer with these settings."""

    def __init__(self, config: ProducerConfig) -> None:
        """Does not connect yet."""
        self._config = config

    def last_version(self, transactional_id: str, *, timeout_ms: int | None = None) -> int:
        """The last committed version; -1 = none. Retries until `timeout_ms` (default.api.timeout.ms). Raises the broker's error,
        BrokerUnreachableError."""
        with lease_client(self._config) as client:
            listing = client.find_transaction(transactional_id, timeout_ms=timeout_ms)
        return listing.last_version if listing is not None else NO_VERSION

    def end(self, end: TransactionEnd, *, timeout_ms: int) -> None:
        """Commits or aborts. Raises the broker's error; BrokerUnreachableError or a retriable error if the outcome is unknown."""
        with lease_client(self._config) as client:
            client.end_transaction(end, timeout_ms=timeout_ms)

    def partition_ids(self, tps: Iterable[TopicPartition]) -> Mapping[TopicPartition, TopicIdPartition]:
        """Raises UnknownTopicOrPartitionError, BrokerUnreachableError."""
        wanted = list(tps)
        with lease_client(self._config) as client:
            metadata = client.metadata(sorted({tp.topic for tp in wanted}))
        return ids_in(metadata, wanted)


def ids_in(metadata: Metadata, tps: Sequence[TopicPartition]) -> dict[TopicPartition, TopicIdPartition]:
    """The ids of partitions. Raises UnknownTopicOrPartitionError."""
    for tp in tps:
        if tp.partition >= metadata.topic(tp.topic).partition_count:
            raise UnknownTopicOrPartitionError(f"topic '{tp.topic}' has no partition {tp.partition}")
    return {tp: TopicIdPartition(metadata.topic(tp.topic).topic_id, tp.partition) for tp in tps}
